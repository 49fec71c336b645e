"""What an edit of routes.yaml would open: protection that a file loses by accident, cut off or commented out, as easily
as on purpose. Pure.

To take out one client is no opening: that is how a key that has leaked is revoked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.config.problems import Problem
from gateway.config.snapshot import Client

HINT = (
    'put it back; if it is meant, restart the gateway or send POST /admin/reload {"confirm": "open"} with an admin\'s '
    "key"
)


def openings(
    before: Mapping[str, Client], after: Mapping[str, Client], kept_local: Collection[str], file: str
) -> list[Problem]:
    """One problem for each protection that `after` has lost: all `clients`, or the `local_only` of one. A client is
    known by its name, and by its key whatever its name is now. `kept_local` are further keys (SHA-256, hex) that were
    `local_only` in an earlier version."""
    if before and not after:
        message = "all of them are gone: whoever reaches the gateway could use every alias"
        return [Problem(file, None, "clients", message, HINT)]
    names = {client.name for client in before.values() if client.local_only}
    keys = local_keys(before).union(kept_local)
    return [
        Problem(file, None, f"clients.{client.name}.local_only", "is gone: its prompts could leave the LAN", HINT)
        for client in after.values()
        if not client.local_only and (client.name in names or client.key_sha256 in keys)
    ]


def local_keys(clients: Mapping[str, Client]) -> frozenset[str]:
    """The keys whose prompts must stay in the LAN."""
    return frozenset(c.key_sha256 for c in clients.values() if c.local_only and c.key_sha256 is not None)
