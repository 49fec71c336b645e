"""A launch command: its program, model and flags, however it is written; and what a profile makes of it."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.launch.command import is_serving_image, parse, with_changes
from gateway.launch.flags import vllm_flags

IMAGE = "vllm/vllm-openai:v0.23.0"


@pytest.mark.parametrize(
    ("text", "image", "program"),
    [
        ("vllm serve org/m --port 8001", None, ("vllm", "serve")),
        ("/opt/venv/bin/vllm serve org/m --port 8001", None, ("/opt/venv/bin/vllm", "serve")),
        ("A=1 B=2 vllm serve org/m --port 8001", None, ("vllm", "serve")),
        ("env A=1 vllm serve org/m --port 8001", None, ("vllm", "serve")),
        ("org/m --port 8001", IMAGE, ()),
        ("--model org/m --port 8001", IMAGE, ()),
        ("vllm serve --model org/m --port 8001", "nvcr.io/nvidia/vllm:26.04-py3", ("vllm", "serve")),
        ("python3 -m vllm.entrypoints.openai.api_server --model org/m --port 8001", None,
         ("python3", "-m", "vllm.entrypoints.openai.api_server")),
        ("bash -c 'pip install vllm[audio] && vllm serve org/m --port 8001 > /tmp/log 2>&1'", IMAGE, ("vllm", "serve")),
        ("vllm serve org/m \\\n  --port 8001  # the first Spark\n", None, ("vllm", "serve")),
        ("# a note\nvllm serve org/m \\\n  --port 8001", None, ("vllm", "serve")),
        ("vllm serve org/m \\ --port 8001", None, ("vllm", "serve")),
    ],
)  # fmt: skip
def test_the_model_and_the_flags_are_found(text: str, image: str | None, program: tuple[str, ...]) -> None:
    command = parse(text, image=image)
    assert (command.model, command.flags["port"], command.program, command.mistakes) == ("org/m", 8001, program, ())
    assert command.is_vllm


def test_assignments_before_the_program_are_its_environment() -> None:
    assert parse("A=1 B='x y' vllm serve m").env == {"A": "1", "B": "x y"}


@pytest.mark.parametrize(
    ("entrypoint", "text", "program"),
    [
        ("/bin/bash", "-c 'pip install vllm[audio] && vllm serve org/m --port 8006'", ("vllm", "serve")),
        ("vllm", "serve org/m --port 8006", ("vllm", "serve")),
        ("python3", "-m vllm.entrypoints.openai.api_server --model org/m --port 8006",
         ("python3", "-m", "vllm.entrypoints.openai.api_server")),
        ("", "vllm serve org/m --port 8006", ("vllm", "serve")),
    ],
)  # fmt: skip
def test_an_entrypoint_is_the_program_of_the_command(entrypoint: str, text: str, program: tuple[str, ...]) -> None:
    command = parse(text, image=IMAGE, entrypoint=entrypoint)
    changed = with_changes(command, {"port": 8007})
    assert (command.model, command.flags["port"], command.program, command.mistakes) == ("org/m", 8006, program, ())
    assert (changed.model, changed.flags["port"], changed.program, changed.mistakes) == ("org/m", 8007, program, ())
    assert (changed.image, changed.entrypoint) == (IMAGE, entrypoint)


def test_under_another_entrypoint_the_image_serves_nothing_by_itself() -> None:
    assert not parse("org/m --port 8006", image=IMAGE, entrypoint="/run.sh").is_vllm
    assert not parse("org/m --port 8006", image=IMAGE, entrypoint="").is_vllm
    assert parse("vllm serve org/m", entrypoint="/run.sh").model == "org/m"  # of the host, where docker has no say


@pytest.mark.parametrize("text", ["llama-server -m x.gguf", "/workspace/run.sh", "bash run.sh", "", "sh -c 'echo hi'"])
def test_another_program_is_no_vllm(text: str) -> None:
    command = parse(text)
    assert (command.is_vllm, command.flags, command.mistakes) == (False, {}, ())


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("docker run --gpus all vllm/vllm-openai:nightly m", "command-container"),
        ("sudo docker run x", "command-container"),
        ("vllm serve 'm", "command-quotes"),
        ("vllm serve vllm serve m", "command-words"),
    ],
)
def test_a_line_that_cannot_be_meant_is_a_mistake(text: str, rule: str) -> None:
    assert rule in {mistake.rule for mistake in parse(text).mistakes if mistake.severity == "error"}


@pytest.mark.parametrize(
    ("text", "image", "rule", "message", "fix"),
    [
        ("serve org/m --port 1", IMAGE, "command-words", "takes 'serve' for the model", "leave out `serve`"),
        ("vllm serve serve org/m", None, "command-words", "takes 'serve' for the model", "leave out `serve`"),
        ("vllm serve vllm serve org/m", None, "command-words", "takes 'vllm'", "leave out `vllm serve`"),
        ("vllm org/m --port 1", None, "command-subcommand", "is missing", "begin the line with `vllm serve`"),
        ("vllm --model org/m", None, "command-subcommand", "is missing", "begin the line with `vllm serve`"),
        ("vllm chat org/m", None, "command-subcommand", "`vllm chat` starts no server", "`vllm serve`"),
        ("vllm srve org/m", None, "command-subcommand", "did you mean serve?", "`vllm serve`"),
        ("python -m vllm org/m", None, "command-subcommand", "is missing", "`python -m vllm serve`"),
        ("sh -c 'vllm org/m'", None, "command-subcommand", "is missing", "`vllm serve`"),
    ],
)
def test_a_subcommand_that_is_missing_wrong_or_there_twice_is_told_and_the_model_is_found(
    text: str, image: str | None, rule: str, message: str, fix: str
) -> None:
    command = parse(text, image=image)
    (mistake,) = command.mistakes
    assert (mistake.severity, mistake.rule, command.model) == ("error", rule, "org/m")
    assert message in mistake.message
    assert fix in (mistake.fix or "")


@pytest.mark.parametrize(
    "text", ["vllm serve m --api-key=sk-1 stray", "vllm serve m --api-kye k1 stray", "vllm serve m HF_TOKEN=stray"]
)
def test_a_stray_word_that_may_be_a_secret_is_not_shown(text: str) -> None:
    (mistake,) = (one for one in parse(text).mistakes if one.rule == "command-words")
    assert "stray" not in mistake.message


def test_the_served_names_are_those_that_clients_use() -> None:
    assert parse("vllm serve org/m --served-model-name a b").served_names == ("a", "b")
    assert parse("vllm serve org/m").served_names == ("org/m",)


@pytest.mark.parametrize(
    ("image", "serves"),
    [
        (IMAGE, True),
        ("docker.io/vllm/vllm-openai@sha256:ab", True),
        ("vllm/vllm-openai", True),
        ("nvcr.io/nvidia/vllm:26.04-py3", False),
        ("localhost:5000/vllm/vllm-openai:x", False),
        (None, False),
    ],
)
def test_which_images_start_vllm_serve_themselves(image: str | None, serves: bool) -> None:
    assert is_serving_image(image) is serves


def test_a_profile_changes_leaves_out_and_adds_flags() -> None:
    command = parse("A=1 vllm serve m --max_model_len=5 -tp 2 --served-model-name a b --no-enable-prefix-caching")
    changes = {
        "max-model-len": 9,
        "served_model_name": "none",
        "enable-prefix-caching": True,
        "speculative-config": {"a": 1},
    }
    changed = with_changes(command, changes)
    assert changed.flags == {
        "tensor-parallel-size": 2,
        "max-model-len": 9,
        "enable-prefix-caching": True,
        "speculative-config": {"a": 1},
    }
    assert (changed.model, changed.env, changed.program) == ("m", {"A": "1"}, ("vllm", "serve"))


def test_a_profile_changes_the_command_inside_a_shell() -> None:
    command = parse("bash -c 'pip install vllm[audio] && vllm serve m --port 1; echo done'", image=IMAGE)
    changed = with_changes(command, {"port": 2})
    assert changed.words == ("bash", "-c", "pip install vllm[audio] && vllm serve m --port 2 ; echo done")


@pytest.mark.parametrize(
    ("script", "changed"),
    [
        ("vllm serve m 2>&1 | tee /log", "vllm serve m --port 2 2>&1 | tee /log"),
        ("vllm serve m >/log & wait", "vllm serve m --port 2 >/log & wait"),
        (
            """vllm serve m --hf-overrides '{"a;b": 1}'; x""",
            """vllm serve m --hf-overrides '{"a;b": 1}' --port 2 ; x""",
        ),
    ],
)
def test_what_surrounds_the_command_in_a_shell_stays(script: str, changed: str) -> None:
    assert with_changes(parse(shlex.join(["sh", "-c", script])), {"port": 2}).words[2] == changed


@pytest.mark.parametrize("reference", ["$LEN", "${LEN}", "${LEN:-9}"])
def test_a_reference_inside_a_shell_is_still_one_with_a_profile(reference: str) -> None:
    command = parse(shlex.join(["sh", "-c", f"vllm serve m --max-model-len {reference}"]))
    script = with_changes(command, {"port": 2}).words[2].replace("vllm serve", "echo")
    done = subprocess.run(
        ["sh", "-c", script], env={"LEN": "9"}, capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "m --max-model-len 9 --port 2\n"


def test_a_profile_sets_members_of_a_flag_by_their_own_names() -> None:
    command = parse("vllm serve m --compilation-config.cudagraph_mode FULL")
    changes = {"compilation_config.cudagraph_mode": "NONE", "compilation-config.use_inductor": False}
    changed = with_changes(command, changes)
    assert changed.flags == {"compilation-config": {"cudagraph_mode": "NONE", "use_inductor": False}}
    assert not changed.mistakes


@given(
    st.dictionaries(
        st.sampled_from(
            [flag.name for flag in vllm_flags().flags.values() if flag.kind == "integer" and not flag.choices]
        ),
        st.integers(0, 10**6),
        max_size=5,
    )
)
def test_what_a_profile_sets_is_what_is_read(changes: dict[str, int]) -> None:
    command = parse("vllm serve m --port 5 --max-num-seqs 4 --enable-prefix-caching")
    changed = {name: value for name, value in with_changes(command, changes).flags.items() if name in changes}
    single = {name: [value] if vllm_flags().flags[name].many else value for name, value in changes.items()}
    assert changed == single


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    parse(text)
    parse(text, image=IMAGE)


@pytest.mark.parametrize(
    "text",
    [
        "/launch.sh vllm serve org/m --port 8001",
        "/bin/bash /scripts/with-patches.sh vllm serve org/m --port 8001",
        "bash -c 'exec \"$@\"' -- vllm serve org/m --port 8001",
        "tini -- python3 -m vllm.entrypoints.openai.api_server --model org/m --port 8001",
        "bash -c 'cd /x\npip install y \\\n z\nexec vllm serve org/m --port 8001'",
    ],
)
def test_what_a_wrapper_or_a_script_of_several_lines_starts(text: str) -> None:
    command = parse(text, image="example/node:1")
    assert (command.is_vllm, command.model, command.port, command.mistakes) == (True, "org/m", 8001, ())
    assert with_changes(command, {"port": 8002}).port == 8002
    assert with_changes(command, {"port": 8002}).words[0] == command.words[0]


def test_an_image_whose_entrypoint_is_vllm_takes_the_subcommand() -> None:
    command = parse("serve org/m --port 8001", image="example/vllm:1", own="vllm")
    assert (command.program, command.model, command.mistakes) == (("vllm", "serve"), "org/m", ())
