"""Request fields of the source as an alias' `params`: what JSON and YAML can both hold, nothing expanded."""

from __future__ import annotations

import math
from typing import Any

from gateway.config.problems import Path
from gateway.importing.draft import Notes

_OURS = ("model", "messages", "prompt", "input", "stream")  # the client says these


def request_params(values: dict[str, Any], path: Path, notes: Notes) -> dict[str, Any]:
    """Those of `values` that an alias can fill in; the others are noted at `path`."""
    found = {}
    for key, value in values.items():
        if key in _OURS:
            notes.left_out((*path, key), f"'{key}' cannot be filled in", "the client says it")
        elif not _can_be_said(key, value):
            notes.left_out((*path, key), "a value that no request can hold")
        else:
            found[key] = literal(value)
    return found


def literal(value: Any) -> Any:
    """The same value where `${` would be a variable: it is none in the source."""
    if isinstance(value, dict):
        return {key: literal(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [literal(inner) for inner in value]
    return value.replace("${", "$${") if isinstance(value, str) else value


def _can_be_said(key: Any, value: Any) -> bool:
    if not str(key).strip():
        return False
    if isinstance(value, dict):
        return all(_can_be_said(inner_key, inner) for inner_key, inner in value.items())
    if isinstance(value, list):
        return all(_can_be_said("item", inner) for inner in value)
    return not isinstance(value, float) or math.isfinite(value)
