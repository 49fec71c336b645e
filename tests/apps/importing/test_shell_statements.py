"""A script's commands are read as a shell reads them; whatever stands in it, what comes out is loaded."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.apps.importing.import_command import STARTS
from gateway.apps.importing.output import render, verify_round_trip
from gateway.config.problems import ConfigError
from tests.apps.importing.support_shell import commands_of


def words(text: str) -> list[list[str]]:
    """The commands of a script, each as its words."""
    return [words for words, _ in commands_of(text)]


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("a b; c && d || e | f & g", [["a", "b"], ["c"], ["d"], ["e"], ["f"], ["g"]]),
        ("a 'b c' \"d 'e'\" f\\ g", [["a", "b c", "d 'e'", "f g"]]),
        ("a \\\n  b \\\n  c\nd", [["a", "b", "c"], ["d"]]),
        ("a \\  \n  b", [["a", "b"]]),
        ("a # b\n# c\nd e#f", [["a"], ["d", "e#f"]]),
        ("a > b 2>&1 c <d >>e &>f g", [["a", "c", "g"]]),
        ("a <MODEL-1> b <c >d", [["a", "<MODEL-1>", "b"]]),
        ("cat <<EOF\nx y\nEOF\nb", [["cat"], ["b"]]),
        ("cat <<-'E' > f\n\tx\n\tE\nb", [["cat"], ["b"]]),
        ('a \'{"x":1}\' "{\\"y\\":2}"', [["a", '{"x":1}', '{"y":2}']]),
        ("a '$B' \\$C --d $D --e=${E} \"${F:-g h}\"", [["a", "$B", "$C", "--d", "${D}", "--e=${E}", "g h"]]),
        ("a -b $(c d; e) -f `g h`", [["a", "-b", "$(c d; e)", "-f", "`g h`"]]),
        ("A=(b 'c d'\n e) ; f \"${A[@]}\" $A", [["f", "b", "c d", "e", "b"]]),
        ("a ''", [["a", ""]]),
        ("a 'b", []),
        ("", []),
        # what is not set is no word, what a script sets is split where it stands without quotes
        ("a $X b ${X} ${X:-} ${X-} ${X:+c d} \"$@\" \"${X[@]}\" ${X[@]+\"${X[@]}\"}", [["a", "b"]]),
        ("X='b  c'; E=; a $X \"$X\" $E x$X \"$E\"", [["a", "b", "c", "b  c", "xb", "c", ""]]),
        ("X=b; a ${X:+-v \"$X:/x y\"} ${X:-c} ${Y:-\"c d\"} ${Y-e f}", [["a", "-v", "b:/x y", "b", "c d", "e", "f"]]),
        ("a ${X:+-e \"X=$X\"} ${X:+--c}", [["a", "-e", "X=${X}"]]),
        ("X=org/model-v1.tar; a ${X##*/} ${X%%.*} ${X%.tar} ${X#org/} ${X/o/0} ${X//r/R} ${X^^}",
         [["a", "model-v1.tar", "org/model-v1", "org/model-v1", "model-v1.tar", "0rg/model-v1.tar", "oRg/model-v1.taR",
           "ORG/MODEL-V1.TAR"]]),
        ("a $'b\\n\\'c'", [["a", "b\n'c"]]),
        # statements
        ("X=1; if [ \"$X\" = 1 ]; then a; else b; fi; [[ $X == 2 ]] && c || d", [["a"], ["d"]]),
        ("X=b; case $X in a) x;; b|c) y;; *) z;; esac", [["y"]]),
        ("if [ -n \"$U\" ]; then a; else b; fi; c", [["a"], ["b"], ["c"]]),
        ("f() { local V=$1; a \"$V\" \"${@:2}\" $# ; }\nf b", [["f", "b"], ["a", "b", "$#"]]),
        ("f() { a \"$2\" \"$@\"; }\nf b 'c d'", [["f", "b", "c d"], ["a", "c d", "b", "c d"]]),
        ("f() { a; return; b; }\nf; c; exit; d", [["f"], ["a"], ["return"], ["c"], ["exit"]]),
        ("f() { a; }\n\"$1\"", [["${1}"], ["a"]]),
        ("X=1; (X=2; a $X); a $X; exec b; c", [["a", "2"], ["a", "1"], ["exec", "b"]]),
        ("X='$(a'; eval \"b 'c d'\"", [["eval", "b 'c d'"], ["b", "c d"]]),
        ("J=$(cat <<'E'\n{\"x\": 1}\nE\n)\na \"$J\"", [["a", '{"x": 1}']]),
        ("bash <<E\na b\nE\nbash -c 'c $1' x y", [["bash"], ["a", "b"], ["bash", "-c", "c $1", "x", "y"], ["c", "y"]]),
        ("A=1 B=$C a; b $A", [["a"], ["b"]]),
    ],
)  # fmt: skip
def test_commands(text: str, commands: list[list[str]]) -> None:
    assert words(text) == commands


def test_every_command_knows_its_line() -> None:
    assert commands_of("a \\\n b 'c\nd' \\\n e\nf") == [(["a", "b", "c\nd", "e"], 1), (["f"], 5)]


def test_text_that_is_added_again_and_again_stays_small() -> None:
    piece = "x" * 4000
    ((found, _),) = commands_of(f"A+={piece}\n" * 20 + "a $A")
    assert len(found[1]) == 64 * 1024


SAFE = st.text(st.characters(blacklist_categories=["Cs", "Co", "Cc"]), min_size=1)


@given(st.lists(st.lists(SAFE, min_size=1), min_size=1))
def test_quoted_words_are_read_as_they_were(commands: list[list[str]]) -> None:
    text = "\n".join(shlex.join(["a", *command]) for command in commands)
    kept = [[word.replace("${", "$${") for word in command] for command in commands]  # as a launch block writes it
    assert words(text) == [["a", *command] for command in kept]


@pytest.mark.timeout(60)
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
        "a | " * 200_000,
        "a <<< " * 100_000,
        "{ " * 100_000 + "a",
        "{ " * 1_000 + "a" + "; }" * 1_000,
        "f() { f; }\nf",
        "a ${X:-" * 10_000 + "}" * 10_000,
        "X=" + "a" * 60_000 + "\na ${X%%b*} ${X//a/aa}",
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
        assert kind not in ("shell", "systemd")
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
        assert [command for command in words(path.read_text()) if command[0] in ("vllm", "docker", "exec")]
