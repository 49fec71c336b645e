"""The flags of `vllm serve`: names, types and choices, as data of the versions that were read (vllm_flags.json)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

OPPOSITES_FROM = "0.33"  # version of vLLM
Kind = Literal["switch", "integer", "number", "count", "count or auto", "text", "json", "json or text"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `name`, and other names that it has `also`, without dashes. `count`: an integer that may be written 8k
    or 8K. `folded`: capitals and dashes of its value are read as small letters and underscores. `negated`: a switch
    that has a --no- form; `opposite`: the name that switches it off too, from OPPOSITES_FROM on
    ("disable-prefix-caching"). `many`: takes one or several words; `repeated`: each time it is written adds a value;
    `optional`: takes one word or none. `least`, `above`, `most`, `below`: the numbers that vLLM takes (`auto` is none
    of them)."""

    name: str
    kind: Kind
    short: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    choices: tuple[str | int, ...] = ()
    folded: bool = False
    negated: bool = False
    opposite: str = ""
    many: bool = False
    repeated: bool = False
    optional: bool = False
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    @property
    def range(self) -> str:
        """The numbers that it takes, in words; empty = any."""
        limits = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if limit is not None)

    def takes(self, number: float) -> bool:
        """Whether the number is in its range."""
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (self.below is None or number < self.below)
        )


@dataclass(frozen=True)
class FlagTable:
    """The flags of one version of vLLM. `by_option`: every way to write a flag -> the flag, and whether that way
    switches it off."""

    version: str
    flags: Mapping[str, Flag]
    by_option: Mapping[str, tuple[Flag, bool]]


@cache
def vllm_flags() -> FlagTable:
    """The table of the version that was read last."""
    data = json.loads(Path(__file__).with_name("vllm_flags.json").read_text(encoding="utf-8"))
    flags = {}
    options: dict[str, tuple[Flag, bool]] = {}
    for row in data["flags"]:
        flag = Flag(**{**row, **{key: tuple(row.get(key, ())) for key in ("short", "also", "choices")}})
        flags[flag.name] = flag
        options[f"--{flag.name}"] = (flag, False)
        options |= dict.fromkeys((*flag.short, *(f"--{name}" for name in flag.also)), (flag, False))
        if flag.negated:
            options[f"--no-{flag.name}"] = (flag, True)
        if flag.opposite:
            options[f"--{flag.opposite}"] = (flag, True)
    return FlagTable(data["version"], flags, options)


def flag_names() -> tuple[str, ...]:
    """The full names of vLLM's flags, without dashes: "max-model-len"."""
    return tuple(vllm_flags().flags)


def one_typo_away(word: str, names: Iterable[str]) -> str | None:
    """The first of `names` that becomes `word` by one letter more, less, other or two neighbours swapped."""
    return next((name for name in names if name != word and _is_one_typo(word, name)), None)


def _is_one_typo(a: str, b: str) -> bool:
    if abs(len(a) - len(b)) > 1:
        return False
    if len(a) > len(b):
        a, b = b, a
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    if len(a) < len(b):
        return a[start:] == b[start + 1 :]
    swapped = a[start : start + 2] == b[start : start + 2][::-1] and a[start + 2 :] == b[start + 2 :]
    return swapped or a[start + 1 :] == b[start + 1 :]
