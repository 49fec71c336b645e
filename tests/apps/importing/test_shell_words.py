"""The words that the importer reads in a script are those that a real bash gives to the program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.apps.importing.support_shell import commands_of

FAKE = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done >> "$PRINTED"
printf '\\1\\0' >> "$PRINTED"
"""
IMAGE = "vllm/vllm-openai:v0.23.0"

# Names that every script sets, and some that none sets.
SET, ARRAYS, UNSET = ("MODEL", "LEN", "OPTS", "EMPTY"), ("ARGS", "NONE"), ("U1", "U2", "U3")
HEAD = """MODEL=org/model-v1.tar
LEN="4096"
OPTS='--trust-remote-code   --seed 7'
EMPTY=
ARGS=(--one "two words" '$three' "")
NONE=()
"""
_scalar = st.sampled_from(SET)
_literal = st.sampled_from(
    [
        "a",
        "--flag",
        "'single $MODEL'",
        '"double"',
        "a\\ b",
        "x=1",
        "'{\"a\": [1, 2]}'",
        "$'tab\\there'",
        '"a\\"b"',
        "''",
        "~x",
    ]
)
_braced = st.tuples(
    st.sampled_from((*SET, *UNSET)),
    st.sampled_from([":-", "-", ":+", "+"]),
    st.sampled_from(["", "d", '"d e"', "d e", "'f g' h", '"$MODEL"', "$OPTS", "-v $LEN:/x"]),
).map(lambda parts: "${" + "".join(parts) + "}")
_changes = st.sampled_from(
    ["${MODEL##*/}", "${MODEL%.tar}", "${MODEL%%.*}", "${MODEL#org}", "${MODEL//o/0}", "${MODEL/org/x}", "${LEN^^}"]
)
_array = st.sampled_from(
    [
        *('"${ARGS[@]}"', "${ARGS[@]}", '"${NONE[@]}"', '${ARGS[@]+"${ARGS[@]}"}', '${NONE[@]+"${NONE[@]}"}'),
        *('"${ARGS[1]}"', '${U1[@]+"${U1[@]}"}', '"${ARGS[*]}"', '"${U2[@]}"', "$ARGS"),
    ]
)
_expansion = st.one_of(
    st.sampled_from((*SET, *UNSET)).map("${}".format), _scalar.map("${{{}}}".format), _braced, _changes
)
_output = st.sampled_from(
    ["$(echo a b)", "\"$(echo 'a  b')\"", "$(cat <<'E'\n{\"x\": 1}\nE\n)", '"$(cat <<E\nm $MODEL\nE\n)"']
)
_piece = st.one_of(_expansion, st.sampled_from(["a", ":", "/x", "'q r'", '"s"', "\\$"]))
_in_quotes = st.lists(
    st.one_of(_scalar.map("${{{}}}".format), st.sampled_from([" b ", "c", "'", '\\"', "\\$", ": "])),
    min_size=1, max_size=4,
).map(lambda parts: '"' + "".join(parts) + '"')  # fmt: skip
WORD = st.one_of(
    _literal, _expansion, _array, _in_quotes, _output, st.lists(_piece, min_size=2, max_size=3).map("".join)
)
SPACE = st.sampled_from([" ", "  ", " \\\n  ", "\t"])


@st.composite
def command(draw: st.DrawFn) -> str:
    words = draw(st.lists(WORD, max_size=6))
    return "docker run" + "".join(draw(SPACE) + word for word in [*words, IMAGE])


def _statement(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(inner, min_size=1, max_size=2).map("\n".join)
    test = st.sampled_from(
        ['[ -n "$MODEL" ]', "[[ -z $EMPTY ]]", '[ "$LEN" = 4096 ]', "[[ $LEN != 4096 ]]", "true", "! true"]
    )
    return st.one_of(
        st.tuples(test, body, body).map(lambda p: f"if {p[0]}; then\n{p[1]}\nelse\n{p[2]}\nfi"),
        st.tuples(test, inner).map(lambda p: f"{p[0]} && {p[1]}"),
        st.tuples(test, inner).map(lambda p: f"{p[0]} || {p[1]}"),
        st.tuples(st.sampled_from(["$LEN", "$MODEL", "x"]), body, body).map(
            lambda p: f'case "{p[0]}" in\n4096|z)\n{p[1]}\n;;\norg*)\n{p[2]}\n;;\n*) true ;;\nesac'
        ),
        st.tuples(st.integers(0, 9), body, WORD).map(
            lambda p: f"f{p[0]}() {{\n{p[1]}\ndocker run $1 \"$@\"\n}}\nf{p[0]} {p[2]} 'g h'"
        ),
        body.map(lambda text: f"(\nMODEL=other\n{text}\n)"),
        body.map(lambda text: f"{{\n{text}\n}}"),
        inner.map(lambda text: f"{text} > /dev/null 2>&1" if text.startswith("docker") else text),
        inner.map(lambda text: f"cat > /dev/null <<'E'\ndocker run not me\nE\n{text}"),
        inner.map(lambda text: f"exec {text}" if text.startswith("docker") else text),
        st.lists(WORD, min_size=1, max_size=3).map(lambda words: f"ARGS+=({' '.join(words)})"),
        WORD.map(lambda word: f"OPTS={word}"),
        WORD.map(lambda word: f"export OTHER={word}"),
        st.just("bash -c 'set -e\ndocker run a \\\n b\ndocker run \"$0\" $1' x 'y z'"),
        st.just("eval \"docker run $OPTS 'q r'\""),
        st.just("bash <<'E'\ndocker run in here\nE"),
    )  # fmt: skip


SCRIPT = st.lists(st.recursive(command(), _statement, max_leaves=5), min_size=1, max_size=4).map("\n".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bin")
    (path / "docker").write_text(FAKE)
    (path / "docker").chmod(0o755)
    return path


def printed(folder: Path, script: str) -> list[list[str]] | None:
    """The words of every `docker` that bash runs; None where bash stops with an error."""
    out = folder / "printed"
    out.write_text("")
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "PRINTED": str(out), "HOME": "/root"}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=20, check=False)
    if "syntax error" in done.stderr:
        return None
    return [one.split("\0")[:-1] for one in out.read_text().split("\1\0")[:-1]]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=SCRIPT)
def test_the_words_are_those_of_a_real_bash(folder: Path, body: str) -> None:
    script = HEAD + body
    expected = printed(folder, script)
    if expected is None:
        return
    assert [_as_set(words) for words, _ in commands_of(script) if "docker" in words[:2]] == expected


def _as_set(words: list[str]) -> list[str]:
    """The words behind `docker`, as they are where the variables that the script does not set have no value."""
    found = [(word, re.sub(r"\$\{\w+\}", "", word)) for word in words[words.index("docker") + 1 :]]
    return [without for word, without in found if without or not word]
