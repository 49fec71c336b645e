"""Which client serves an origin."""

from __future__ import annotations

from gateway.domain.upstream import Client

from .h1 import H1Client


def open_client(origin: tuple[str, str, int], *, connect_timeout: float, max_idle: float = 4.0) -> Client:
    """A client for `origin` (scheme, host, port). `connect_timeout` and `max_idle` (how long an unused connection is
    kept; stay below the backend's own keep-alive, 5 s for vLLM) are in seconds. Opens no connection yet."""
    if origin[0] == "http":
        return H1Client(origin, connect_timeout, max_idle)
    from .aio import AioClient  # a quarter of the start-up time, and most fleets are plain http

    return AioClient(origin, connect_timeout, max_idle)
