"""Chooses the client for an origin, and retries a request whose pooled connection turned out to be closed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.domain.upstream import Response, StaleConnection, UpstreamClient

from .h1 import H1Client, RequestHead

_encode = msgspec.json.Encoder().encode


def open_client(origin: tuple[str, str, int], *, connect_timeout: float, max_idle: float = 4.0) -> UpstreamClient:
    """A client for `origin` (scheme, host, port). `connect_timeout` and `max_idle` (how long an unused connection is
    kept; stay below the backend's own keep-alive, 5 s for vLLM) are in seconds. Opens no connection yet."""
    if origin[0] == "http":
        return H1Client(origin, connect_timeout, max_idle)
    from .aio import AioClient  # the import takes a quarter of the start-up time, and most fleets use plain http

    return AioClient(origin, connect_timeout, max_idle)


async def post_json(client: UpstreamClient, path: str, headers: Sequence[tuple[str, str]], content: object) -> Response:
    """POST `content` as JSON; returns when the head of the answer has arrived. A pooled connection that the server had
    closed is replaced by a new one, once: the request was not processed. Raises as `Client.send`, and what encoding
    raises."""
    try:
        # The retry encodes again: a variable for the bytes would keep them in memory until the answer arrives.
        return await client.send("POST", path, headers, _encode(content))
    except StaleConnection:
        pass
    return await client.send("POST", path, headers, _encode(content), fresh=True)


async def post_framed(client: H1Client, head: RequestHead, id_: str, content: object) -> Response:
    """As `post_json`, with a head that is known but for its id."""
    try:
        return await client.send_framed(head, id_, _encode(content))
    except StaleConnection:
        pass
    return await client.send_framed(head, id_, _encode(content), fresh=True)
