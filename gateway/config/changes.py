"""What differs between two versions of routes.yaml, in short: for the log, `/admin/reload` and events. Pure.

Values are shown where they can hold no secret: numbers, words of fixed lists, names of backends. Of all else only the
key is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gateway.config.snapshot import Alerts, Alias, Server, Snapshot, Traces

SHOWN_MOST = 60  # characters of a value

# What the snapshot calls otherwise than the file does.
_KEYS = {"nodes": "node", "steps": "use", "key_sha256": "key"}
# Texts of anybody's making: a variable may have been put there.
_HIDDEN = frozenset(
    {"url", "model", "api_key", "key_sha256", "params", "exporter", "path", "data", "host"}
    | {"tool_parser", "reasoning_parser", "thinking_switch", "also", "aliases", "tasks"}
)
_NOT_WRITTEN = frozenset({"name", "slots_assumed", "implicit"})


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """One line each: `+ backends.gemma4`, `- aliases.writer`, `~ backends.qwen36.slots: 4 -> 2`. Of `server` nothing:
    see `needs_restart`."""
    found = [*_entries("nodes", before.nodes, after.nodes), *_entries("backends", before.backends, after.backends)]
    found += _entries("aliases", _written(before.aliases), _written(after.aliases))
    found += _entries("clients", before.clients, after.clients)
    return [*found, *_alerts(before.alerts, after.alerts), *_traces(before.traces, after.traces)]


def needs_restart(running: Server, written: Server) -> list[str]:
    """The keys of `server` that say something else than what the process was started with."""
    keys = {"host": "listen", "port": "listen"}
    found = [keys.get(f.name, f.name) for f in fields(Server) if getattr(running, f.name) != getattr(written, f.name)]
    return [f"server.{key}" for key in dict.fromkeys(found)]


def _written(aliases: Mapping[str, Alias]) -> dict[str, Alias]:
    return {name: alias for name, alias in aliases.items() if not alias.implicit}


def _entries(section: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"- {section}.{name}" for name in before if name not in after)
    for name, entry in after.items():
        if name not in before:
            yield f"+ {section}.{name}"
        elif entry != before[name]:
            yield from _keys(f"{section}.{name}", before[name], entry)


def _keys(path: str, before: Any, after: Any) -> Iterator[str]:
    """The keys in which two of one kind differ."""
    for field in fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new or field.name in _NOT_WRITTEN:
            continue
        here = f"{path}.{_KEYS.get(field.name, field.name)}"
        if is_dataclass(old) and is_dataclass(new):
            yield from _keys(here, old, new)
        else:
            yield f"~ {here}" + _values(field.name, old, new)


def _values(name: str, old: Any, new: Any) -> str:
    if name in _HIDDEN:
        return ""
    was, now = _shown(old), _shown(new)
    return "" if was is None or now is None else f": {was} -> {now}"


def _shown(value: Any) -> str | None:
    """None = not to be shown."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, str):
        return value if len(value) <= SHOWN_MOST else None
    if isinstance(value, tuple):
        members = [_shown(member) for member in value]
        text = f"[{', '.join(m for m in members if m is not None)}]"
        return text if None not in members and len(text) <= SHOWN_MOST else None
    return None  # a Secret, a whole entry


def _traces(before: Traces | None, after: Traces | None) -> Iterator[str]:
    if before is not None and after is not None:
        yield from _keys("traces", before, after)
    elif before != after:
        yield "+ traces" if before is None else "- traces"


def _alerts(before: Alerts, after: Alerts) -> Iterator[str]:
    for field in fields(Alerts):
        if getattr(before, field.name) != getattr(after, field.name):
            yield f"~ alerts.{field.name.replace('_', '.')}"
