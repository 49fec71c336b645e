"""Reads the JSON of `/status`, in which any field may be missing or of another type, and formats its figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

LARGEST = 10**18

Fields = Mapping[str, Any]


def ago(seconds: float) -> str:
    """`8 s`, `12 min`, `3 h`, `5 d`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size or (unit == "min" and seconds >= size):
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def short(seconds: Any) -> str:
    """Seconds as text: `170ms`, `2.6s`."""
    if not number(seconds):
        return ""
    return f"{seconds * 1000:.0f}ms" if seconds < 0.9995 else f"{seconds:.1f}s"


def figure(value: Any, form: str) -> str:
    return f"{value:{form}}" if number(value) else ""


def one_line(text: Any) -> str:
    return " ".join(str(text).split())


def number(value: Any) -> TypeGuard[float]:
    """A number that can be shown and compared. Excludes bool, a subclass of int."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def strings(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def count(value: Any) -> float:
    return value if number(value) and value == value else 0  # NaN cannot be sorted


def records(value: Any) -> list[Fields]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def mapping(value: Any) -> dict[str, Fields]:
    """Name -> its fields."""
    return {str(k): v for k, v in value.items() if isinstance(v, Mapping)} if isinstance(value, Mapping) else {}


def mapping_of(fields: Fields, name: str) -> Fields:
    value = fields.get(name)
    return value if isinstance(value, Mapping) else {}
