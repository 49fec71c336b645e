"""Suggestions for unknown words: by edit distance, and by the words that other programs use (words.toml)."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from gateway.launch.flags import flag_names

_WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
TOOL_PARSERS = frozenset(_WORDS["tool_parsers"])
REASONING_PARSERS = frozenset(_WORDS["reasoning_parsers"])
FOREIGN = {word: key for key, words in _WORDS["foreign"].items() for word in words}
EXPLAINED: dict[str, str] = _WORDS["explained"]

_MOST_LISTED = 12
_NEAR = 0.6  # how alike two words are that may be the same one, misspelt
_VERY_NEAR = 0.85  # for a word of another program: many short words are near to one of so many


def closest(word: str, choices: Iterable[str], cutoff: float = _NEAR) -> str | None:
    """The one of `choices` that `word` was probably meant to be, or None."""
    by_folded = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(word.lower(), by_folded, n=1, cutoff=cutoff)
    return by_folded[found[0]] if found else None


def did_you_mean(word: str, choices: Iterable[str]) -> str | None:
    found = closest(word, choices)
    return f"did you mean '{found}'?" if found else None


def listed(names: Iterable[str]) -> str | None:
    """The names that there are, or the first of many."""
    first = list(islice(names, _MOST_LISTED))
    return "there are " + ", ".join(first) if first else None


def for_unknown_key(key: str, section: str, siblings: Iterable[str], elsewhere: Iterable[str]) -> str | None:
    """A hint for the unknown `key` in `section` (`backends.*`).

    `siblings` are the keys allowed there, `elsewhere` all dotted paths of the file; both are looked through.
    """
    siblings = list(siblings)
    word = key.lstrip("-").replace("-", "_").lower()
    if word in siblings:
        return f"did you mean '{word}'?"
    if word in EXPLAINED:
        return EXPLAINED[word]
    if word in FOREIGN:
        return _point_to(FOREIGN[word], section)
    if (flag := word.replace("_", "-")) in flag_names():
        return f"a launch flag of vLLM: write --{flag} in {'' if section else 'backends.NAME.'}launch.command"
    if near := closest(word, siblings):
        return f"did you mean '{near}'?"
    if places := [path for path in elsewhere if path.rpartition(".")[2] == word]:
        return f"it belongs under {places[0].rpartition('.')[0] or 'the top level'}"
    if near := closest(word, FOREIGN, _VERY_NEAR):
        return _point_to(FOREIGN[near], section)
    return "allowed here: " + ", ".join(siblings) if siblings else None


def _point_to(target: str, section: str) -> str:
    parent, _, name = target.rpartition(".")
    if parent == section:
        return f"did you mean '{name}'?"
    if section and target.startswith(section + "."):
        return f"did you mean '{target.removeprefix(section + '.')}'?"
    return f"here that is {target}"
