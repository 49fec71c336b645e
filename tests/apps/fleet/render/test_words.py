"""The launch scripts, run for real: what the engine gets, in which program, and what keeps it from starting."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.apps.fleet.lint.catalog import load_catalog
from gateway.apps.fleet.lint.subject import subjects
from gateway.apps.fleet.render.launches import node_launches
from gateway.config.load import load_text
from gateway.launch.command import parse
from gateway.launch.docker import DockerFlag, read_docker_flags
from tests.apps.fleet.render.blocks import ODD, fleet, messages, one_backend, render, text_of
from tests.apps.fleet.render.machine import CALLED, Machine, after, started, variables

# -- every word arrives -----------------------------------------------------------------------------------------------

WORDS = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12),
        st.lists(st.sampled_from([*ODD, "a", "--x"]), max_size=8).map("".join),
        st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3).map(json.dumps),
    ).filter(lambda word: re.search(r"(?<!\$)\$\{", word) is None and "$${" not in word),
    max_size=6,
)
VALUES = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12).filter(lambda text: "${" not in text)
EXAMPLES = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@EXAMPLES
@given(WORDS, st.dictionaries(st.sampled_from(["A", "B_TOKEN", "PATH", "LD_PRELOAD"]), VALUES))
def test_a_container_gets_every_word_and_variable_as_it_is_written(
    machine: Machine, words: list[str], env: dict[str, str]
) -> None:
    command = shlex.join(["vllm", "serve", "org/model", *words])
    expected = list(parse(command, image="vllm/vllm-openai:v1").words)[2:]
    call = started(machine, one_backend(command, image="vllm/vllm-openai:v1", env=env), "docker")
    assert after(call.arguments, "vllm/vllm-openai:v1") == expected
    assert variables(call) == env


@EXAMPLES
@given(WORDS, st.dictionaries(st.sampled_from(["A", "B_TOKEN", "HOME", "LD_X", "UID", "IFS"]), VALUES))
def test_an_engine_of_the_host_gets_every_word_and_variable_as_it_is_written(
    machine: Machine, words: list[str], env: dict[str, str]
) -> None:
    command = shlex.join(["vllm", "serve", "org/model", *words])
    call = started(machine, one_backend(command, env=env), "vllm")
    assert call.arguments == list(parse(command).words)[1:]
    assert {name: call.environ[name] for name in env} == env


@EXAMPLES
@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1), WORDS)
def test_a_reference_becomes_the_value_of_the_machine_whatever_is_in_it(
    machine: Machine, value: str, around: list[str]
) -> None:
    before, behind = "".join(around[:2]), "".join(around[2:])
    if before.endswith("$") or "${" in before + behind:
        return
    words = ["--api-key", "${KEY}", f"{before}${{KEY}}{behind}", "${UNSET:-d'e\"f`$x}", "$${KEY}"]
    command = shlex.join(["vllm", "serve", "m", *words])
    environ = {"KEY": value}
    snapshot = one_backend(command, image="img", env={"A": "${KEY}", "KEY": "${KEY}", "PATH": "/x:${KEY}"})
    call = started(machine, snapshot, "docker", environ)
    expected = ["--api-key", value, f"{before}{value}{behind}", "d'e\"f`$x", "${KEY}"]
    if parse(command).words[3:] == tuple(words):
        assert after(call.arguments, "img")[3:] == expected
    assert variables(call) == {"A": value, "KEY": value, "PATH": f"/x:{value}"}


def test_a_reference_may_have_a_name_that_scripts_like_to_use(machine: Machine) -> None:
    names = ["NAME", "unit", "state", "code", "file", "found", "pid", "url", "used"]
    command = "vllm serve m " + " ".join(f"${{{name}}}" for name in names)
    call = started(machine, one_backend(command, image="img"), "docker", {name: f"is {name}" for name in names})
    assert after(call.arguments, "img")[3:] == [f"is {name}" for name in names]


def test_a_value_of_the_machine_is_in_no_argument_of_docker(machine: Machine) -> None:
    snapshot = one_backend("vllm serve m", image="img", env={"HF_TOKEN": "${TOKEN}", "KEY": "${KEY}"})
    call = started(machine, snapshot, "docker", {"TOKEN": "hf_value", "KEY": "k-value"})
    assert "value" not in " ".join(call.arguments)
    assert variables(call) == {"HF_TOKEN": "hf_value", "KEY": "k-value"}
    assert call.arguments[call.arguments.index("--env-file") + 1] == "/etc/spark/spark-it.env"


# -- what starts where ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "command", "entrypoint", "arguments"),
    [
        ("vllm/vllm-openai:nightly", "vllm serve m --port 1", None, "m --port 1"),
        ("vllm/vllm-openai:nightly", "m --port 1", None, "m --port 1"),
        ("vllm/vllm-openai@sha256:00", "--model m", None, "--model m"),
        ("nvcr.io/nvidia/vllm:26.04-py3", "vllm serve m --port 1", None, "vllm serve m --port 1"),
        ("nvcr.io/nvidia/vllm:26.04-py3", "--model m --port 1", None, "vllm serve --model m --port 1"),
        ("vllm/vllm-openai:v0.20.0", "bash -c 'a && vllm serve m'", "bash", "-c 'a && vllm serve m'"),
        ("vllm/vllm-openai:v1", "python3 -m vllm.entrypoints.openai.api_server -m", "python3", None),
        ("my/asr:1", "./serve --port 8765", None, "./serve --port 8765"),
    ],
)
def test_the_words_fit_what_the_image_starts_by_itself(
    machine: Machine, image: str, command: str, entrypoint: str | None, arguments: str | None
) -> None:
    call = started(machine, one_backend(command, image=image), "docker")
    assert after(call.arguments, image) == shlex.split(arguments or command.partition(" ")[2])
    given = call.arguments[: call.arguments.index(image)]
    assert (given[given.index("--entrypoint") + 1] if "--entrypoint" in given else None) == entrypoint


def test_an_image_without_a_command_is_started_as_it_is(machine: Machine) -> None:
    call = started(machine, one_backend(image="my/asr:1", docker="-p 8765:8765"), "docker")
    assert call.arguments[-1] == "my/asr:1"


def test_assignments_in_front_of_the_program_are_variables_of_the_engine(machine: Machine) -> None:
    call = started(machine, one_backend("A=1 B='x y' vllm serve m", image="img", env={"A": "0", "C": "2"}), "docker")
    assert after(call.arguments, "img") == ["vllm", "serve", "m"]
    assert variables(call) == {"A": "1", "B": "x y", "C": "2"}


def test_a_spark_gets_the_flags_of_docker_that_nobody_wrote(machine: Machine) -> None:
    call = started(machine, one_backend("vllm serve m --port 8001", image="img"), "docker")
    given = " ".join(call.arguments)
    for flag in ("--gpus all", "--ipc host", "--ulimit memlock=-1", "--ulimit stack=67108864", "--publish 8001:8001"):
        assert flag in given
    assert "--name spark-it" in given
    assert "--rm" not in given, "how it ended is asked of the container"
    assert "--log-opt max-size=50m" in given


def test_flags_of_docker_that_somebody_wrote_win(machine: Machine) -> None:
    docker = "--gpus device=0 --ipc=private --ulimit memlock=1:2 --net host --log-driver journald --shm-size=16g -e A=1"
    call = started(machine, one_backend("vllm serve m", image="img", docker=docker), "docker")
    given = " ".join(call.arguments)
    for flag in ("--gpus", "--ipc", "--ulimit memlock", "--network", "--log-driver"):
        assert given.count(f"{flag} ") + given.count(f"{flag}=") == 1, flag
    assert "--publish" not in given
    assert "max-size" not in given
    assert variables(call) == {"A": "1"}


def test_flags_that_would_take_the_container_from_the_unit_are_left_out_and_said(machine: Machine) -> None:
    docker = "-itd --rm --name mine --restart unless-stopped --shm-size 1g"
    snapshot = one_backend("vllm serve m", image="img", docker=docker)
    call = started(machine, snapshot, "docker")
    assert call.arguments[:3] == ["run", "--name", "spark-it"]
    assert not {"-itd", "--rm", "--detach", "--restart", "--tty", "mine", "unless-stopped"} & set(call.arguments)
    assert call.arguments[call.arguments.index("--shm-size") + 1] == "1g"
    assert "--interactive, --tty, --name, --restart" in messages(render(snapshot))


def test_under_an_entrypoint_everything_sees_the_same_command() -> None:
    omni = fleet().backends["omni"]
    assert omni.launch is not None
    (launch,) = (one for one in node_launches(fleet(), {})[0] if one.backend.name == "omni")
    (subject,) = (one for one in subjects(fleet(), load_catalog()) if one.backend.name == "omni")
    assert launch.command == subject.command == omni.launch.parsed
    assert (launch.url, omni.url) == ("http://127.0.0.1:8006", "http://192.168.1.12:8006")
    assert omni.model == launch.command.model == "nvidia/Nemotron-3-Nano-Omni"
    assert (launch.entrypoint, launch.arguments[0]) == ("/bin/bash", "-c")


def test_on_the_network_of_the_host_no_port_is_mapped() -> None:
    docker = "--network host -p 9001:8001"
    (launch,) = node_launches(one_backend("m --port 8001", image="vllm/vllm-openai:v1", docker=docker), {})[0]
    assert launch.url == "http://127.0.0.1:8001"


@given(
    st.lists(
        st.one_of(
            st.builds(DockerFlag, st.sampled_from(["shm-size", "label", "add-host", "tmpfs"]), st.text(min_size=1)),
            st.builds(DockerFlag, st.sampled_from(["privileged", "init"]), st.sampled_from([None, "true", "false"])),
        )
    ),
    st.booleans(),
)
def test_flags_of_docker_are_read_however_they_are_spelled(flags: list[DockerFlag], joined: bool) -> None:
    words: list[str] = []
    for flag in flags:
        words += [f"--{flag.name}={flag.value}"] if joined and flag.value is not None else flag.words()
    assert read_docker_flags(shlex.join(words)).given == tuple(flags)


def test_short_flags_of_docker_are_read_as_docker_reads_them() -> None:
    text = "-itp8001:8000 -p 1:2 -v=/a:/b -eA=1 -e B -u0 --net=host"
    found = [flag.words() for flag in read_docker_flags(text).given]
    assert found == [
        ("--interactive",),
        ("--tty",),
        ("--publish", "8001:8000"),
        ("--publish", "1:2"),
        ("--volume", "/a:/b"),
        ("--env", "A=1"),
        ("--env", "B"),
        ("--user", "0"),
        ("--network", "host"),
    ]


def test_head_and_worker_differ_in_rank_address_and_headless(machine: Machine) -> None:
    snapshot = one_backend(
        "vllm serve m --headless -tp 2 --node-rank=7", image="img", nodes=2, env={"NCCL_SOCKET_IFNAME": "bond0"}
    )
    rendering = render(snapshot)
    calls = []
    for node in ("n0", "n1"):
        assert machine.run(text_of(rendering, "/launch.sh", node), "run").returncode == 0
        calls += machine.calls("docker")
    head, worker = (after(call.arguments, "img") for call in calls)
    common = ["vllm", "serve", "m", "-tp", "2", "--nnodes", "2", "--node-rank"]
    address = ["--master-addr", "10.0.0.1", "--master-port", "29501"]
    assert head == [*common, "0", *address]
    assert worker == [*common, "1", *address, "--headless"]
    assert [variables(call)["VLLM_HOST_IP"] for call in calls] == ["10.0.0.1", "10.0.0.2"]
    assert all("host" in call.arguments[call.arguments.index("--network") + 1] for call in calls)
    assert "GLOO_SOCKET_IFNAME not set" in messages(rendering)
    assert "Note: GLOO_SOCKET_IFNAME" in text_of(rendering, "/launch.sh", "n1")


def test_addresses_that_the_command_states_stay(machine: Machine) -> None:
    words = "--master-addr 10.9.9.1 --master-port 5000 --nnodes 2"
    snapshot = one_backend(f"vllm serve m {words}", image="img", nodes=2, env={"VLLM_HOST_IP": "${MY_IP}"})
    machine.run(text_of(render(snapshot), "/launch.sh", "n1"), "run", environ={"MY_IP": "10.9.9.2"})
    (call,) = machine.calls("docker")
    given = after(call.arguments, "img")
    assert given[3:] == [*words.split(), "--node-rank", "1", "--headless"]
    assert variables(call)["VLLM_HOST_IP"] == "10.9.9.2"


PROFILE = "/var/lib/spark/spark-ds4.profile"
LATENCY = ["--max-model-len", "200000", "--max-num-seqs", "4"]


def words_of(machine: Machine, chosen: str | None, **profiles: str) -> list[str]:
    """What the container of ds4 is given when the machine has `chosen` in its file; None = it has no file."""
    file = machine.folder / "profile"
    file.unlink(missing_ok=True)
    if chosen is not None:
        file.write_text(chosen)
    machine.files[PROFILE] = str(file)
    machine.files |= {"/srv/models": str(machine.folder), "~root/.cache/vllm": str(machine.folder)}
    text = text_of(render(fleet(), profiles), "/ds4/launch.sh", "spark2")
    done = machine.run(text, "run", environ={"VLLM_API_KEY": "k"})
    assert done.returncode == 0, done.stderr
    (call,) = machine.calls("docker")
    return after(call.arguments, "ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest")


@pytest.mark.parametrize("rendered", [{}, {"ds4": "latency"}])
def test_the_profile_that_the_machine_has_chosen_changes_the_words(machine: Machine, rendered: dict[str, str]) -> None:
    with_it, without = words_of(machine, "latency\n", **rendered), words_of(machine, "\n", **rendered)
    assert [word for word in with_it if word in LATENCY] == LATENCY
    assert "131072" not in with_it
    assert "--enable-expert-parallel" not in with_it
    assert "131072" in without
    assert "--enable-expert-parallel" in without
    config = '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}'
    assert config in with_it
    assert config in without
    assert words_of(machine, None, **rendered) == (with_it if rendered else without), "the one that was rendered"


@pytest.mark.parametrize("chosen", ["other\n", "latency x", "latency\nx", "$(touch made)", "x" * 5000])
def test_a_profile_that_the_script_does_not_have_starts_nothing(machine: Machine, chosen: str) -> None:
    with pytest.raises(AssertionError, match="names a profile that is not in this script"):
        words_of(machine, chosen)
    assert machine.calls("docker") == []


def test_a_profile_may_have_any_name_and_change_the_port(machine: Machine) -> None:
    snapshot = one_backend("vllm serve m --port 1 --served-model-name s", image="img")
    odd = "it's $(id) * |"
    profiles: dict[str, dict[str, object]] = {odd: {"port": 2, "served-model-name": "t"}, "same": {"max-num-seqs": 1}}
    snapshot = replace(snapshot, backends={"it": replace(snapshot.backends["it"], profiles=profiles)})
    (machine.folder / "profile").write_text(f"{odd}\n")
    machine.files["/var/lib/spark/spark-it.profile"] = str(machine.folder / "profile")
    machine.program("curl", CALLED + "print('200')\n")
    text = text_of(render(snapshot), "/launch.sh", "n0")
    for step in ("run", "ready", "warm-up"):
        assert machine.run(text, step).returncode == 0
        if step == "run":
            assert after(machine.calls("docker")[0].arguments, "img") == [
                "vllm", "serve", "m", "--port", "2", "--served-model-name", "t"
            ]  # fmt: skip
        else:
            arguments = " ".join(machine.calls("curl")[0].arguments)
            assert "http://127.0.0.1:2/" in arguments
            assert step == "ready" or '"model": "t"' in arguments


# -- what keeps an engine from starting -------------------------------------------------------------------------------


def test_a_variable_without_a_value_is_named_and_nothing_starts(machine: Machine) -> None:
    text = text_of(render(one_backend("vllm serve m --api-key ${KEY}", image="img")), "/launch.sh")
    for environ in ({}, {"KEY": ""}):
        done = machine.run(text, "run", environ=environ)
        assert done.returncode == 78
        assert "KEY has no value: write it into /etc/spark/spark-it.env" in done.stderr
        assert machine.calls("docker") == []


def test_a_mount_whose_path_is_missing_is_named_and_nothing_starts(machine: Machine, tmp_path: Path) -> None:
    gone = tmp_path / "it is gone"
    text = text_of(render(one_backend("m", image="img", volumes=(f"{gone}:/models:ro",))), "/launch.sh")
    done = machine.run(text, "run")
    assert (done.returncode, machine.calls("docker")) == (78, [])
    assert f"{gone} does not exist" in done.stderr
    gone.mkdir()
    assert machine.run(text, "run").returncode == 0
    assert f"{gone}:/models:ro" in machine.calls("docker")[0].arguments


def test_a_mount_that_is_a_reference_is_looked_at_and_a_named_volume_is_not(machine: Machine, tmp_path: Path) -> None:
    volumes = ("${MODELS:-/nowhere/models}:/models", "cache:/cache", "${CACHE}:/more")
    text = text_of(render(one_backend("m", image="img", volumes=volumes)), "/launch.sh")
    done = machine.run(text, "run", environ={"CACHE": "name"})
    assert done.returncode == 78
    assert "/nowhere/models does not exist" in done.stderr
    assert machine.run(text, "run", environ={"CACHE": "name", "MODELS": str(tmp_path)}).returncode == 0
    assert f"{tmp_path}:/models" in machine.calls("docker")[0].arguments


def test_a_home_is_that_of_the_ssh_user(machine: Machine) -> None:
    text = text_of(render(one_backend("m", image="img", volumes=("~/.cache/x:/c",), ssh="nobody@n0")), "/launch.sh")
    assert "--volume ~nobody/.cache/x:/c" in text
    assert "present ~nobody/.cache/x" in text
    text = text_of(render(one_backend("m", image="img", volumes=("~/a b:/c",), ssh="n0")), "/launch.sh")
    assert "--volume ~root/'a b:/c'" in text


def test_a_program_that_is_not_there_is_exit_code_127(machine: Machine) -> None:
    done = machine.run(text_of(render(one_backend("/nowhere/vllm serve m")), "/launch.sh"), "run")
    assert done.returncode == 127
    assert "/nowhere/vllm" in done.stderr


@pytest.mark.parametrize(
    ("image", "own", "command", "words"),
    [
        ("ghcr.io/me/vllm-fork:1", None, "serve /m --port 8000", ["serve", "/m", "--port", "8000"]),
        ("ghcr.io/me/vllm-fork:1", None, "--model /m", ["--model", "/m"]),
        ("ghcr.io/me/vllm-fork:1", None, "/launch.sh vllm serve /m", ["/launch.sh", "vllm", "serve", "/m"]),
        ("ghcr.io/me/vllm-fork:1", "vllm", "vllm serve /m", ["serve", "/m"]),
        ("ghcr.io/me/vllm-fork:1", "vllm", "serve /m", ["serve", "/m"]),
        ("ghcr.io/me/vllm-fork:1", "vllm serve", "vllm serve /m", ["/m"]),
        ("ghcr.io/me/vllm-fork:1", "none", "--model /m", ["vllm", "serve", "--model", "/m"]),
        ("avarok/dgx-vllm:1", None, "vllm serve /m", ["serve", "/m"]),
        ("nvcr.io/nvidia/vllm:26.04-py3", None, "--model /m", ["vllm", "serve", "--model", "/m"]),
        ("vllm/vllm-openai:v0.23.0", None, "vllm serve /m", ["/m"]),
        ("vllm/vllm-openai:v0.23.0", "none", "vllm serve /m", ["vllm", "serve", "/m"]),
    ],
)
def test_the_words_of_an_image_follow_what_it_runs_itself(
    image: str, own: str | None, command: str, words: list[str]
) -> None:
    nodes = "nodes: {n: {address: 10.0.0.1}}"
    text = f"{nodes}\nbackends:\n  it:\n    node: n\n    launch: {{image: {image}, command: {command}"
    snapshot = load_text(text + (f", entrypoint: {own}}}" if own else "}"), "routes.yaml").snapshot
    ((launch,), notes) = node_launches(snapshot, {})
    assert (list(launch.arguments), launch.entrypoint) == (words, None)
    unknown = own is None and image.startswith("ghcr.io")
    assert any("is not known: the words of `command` stay" in note.message for note in notes) is unknown


def test_a_wrapper_takes_the_place_of_the_entrypoint_of_an_image_that_serves() -> None:
    snapshot = one_backend("/launch.sh vllm serve /m --port 8001", image="vllm/vllm-openai:v1", nodes=2)
    head, worker = node_launches(snapshot, {})[0]
    assert (head.entrypoint, head.arguments[:5]) == (
        "/launch.sh", ("vllm", "serve", "/m", "--port", "8001"),
    )  # fmt: skip
    assert worker.arguments[-1] == "--headless"
