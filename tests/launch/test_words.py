"""The words of a command are those that a shell gives to its program."""

from __future__ import annotations

import json
import shlex
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.launch.words import split

PRINT = "import json, sys; print(json.dumps(sys.argv[1:]))"


def by_bash(text: str) -> list[str]:
    """What bash makes of the words."""
    script = f"python3 -c {shlex.quote(PRINT)} {text}"
    done = subprocess.run(["bash", "-f", "-c", script], capture_output=True, text=True, timeout=30, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


LINES = [
    "a b  c",
    "a \\\n  b",
    '--x=\'{"a": "b c"}\' d',
    "'x \\ y' z",
    "'two\nlines' z",
    "'a # b' c # d",
    "a#b #c\n",
    'a "b \\" c \\\\ d \\$ e \\n" f',
    "a\\ b c",
    "'' \"\" x",
    "--y=\"a 'b' c\"'d'",
    "a '\n# no comment\n' b",
]


@pytest.mark.parametrize("text", LINES)
def test_the_words_are_those_of_bash(text: str) -> None:
    assert list(split(text).words) == by_bash(text.rstrip("\n"))


def test_lines_that_yaml_has_joined_are_read_as_they_were() -> None:
    assert split("vllm serve m \\ --port 8001 \\ -tp 2").words == ("vllm", "serve", "m", "--port", "8001", "-tp", "2")


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a 'b\" c"])
def test_a_quote_without_its_end_is_a_problem(text: str) -> None:
    assert split(text).problem is not None


@settings(max_examples=40)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20), max_size=5))
def test_quoted_words_come_back_as_they_were(words: list[str]) -> None:
    assert list(split(shlex.join(words)).words) == words


def test_a_long_word_takes_no_longer_than_its_length() -> None:
    began = time.process_time()
    assert split("a" * 500_000).words == ("a" * 500_000,)
    assert time.process_time() - began < 10.0  # one that copies the word with every letter takes minutes
