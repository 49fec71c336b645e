"""The differences between two versions of routes.yaml, one line each, for the log, `/admin/reload` and events. Pure.

Values are shown where they can hold no secret: numbers, words of fixed lists, names of backends. Of a key whose value
is any other text, only the name is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any

from gateway.config.problems import Path, Problem, dotted
from gateway.config.setting import is_section, settings_of
from gateway.config.snapshot import Alerts, Alias, Client, Mode, Server, Snapshot, Traces
from gateway.config.units import Budget

SHOWN_MOST = 60  # characters of a value


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Lines: `+ backends.gemma4`, `~ backends.qwen36.slots: 4 -> 2`. `server` is left to `needs_restart`."""
    found = [*_entries("nodes", before.nodes, after.nodes), *_entries("backends", before.backends, after.backends)]
    found += _entries("aliases", _written(before.aliases), _written(after.aliases))
    found += _entries("clients", before.clients, after.clients)
    found += _entries("modes", before.modes, after.modes)
    return [*found, *_alerts(before.alerts, after.alerts), *_traces(before.traces, after.traces)]


def needs_restart(running: Server, written: Server) -> list[str]:
    """The keys of `server` that differ from those with which the process was started."""
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
        elif isinstance(entry, Mode) and entry != before[name]:
            yield f"~ {section}.{name}"
        elif entry != before[name]:
            yield from _keys(f"{section}.{name}", before[name], entry)


def _keys(path: str, before: Any, after: Any) -> Iterator[str]:
    """The keys in which two sections of one kind differ."""
    section: type = type(before)
    for key, setting in settings_of(section).items():
        if setting.field is None:
            continue
        old, new = getattr(before, setting.field), getattr(after, setting.field)
        if old == new:
            continue
        if is_section(type(old)) and is_section(type(new)):
            yield from _keys(f"{path}.{key}", old, new)
        elif isinstance(old, Budget) and isinstance(new, Budget):
            yield from _budget(f"{path}.{key}", old, new)
        else:
            yield f"~ {path}.{key}" + ("" if setting.private else _values(old, new))


def _budget(path: str, old: Budget, new: Budget) -> Iterator[str]:
    for name in ("usd", "per"):
        if getattr(old, name) != getattr(new, name):
            yield f"~ {path}.{name}" + _values(getattr(old, name), getattr(new, name))


def _values(old: Any, new: Any) -> str:
    was, now = _shown(old), _shown(new)
    return "" if was is None or now is None else f": {was} -> {now}"


def _shown(value: Any) -> str | None:
    """A value as one word; None = it is not shown."""
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
    return None  # a secret or a whole section


def _traces(before: Traces | None, after: Traces | None) -> Iterator[str]:
    if before is not None and after is not None:
        yield from _keys("traces", before, after)
    elif before != after:
        yield "+ traces" if before is None else "- traces"


def _alerts(before: Alerts, after: Alerts) -> Iterator[str]:
    for field in fields(Alerts):
        if getattr(before, field.name) != getattr(after, field.name):
            yield f"~ alerts.{field.name.replace('_', '.')}"


# -- protection that an edit would remove -----------------------------------------------------------------------------
# A file that is cut off, or a section that is commented out, loses it by accident as easily as on purpose. Removing one
# client is not reported: that is how a leaked key is revoked.

HINT = (
    'put it back; if it is meant, restart the gateway or send POST /admin/reload {"confirm": "open"} with an admin\'s '
    "key"
)
NO_LINES: Mapping[Path, int] = {}


def openings(
    before: Mapping[str, Client],
    after: Mapping[str, Client],
    kept_local: Collection[str],
    file: str,
    lines: Mapping[Path, int] = NO_LINES,
) -> list[Problem]:
    """One problem for each protection that `after` lacks: all `clients`, or `local_only` of one. A client is recognized
    by its name, or by its key under a new name. `kept_local` are further keys (SHA-256, hex) that were `local_only` in
    an earlier version. `lines`: those of the new file, by path."""
    if before and not after:
        message = "all of them are gone: whoever reaches the gateway could use every alias"
        return [Problem(file, lines.get(("clients",)), "clients", message, HINT)]
    names = {client.name for client in before.values() if client.local_only}
    keys = local_keys(before).union(kept_local)
    opened = [c for c in after.values() if not c.local_only and (c.name in names or c.key_sha256 in keys)]
    found = []
    for client in opened:
        path: Path = ("clients", client.name)
        line = lines.get((*path, "local_only")) or lines.get(path)
        message = "is gone: its prompts could leave the LAN"
        found.append(Problem(file, line, dotted((*path, "local_only")), message, HINT))
    return found


def local_keys(clients: Mapping[str, Client]) -> frozenset[str]:
    """The keys whose prompts must stay in the LAN."""
    return frozenset(c.key_sha256 for c in clients.values() if c.local_only and c.key_sha256 is not None)
