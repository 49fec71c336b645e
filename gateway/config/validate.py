"""Validates plain data and reports every mistake at once.

A wrong value is reported and removed, and the rest is validated again. So the checks that follow (names, what fits
together) run over everything else in the file, and a person sees all mistakes in one go.
"""

from __future__ import annotations

import re
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config.problems import Mistakes, Path, Report
from gateway.config.schema import Section, all_keys, is_free, keys_of, model_of, names_of_entries, pattern_of
from gateway.config.secret import shown
from gateway.config.snapshot import Engine, ModelServer, RoutesFile
from gateway.config.suggest import did_you_mean, for_unknown_key

_ROUNDS = 10


def validated(data: dict[str, Any], report: Report) -> Section:
    """What the file says, without the parts that are wrong (those are in `report.errors` and `report.dropped`)."""
    model = model_of(RoutesFile)
    data = _shaped(data, report)
    for _ in range(_ROUNDS):
        try:
            return model.model_validate(data)
        except ValidationError as error:
            found = error.errors(include_url=False)
            _prune(data, [path for details in found for path in _report(details, report)], report)
    report.error((), "too many mistakes to look further")
    return model()


def _shaped(data: dict[str, Any], report: Report) -> dict[str, Any]:
    """The long forms of short ones, without empty sections (their content may be commented out) and empty keys."""
    data = {key: value for key, value in data.items() if value is not None}
    shaped: dict[str, Any] = _without_nulls(data, (), report)
    aliases = shaped.get("aliases")
    if isinstance(aliases, dict):
        short = {name for name, value in aliases.items() if isinstance(value, list)}
        shaped["aliases"] = {n: {"use": value} if n in short else value for n, value in aliases.items()}
        moved = {(*p[:2], "use", *p[2:]): line for p, line in report.lines.items() if p[:1] == ("aliases",) and p[1:2]}
        report.lines = {**report.lines, **{p: line for p, line in moved.items() if p[1] in short}}
    return shaped


def _without_nulls(value: Any, path: Path, report: Report) -> Any:
    if is_free(path):
        return value
    if isinstance(value, list):
        return [_without_nulls(inner, (*path, i), report) for i, inner in enumerate(value)]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, inner in value.items():
        here = (*path, key)
        if inner is None and not _is_unknown(here):
            hint = "it needs at least a url" if pattern_of(here) == "backends.*" else "give a value or remove the key"
            report.error(here, "nothing follows", hint)
            report.dropped.add(here)
        else:
            kept[key] = _without_nulls(inner, here, report)
    return kept


def _is_unknown(path: Path) -> bool:
    if len(path) == 2 and path[0] in names_of_entries():
        return False
    return pattern_of(path) not in all_keys()


def _report(details: ErrorDetails, report: Report) -> list[Path]:
    """Reports what pydantic found; the paths of what is wrong."""
    path = tuple(details["loc"])
    kind, given = details["type"], details["input"]
    if kind == "extra_forbidden":
        _report_unknown_key(path, report)
    elif kind == "value_error":
        error = details["ctx"]["error"]
        found = [((*path, *below), text) for below, text in error.found] if isinstance(error, Mistakes) else []
        for where, text in found or [(path, str(error))]:
            message, _, advice = text.partition("; ")
            report.error(where, message, advice or None)
        return [where for where, _ in found] or [path]
    elif kind == "literal_error":
        choices = re.findall(r"'([^']*)'", details["ctx"]["expected"])
        hint = _boolean_hint(given, choices) or _server_hint(given, path)
        hint = hint or (did_you_mean(given, choices) if isinstance(given, str) else None)
        report.error(path, f"{shown(given)} is not one of {', '.join(choices)}", hint)
    elif kind in ("tuple_type", "dict_type", "model_type", "model_attributes_type"):
        wanted = "a list" if kind == "tuple_type" else "a mapping"
        as_list = f"write [{given}]" if kind == "tuple_type" and isinstance(given, str) else None
        report.error(path, f"must be {wanted}, not {_kind_of(given)}", as_list or _shape_hint(path))
    else:
        report.error(path, "has a value that is not allowed here")
    return [path]


def _boolean_hint(given: Any, choices: list[str]) -> str | None:
    if isinstance(given, bool) and {"on", "off"} <= set(choices):
        return f"write {'on' if given else 'off'}"
    return None


def _server_hint(given: Any, path: Path) -> str | None:
    """What to write where the name of a server stands in the place of its engine."""
    if pattern_of(path) != "backends.*.engine" or not isinstance(given, str):
        return None
    word = _letters(given)
    servers = (name for name in get_args(ModelServer) if name not in get_args(Engine))
    server = next((name for name in servers if _letters(name) == word), None)
    return f"write engine: openai, server: {server}" if server else None


def _letters(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())


def _kind_of(given: Any) -> str:
    return {list: "a list", dict: "a mapping", bool: "true or false"}.get(type(given), "a single value")


def _shape_hint(path: Path) -> str | None:
    pattern = pattern_of(path)
    if pattern == "backends.*":
        return 'write {url: "http://HOST:PORT"}'
    if pattern == "aliases.*":
        return "write a list of backends: [first, fallback]"
    if pattern == "backends.*.launch":
        return 'write {command: "vllm serve MODEL --port 8001"}'
    if pattern.endswith(".timeouts"):
        return "write {connect: 3s, idle: 120s}"
    if pattern in names_of_entries():
        return "every entry is a name with its settings"
    return None


def _report_unknown_key(path: Path, report: Report) -> None:
    key = str(path[-1])
    if re.search(r"[\s=]", key):  # `{key sk-123}`: what looks like a key may hold a secret
        report.error(path[:-1], "a key with a space or '=' in it", "is a ':' missing?")
        return
    section = pattern_of(path[:-1])
    siblings = keys_of(section)
    hint = for_unknown_key(key, section, siblings, all_keys())
    report.error(path, f"unknown key '{key[:60]}'", hint)


def _prune(data: dict[str, Any], paths: list[Path], report: Report) -> None:
    """Removes the value at each of `paths`, the last member of a list first, so that the other positions stay valid. A
    list of which nothing remains goes with its members: that it is empty would be no mistake of its own."""
    removed: list[Path] = []
    for path in sorted(set(paths), key=lambda p: [(isinstance(part, int), part) for part in p], reverse=True):
        while path:
            removed.append(path)
            holder: Any = data
            for part in path[:-1]:
                holder = _member(holder, part)
            if isinstance(holder, dict):
                holder.pop(path[-1], None)
            elif isinstance(holder, list) and isinstance(path[-1], int) and path[-1] < len(holder):
                del holder[path[-1]]
            if holder != []:
                break
            path = path[:-1]
    report.dropped.update(removed)
    report.renumber(removed)


def _member(holder: Any, part: str | int) -> Any:
    if isinstance(holder, dict):
        return holder.get(part)
    if isinstance(holder, list) and isinstance(part, int) and part < len(holder):
        return holder[part]
    return None
