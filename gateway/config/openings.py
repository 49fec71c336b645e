"""Protection that an edit of routes.yaml would remove. A file that is cut off, or a section that is commented out,
loses it by accident as easily as on purpose. Pure.

Removing one client is not reported: that is how a leaked key is revoked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.config.problems import Path, Problem, dotted
from gateway.config.snapshot import Client

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
