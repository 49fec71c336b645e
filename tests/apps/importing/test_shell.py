"""A script's commands are read as a shell reads them; whatever stands in it, what comes out is loaded."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.apps.importing.formats import STARTS
from gateway.apps.importing.output import verify_round_trip
from gateway.apps.importing.render import render
from gateway.apps.importing.shell import Variables, read_commands
from gateway.config.problems import ConfigError


def words(text: str) -> list[list[str]]:
    variables = Variables()
    return [[word.text for word in variables.words(command)] for command in read_commands(text)]


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("a b; c && d || e | f & g", [["a", "b"], ["c"], ["d"], ["e"], ["f"], ["g"]]),
        ("a 'b c' \"d 'e'\" f\\ g", [["a", "b c", "d 'e'", "f g"]]),
        ("a \\\n  b \\\n  c\nd", [["a", "b", "c"], ["d"]]),
        ("a \\  \n  b", [["a", "b"]]),
        ("a # b\n# c\nd#e", [["a"], ["d#e"]]),
        ("a > b 2>&1 c <d >>e &>f g", [["a", "c", "g"]]),
        ("a <MODEL-1> b <c >d", [["a", "<MODEL-1>", "b"]]),
        ("cat <<EOF\nx y\nEOF\nb", [["cat"], ["b"]]),
        ("cat <<-'E' > f\n\tx\n\tE\nb", [["cat"], ["b"]]),
        ('a \'{"x":1}\' "{\\"y\\":2}"', [["a", '{"x":1}', '{"y":2}']]),
        ("a '$B' \\$C $D ${E} \"${F:-g h}\"", [["a", "$B", "$C", "${D}", "${E}", "g h"]]),
        ("a $(b c; d) `e f`", [["a", "$(b c; d)", "`e f`"]]),
        ("A=(b 'c d'\n e) ; f", [["A=(", "b", "c d", "e", ")"], ["f"]]),
        ("a ''", [["a", ""]]),
        ("a 'b", [["a", "b"]]),
        ("", []),
    ],
)
def test_commands(text: str, commands: list[list[str]]) -> None:
    assert words(text) == commands


def test_every_word_knows_its_line() -> None:
    (command,) = read_commands("a \\\n b 'c\nd' \\\n e")
    assert [(word.text, word.line) for word in command] == [("a", 1), ("b", 2), ("c\nd", 2), ("e", 4)]


def test_text_that_is_added_again_and_again_stays_small() -> None:
    piece = "x" * 1000
    variables = Variables()
    for command in read_commands(f"A+={piece}\n" * 200):
        variables.assign(command)
    assert len(variables.values["A"][0]) == 64 * 1024


@given(st.lists(st.lists(st.text(st.characters(blacklist_categories=["Cs", "Co"]), min_size=1), min_size=1)))
def test_quoted_words_are_read_as_they_were(commands: list[list[str]]) -> None:
    text = "\n".join(shlex.join(command) for command in commands)
    assert words(text) == [list(command) for command in commands]


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "text",
    [
        "A=xx\n" + "A=$A$A\n" * 60 + "vllm serve $A",
        "A=(x x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + 'vllm serve "${A[@]}"',
        "$(" * 200_000,
        "cat <<A\n" * 20_000,
        "# c\n" * 200_000,
        "A=(\n" * 50_000,
        "'" * 200_001,
    ],
)
def test_a_script_that_would_grow_or_take_long_does_not(text: str) -> None:
    STARTS["shell"](text, "x.sh", None)


WORD_LIST = (
    "docker run vllm serve m --port 8001 -p 8001:8000 -e A=1 HF_TOKEN=hf_abcdefgh vllm/vllm-openai:v1 export A=$B ' \""
    " $( ) { | <<E --entrypoint bash -c --headless --nnodes 2 --api-key é -v /a:/b # ${X:-y} ${ %i Environment="
)
LINES = [
    "\n",
    "\\\n",
    "\t",
    "\0",
    "\x1b",
    "[Service]\n",
    "\nExecStart=",
    "services:\n",
    "  a:\n",
    "    image: vllm/x\n",
]
WORDS = st.sampled_from([*WORD_LIST.split(), *LINES])
ANY = st.one_of(st.lists(WORDS, max_size=25).map(" ".join), st.text(max_size=60))


def is_loaded(kind: str, text: str) -> None:
    try:
        draft = STARTS[kind](text, "source", None)
    except ConfigError:
        assert kind == "compose"
        return
    if draft.backends:
        written = render(draft)
        assert "hf_abcdefgh" not in written + str(draft.notes)
        verify_round_trip(written, draft, {})


@settings(max_examples=200)
@given(ANY)
def test_whatever_stands_in_a_script(text: str) -> None:
    is_loaded("shell", text)


@settings(max_examples=200)
@given(ANY, ANY, ANY)
def test_whatever_stands_around_what_starts_an_engine(before: str, flags: str, behind: str) -> None:
    is_loaded("shell", f"{before}\ndocker run {flags} vllm/vllm-openai:v1 m {behind}")
    is_loaded("shell", f"{before}\nA=1 vllm serve {behind}")


@settings(max_examples=100)
@given(ANY.map(lambda text: f"[Service]\nExecStart={text}"))
def test_whatever_stands_in_a_unit(text: str) -> None:
    is_loaded("systemd", text)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
KEYS = [
    "command",
    "entrypoint",
    "environment",
    "volumes",
    "ports",
    "ulimits",
    "deploy",
    "gpus",
    "env_file",
    "ipc",
    "odd",
]
SERVICES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)


@settings(max_examples=150)
@given(SERVICES, st.text(max_size=8))
def test_whatever_stands_in_a_compose_file(service: dict[str, Any], name: str) -> None:
    import io

    from ruamel.yaml import YAML

    out = io.StringIO()
    YAML().dump({"services": {name: {"image": "vllm/vllm-openai:v1", "command": "m --port 8001", **service}}}, out)
    is_loaded("compose", out.getvalue())


def test_the_files_of_the_tests_are_shell(tmp_path: Path) -> None:
    from tests.apps.importing.support import DATA

    for path in DATA.glob("*.sh"):
        assert [command for command in read_commands(path.read_text()) if command[0].text in ("vllm", "docker")]
