"""Keys that are accepted and do nothing yet. Whoever builds a feature deletes its line here.

`path` with `*` for any name; everything below it counts. `path=a|b`: only these values. Without `=`, `none` and
`false` say that the feature is not wanted and need no word.
"""

from __future__ import annotations

from typing import Any

from gateway.config.keys import pattern_of
from gateway.config.problems import Path, Report

NOT_YET = (
    "launch",
    "profiles",
    "modes",
    "backends.*.launch",
    "backends.*.engine=http",
    "aliases.*.ask_all",
)


def warn_not_yet(data: dict[str, Any], report: Report, entries: tuple[str, ...] = NOT_YET) -> None:
    """One warning for each written key of `data` (plain data, as the file says it) that has no effect yet."""
    rules = {path: values.split("|") if values else [] for path, _, values in (e.partition("=") for e in entries)}
    _visit(data, (), rules, report)


def _visit(value: Any, path: Path, rules: dict[str, list[str]], report: Report) -> None:
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        here = (*path, key)
        values = rules.get(pattern_of(here))
        if values is None:
            _visit(inner, here, rules, report)
        elif values and inner in values:
            report.warn(here, f"'{inner}' has no effect yet")
        elif not values and inner not in ("none", False, None):
            report.warn(here, "no effect yet")
