"""What cannot be rendered is said."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.control.unit_commands import unit_name
from gateway.config.snapshot import Backend, Launch, Node, Snapshot
from tests.apps.fleet.render.blocks import fleet, messages, one_backend, render

# -- what cannot be rendered ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("snapshot", "message"),
    [
        (
            one_backend("m", image="img", name="gateway"),
            "backends.gateway: its unit would have the name of the gateway's",
        ),
        (one_backend("m", image="img", docker="--shm-size"), "backends.it.launch.docker: '--shm-size' has no value"),
        (one_backend("m", image="img", docker="img2"), "'img2' is no flag of `docker run`"),
        (one_backend("m", image="img", docker="'a"), "a quote is never closed"),
        (one_backend("m ${file:/x}", image="img"), "'${file:/x}' is no reference that a machine of the fleet can"),
        (one_backend("m", image="img", env={"A": "${b"}), "'${b' is no reference"),
        (one_backend("--model m"), "begins with a flag: on the host itself (no `image`) a program comes first"),
        (one_backend("bash -c 'vllm serve m'", image="i", nodes=2), "only a command line of vLLM itself can be split"),
        (one_backend("./run", nodes=2), "only a command line of vLLM itself can be split"),
        (one_backend("# a note"), "backends.it.launch.command: has no word that is run"),
        (one_backend("vllm serve m", image="img", nodes=0), "backends.it: has no `node`"),
    ],
)
def test_what_cannot_be_rendered_is_said_and_has_no_files(snapshot: Snapshot, message: str) -> None:
    rendering = render(snapshot)
    assert rendering.files == ()
    assert messages(rendering).startswith("error: ")
    assert message in messages(rendering)


def test_a_block_that_only_tells_what_was_measured_is_not_rendered() -> None:
    small = one_backend("vllm serve m", image="img")
    launch = Launch(resident=4 << 30)
    measured = Backend("tts", url="http://10.0.0.1:8008", nodes=("n0",), launch=launch)
    both = replace(small, backends={**small.backends, "tts": measured})
    assert render(both).files == render(small).files
    assert "tts" not in messages(render(both))


def test_a_head_without_an_address_cannot_be_found_by_its_workers() -> None:
    snapshot = one_backend("vllm serve m", image="img", nodes=2)
    nodes = {**snapshot.nodes, "n0": Node("n0")}
    assert "error: nodes.n0: has no `address`" in messages(render(replace(snapshot, nodes=nodes)))


def test_two_backends_whose_units_would_have_one_name_are_told_apart() -> None:
    one = one_backend("m", image="img", name="a:b")
    other = one_backend("m", image="img", name="a@b")
    rendering = render(replace(one, backends={**one.backends, **other.backends}))
    assert "error: backends.a@b: its unit would have the name of backend a:b: spark-a-b" in messages(rendering)
    assert len([file for file in rendering.files if file.path.endswith(".service")]) == 1


def test_an_unknown_profile_is_said_with_the_known_ones() -> None:
    assert "has no profile 'fast' (there are: latency)" in messages(render(fleet(), {"ds4": "fast"}))


def test_what_only_a_shell_would_replace_is_said() -> None:
    rendering = render(
        one_backend(
            "vllm serve ~/models/m --seed 5$ --chat-template $HOME/x.jinja",
            image="img",
            docker="-e HF_HOME=$MODELS -e HF_TOKEN=$ecret",
            volumes=("~/x:/x", "$PWD:/y"),
        )
    )
    said = [note.message.split("'")[1] for note in rendering.notes if "no shell reads it" in note.message]
    assert said == ["~/models/m", "$HOME/x.jinja", "$MODELS", "$PWD:/y"]
    assert "$ecret" not in messages(rendering)
    assert "HF_TOKEN is written out" in messages(rendering)


def test_a_secret_that_is_written_out_is_for_root_alone_and_said() -> None:
    rendering = render(one_backend("vllm serve m --api-key abc", image="img", env={"HF_TOKEN": "hf_x"}))
    assert next(file.mode for file in rendering.files if file.path.endswith("/launch.sh")) == 0o700
    assert next(file.mode for file in rendering.files if file.path.endswith("compose.yaml")) == 0o600
    assert "HF_TOKEN is written out" in messages(rendering)
    assert "--api-key is written out" in messages(rendering)
    assert "hf_x" not in messages(rendering)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,40}", fullmatch=True))
def test_a_unit_name_is_one_that_systemd_and_docker_take(backend: str) -> None:
    assert re.fullmatch(r"spark-[A-Za-z0-9][A-Za-z0-9_.-]*", unit_name(backend))
