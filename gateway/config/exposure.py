"""What listening on an address opens."""

from __future__ import annotations

SHUT = "add clients with keys, or listen on 127.0.0.1"


def exposure(host: str, port: int, *, clients: bool) -> str | None:
    """A warning about listening at this address; None = there is none."""
    if clients or host in ("localhost", "::1") or host.startswith("127."):
        return None
    return f"listening on {host} without `clients`: whoever reaches port {port} may use every alias"
