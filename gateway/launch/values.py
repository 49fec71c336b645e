"""The value of one flag, read as vLLM reads it."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any

from gateway.launch.flags import Flag

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
    value = _READERS[flag.kind](flag, text)
    if flag.choices:
        value = _folded(value) if flag.folded else value
        if value not in flag.choices:
            raise _wrong_choice(flag, text, value)
    return value


def _folded(value: Any) -> Any:
    return value.lower().replace("-", "_") if isinstance(value, str) else value


def _wrong_choice(flag: Flag, text: str, value: Any) -> ValueMistake:
    choices = [str(choice) for choice in flag.choices]
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.6)
    return ValueMistake("flag-choice", f"'{_shown(text)}' is none of {', '.join(choices)}", near[0] if near else None)


def _text(flag: Flag, text: str) -> str:
    return text


def _integer(flag: Flag, text: str) -> int:
    if not re.fullmatch(rf"[+-]?\d{{1,{_MOST_DIGITS}}}", text.strip(), re.ASCII):
        raise ValueMistake("flag-value", f"'{_shown(text)}' is not a whole number", _digits(text))
    return int(text)


def _number(flag: Flag, text: str) -> float:
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


def _count(flag: Flag, text: str) -> int:
    text = text.strip()
    match = _COUNT.fullmatch(text) if text.isascii() and len(text) <= _MOST_DIGITS else None
    if match is None:
        return _integer(flag, text)
    number, unit = match[1], match[2]
    if unit.islower():
        return int(float(number) * float(1000 ** _POWERS[unit]))
    if "." in number:
        fix = f"{number}{unit.lower()}"
        raise ValueMistake("flag-value", f"'{_shown(text)}': {unit} counts in powers of 1024, without decimals", fix)
    return int(number) * int(1024 ** _POWERS[unit.lower()])


def _count_or_auto(flag: Flag, text: str) -> int:
    return -1 if text.strip().lower() in ("-1", "auto") else _count(flag, text)


def _json(flag: Flag, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if is_reference(text):
        return text
    raise ValueMistake("flag-json", f"'{_shown(text)}' is not JSON: a shell has eaten its quotes?", _requoted(text))


def _json_or_text(flag: Flag, text: str) -> Any:
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


_READERS = {
    "text": _text,
    "integer": _integer,
    "number": _number,
    "count": _count,
    "count or auto": _count_or_auto,
    "json": _json,
    "json or text": _json_or_text,
}
