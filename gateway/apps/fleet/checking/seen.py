"""What a gateway that runs on this machine with the file has seen its backends do otherwise than the file says."""

from __future__ import annotations

import os
import socket
from typing import Any
from urllib.parse import urlsplit

from gateway.cli.running import GatewayClient, GatewayRefusal, GatewayUnreachable, address
from gateway.config.snapshot import Snapshot

KNOCK = 0.3  # seconds until nobody is there
MUCH = 10  # times the window that the engine reports


def seen_by_gateway(snapshot: Snapshot) -> dict[str, list[str]]:
    """Backend -> its differences; empty where no gateway answers, or it wants a key that GATEWAY_KEY has not."""
    url = address(snapshot.server)
    at = urlsplit(url)
    try:
        socket.create_connection((at.hostname or "", at.port or 0), KNOCK).close()
        status = GatewayClient(url, os.environ.get("GATEWAY_KEY")).get("/status")
    except (OSError, GatewayUnreachable, GatewayRefusal):
        return {}
    seen = status.get("backends")
    backends = seen.items() if isinstance(seen, dict) else ()
    found = {
        name: _differences(one, snapshot.backends[name].context) for name, one in backends if name in snapshot.backends
    }
    return {name: lines for name, lines in found.items() if lines}


def _differences(backend: Any, context: int | None) -> list[str]:
    drift, window = (backend.get("drift"), backend.get("window")) if isinstance(backend, dict) else (None, None)
    lines = [line for line in drift if isinstance(line, str)] if isinstance(drift, list) else []
    if context and isinstance(window, int) and window and context >= MUCH * window:
        lines.append(
            f"context: {context:,} is {context // window} times the {window:,} tokens that it serves: a digit too many?"
        )
    return lines
