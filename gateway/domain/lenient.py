"""Values that servers read as another type: vLLM takes 1 and "true" for a bool, "2" and 2.0 for a number. Pure."""

from __future__ import annotations

from typing import Any

_ON, _OFF = ("true", "1", "1.0", "yes", "on", "y", "t"), ("false", "0", "0.0", "no", "off", "n", "f")
_SWITCHES = {**dict.fromkeys(_ON, True), **dict.fromkeys(_OFF, False)}  # as pydantic reads a bool
_DIGITS_MOST = 20


def as_switch(value: Any) -> bool | None:
    """The bool that servers read from this value; None = it is none."""
    if isinstance(value, bool):
        return value
    return _SWITCHES.get(str(value).lower()) if isinstance(value, (str, int, float)) else None


def as_number(value: Any) -> int | None:
    """The whole number that servers read from this value; None = it is none."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) <= _DIGITS_MOST:
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else None
