"""Numbers, durations, sizes and budgets as people write them, and the names that they may choose: those travel in
headers, metric labels and paths."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gateway.config.problems import Report

_DURATION = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_NUMBER = r"(\d{1,15}(?:\.\d{1,15})?)"

DURATION_PATTERN = rf"{_NUMBER}(ms|s|m|h|d)"
SIZE_PATTERN = rf"{_NUMBER} ?(B|[KMGT]iB|[KMGT]B)"
BUDGET_PATTERN = rf"{_NUMBER} USD/(day|week|month)"


@dataclass(frozen=True, slots=True)
class Budget:
    """`usd` per `per` (UTC day, week or month)."""

    usd: float
    per: Literal["day", "week", "month"]


def number_of(value: object) -> float | None:
    """A finite number, also written as text; None for anything else, such as a reference (${WINDOW})."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def parse_duration(text: str) -> float:
    """Seconds of `250ms`, `5s`, `15m`, `2h`, `1d`. Raises ValueError."""
    if not (match := re.fullmatch(DURATION_PATTERN, text, re.ASCII)):
        raise ValueError("not a duration")
    return float(match[1]) * _DURATION[match[2]]


def parse_size(text: str) -> int:
    """Bytes of `64MiB`, `119.67GiB`, `10MB`. Raises ValueError."""
    if not (match := re.fullmatch(SIZE_PATTERN, text, re.ASCII)):
        raise ValueError("not a size")
    return round(float(match[1]) * _SIZE[match[2]])


def parse_budget(text: str) -> Budget:
    """The budget of `5 USD/day`. Raises ValueError."""
    match = re.fullmatch(BUDGET_PATTERN, text, re.ASCII)
    for per in ("day", "week", "month"):
        if match and match[2] == per:
            return Budget(float(match[1]), per)
    raise ValueError("not a budget")


def format_duration(seconds: float | None) -> str:
    """The shortest spelling: 900.0 → `15m`, 0.25 → `250ms`, None → `none`."""
    if seconds is None:
        return "none"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds * 1000:.10g}ms" if 0 < seconds < 1 else f"{seconds:.10g}s"


def format_size(size: int) -> str:
    """67108864 → `64MiB`; a size that is no whole number of its unit keeps two decimals."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= _SIZE[unit]:
            return f"{size / _SIZE[unit]:.2f}".rstrip("0").rstrip(".") + unit
    return f"{size}B"


_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}")
_GLOB = re.compile(r"[A-Za-z0-9*?\[][A-Za-z0-9._:@/+*?\[\]!-]{0,127}")


def check_names(section: str, names: Iterable[str], report: Report) -> None:
    pattern = _ALIAS if section == "aliases" else _PLAIN
    for name in names:
        if section == "aliases" and any(c in name for c in "*?["):
            report.error((section, name), "a glob is no name", "globs go into `also` of an alias")
        elif not pattern.fullmatch(name):
            allowed = "letters, digits and . _ : @ -" + (" / +" if section == "aliases" else "")
            report.error((section, name), "a name that cannot be used", f"allowed are {allowed}, at most 128")


def is_further_name(name: str) -> bool:
    """True for what may stand in `also`: an alias name, or a glob over alias names."""
    return bool(_GLOB.fullmatch(name))
