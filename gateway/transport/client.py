"""Which client serves an origin, and how a request is sent once more when a kept connection turns out to be dead."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.domain.upstream import Client, Response, StaleConnection

from .h1 import H1Client

_encode = msgspec.json.Encoder().encode


def open_client(origin: tuple[str, str, int], *, connect_timeout: float, max_idle: float = 4.0) -> Client:
    """A client for `origin` (scheme, host, port). `connect_timeout` and `max_idle` (how long an unused connection is
    kept; stay below the backend's own keep-alive, 5 s for vLLM) are in seconds. Opens no connection yet."""
    if origin[0] == "http":
        return H1Client(origin, connect_timeout, max_idle)
    from .aio import AioClient  # a quarter of the start-up time, and most fleets are plain http

    return AioClient(origin, connect_timeout, max_idle)


async def post_json(client: Client, path: str, headers: Sequence[tuple[str, str]], content: object) -> Response:
    """POST `content` as JSON; returns when the head of the answer is there. A pooled connection that the server had
    closed is replaced by a new one, once: the request was not processed. Raises as `Client.send`, and what encoding
    raises."""
    try:
        # Encoded anew for a second try: a name for the bytes would keep them in memory until there is an answer.
        return await client.send("POST", path, headers, _encode(content))
    except StaleConnection:
        pass
    return await client.send("POST", path, headers, _encode(content), fresh=True)
