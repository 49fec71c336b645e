"""The key paths of routes.yaml, read off the definitions: `backends.*.timeouts.idle`; `*` is a name that the operator
chose. Also here: the warning for keys that have no effect yet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from gateway.config.problems import Path, Report
from gateway.config.setting import Setting, settings_of, walk
from gateway.config.snapshot import RoutesFile


@cache
def definitions() -> Mapping[str, Setting]:
    """Every key of the file by its path, in the file's order."""
    return dict(walk(RoutesFile))


@cache
def all_keys() -> tuple[str, ...]:
    return tuple(definitions())


def keys_of(section: str) -> tuple[str, ...]:
    """The keys allowed in `section` (`""` = the top level, `backends.*`)."""
    prefix = f"{section}." if section else ""
    rest = (path.removeprefix(prefix) for path in all_keys() if path.startswith(prefix))
    return tuple(key for key in rest if "." not in key)


def pattern_of(path: Path) -> str:
    """`("backends", "qwen36", "url")` → `backends.*.url`."""
    words = [part for part in path if isinstance(part, str)]
    if len(words) > 1 and words[0] in names_of_entries():
        words[1] = "*"
    return ".".join(words)


@cache
def names_of_entries() -> tuple[str, ...]:
    """The sections whose entries have names that the operator chose: `nodes`, `backends`, `aliases`, `clients`."""
    return tuple(key for key, found in settings_of(RoutesFile).items() if found.named)


def is_free(path: Path) -> bool:
    """True inside values whose keys are not the gateway's: `params`, `launch`, `profiles`, `modes`."""
    pattern = pattern_of(path)
    return any(pattern == key or pattern.startswith(f"{key}.") for key in _free())


@cache
def _free() -> tuple[str, ...]:
    return tuple(key for key, found in definitions().items() if found.kind is not None and found.kind.free)


def not_yet() -> dict[str, tuple[str, ...]]:
    """The keys that are accepted and have no effect yet, with the values for which that is so (empty: for all). All
    keys below such a key have none either."""
    marked = {path: found.about.not_yet for path, found in definitions().items()}
    return {path: mark if isinstance(mark, tuple) else () for path, mark in marked.items() if mark}


def warn_not_yet(data: dict[str, Any], report: Report, marked: Mapping[str, tuple[str, ...]] | None = None) -> None:
    """One warning for each written key of `data` (plain data, as the file says it) that has no effect yet. `none` and
    `false` say that a feature is not wanted: no warning."""
    _warn(data, (), not_yet() if marked is None else marked, report)


def _warn(value: Any, path: Path, marked: Mapping[str, tuple[str, ...]], report: Report) -> None:
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        here = (*path, key)
        values = marked.get(pattern_of(here))
        if values is None:
            _warn(inner, here, marked, report)
        elif values and inner in values:
            report.warn(here, f"'{inner}' has no effect yet")
        elif not values and inner not in ("none", False, None):
            report.warn(here, "no effect yet")
