"""The flags of `vllm serve`: names, types and choices, as data of the versions that were read (vllm_flags.json), and
the value of one flag, read as vLLM reads it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

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
    data = msgspec.json.decode(Path(__file__).with_name("vllm_flags.json").read_bytes())
    flags = {flag.name: flag for flag in msgspec.convert(data["flags"], list[Flag])}
    options: dict[str, tuple[Flag, bool]] = {}
    for flag in flags.values():
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


# -- values -----------------------------------------------------------------------------------------------------------

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_REFERENCE = re.compile(r"\$(\{|[A-Za-z_(])")
_SHOWN = 80  # characters of a value in a message
_MOST_DIGITS = 18
_BARE_WORD = re.compile(r"([{,\[:]\s*)([A-Za-z_][\w./-]*)(?=\s*[:,}\]])")


class ValueMistake(Exception):
    """A value that vLLM would refuse. `rule` names the kind of mistake, `fix` is the value to write instead."""

    def __init__(self, rule: str, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.rule, self.message, self.fix = rule, message, fix


def is_reference(text: str) -> bool:
    """Whether the value is only known where the engine is started: it holds `${NAME}` or `$NAME`."""
    return _REFERENCE.search(text) is not None


def read_value(flag: Flag, text: str) -> Any:
    """The typed value. Text with a reference stays as it is. Raises `ValueMistake`."""
    if is_reference(text) and flag.kind not in ("json", "json or text"):
        return text
    if text == "None":  # vLLM's word for a value that is not set
        return None
    value = _READERS[flag.kind](text)
    if flag.folded and isinstance(value, str):
        value = value.lower().replace("-", "_")
    if flag.choices and value not in flag.choices:
        choices = [str(choice) for choice in flag.choices]
        near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.6)
        message = f"'{_shown(text)}' is none of {', '.join(choices)}"
        raise ValueMistake("flag-choice", message, near[0] if near else None)
    return value


def _integer(text: str) -> int:
    if not re.fullmatch(rf"[+-]?\d{{1,{_MOST_DIGITS}}}", text.strip(), re.ASCII):
        raise ValueMistake("flag-value", f"'{_shown(text)}' is not a whole number", _digits(text))
    return int(text)


def _number(text: str) -> float:
    try:
        number = float(text) if text.isascii() else None
    except ValueError:
        number = None
    if number is None or number != number or abs(number) == float("inf"):
        raise ValueMistake("flag-value", f"'{_shown(text)}' is not a number", _with_a_point(text))
    return number


def _with_a_point(text: str) -> str | None:
    """The number with a point instead of its comma; None if that is no number either."""
    text = text.strip().replace(",", ".")
    return text if re.fullmatch(r"[+-]?\d+\.\d+", text, re.ASCII) else None


def _count(text: str) -> int:
    text = text.strip()
    match = _COUNT.fullmatch(text) if text.isascii() and len(text) <= _MOST_DIGITS else None
    if match is None:
        return _integer(text)
    number, unit = match[1], match[2]
    if unit.islower():
        return int(float(number) * float(1000 ** _POWERS[unit]))
    if "." in number:
        fix = f"{number}{unit.lower()}"
        raise ValueMistake("flag-value", f"'{_shown(text)}': {unit} counts in powers of 1024, without decimals", fix)
    return int(number) * int(1024 ** _POWERS[unit.lower()])


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if is_reference(text):
        return text
    raise ValueMistake("flag-json", f"'{_shown(text)}' is not JSON: a shell has eaten its quotes?", _requoted(text))


def json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _requoted(text: str) -> str | None:
    """The JSON with quotes around its bare words again, in quotes for a shell; None if that is no JSON either."""
    found = text
    for _ in range(2):  # neighbours share their comma, so one pass leaves every second word
        found = _BARE_WORD.sub(lambda m: m[0] if m[2] in ("true", "false", "null") else f'{m[1]}"{m[2]}"', found)
    try:
        json.loads(found)
    except (ValueError, RecursionError):
        return None
    return f"'{found}'"


def _digits(text: str) -> str | None:
    digits = re.sub(r"[,_ ]", "", text)
    return digits if digits.isascii() and digits.isdigit() else None


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


_READERS: Mapping[str, Callable[[str], Any]] = {
    "text": str,
    "integer": _integer,
    "number": _number,
    "count": _count,
    "count or auto": lambda text: -1 if text.strip().lower() in ("-1", "auto") else _count(text),
    "json": _json,
    "json or text": json_or_text,
}
