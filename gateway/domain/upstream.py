"""The interface of the HTTP clients that the request path uses: requests, responses and failures.

Each backend has one `Client`, which owns its connections. There are two implementations (gateway/transport: `h1.py` for
plain http, `aio.py` for everything else), and one contract test runs against both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from gateway.errors import fresh
from gateway.shortage import WORDS, Kind


class UpstreamFailure(Exception):
    """An attempt that did not yield an answer."""

    kind = "failure"


class UnreadableOutput(UpstreamFailure):
    """The model wrote what the parser of its own template cannot read. The server is well."""

    kind = "unreadable output"


class ConnectFailure(UpstreamFailure):
    """No connection: refused, unreachable, name not resolved, TLS failure, connect timeout. No byte was sent."""

    kind = "connect"


class OwnFailure(UpstreamFailure):
    """The gateway's own process ran out of a resource (`shortage`); the backend is not at fault. `unsent`: no byte of
    the request was sent."""

    kind = "own_shortage"

    def __init__(self, shortage: Kind, *, unsent: bool) -> None:
        super().__init__(f"the gateway itself is short of {WORDS[shortage]}")
        self.shortage: Kind = shortage
        self.unsent = unsent


class StaleConnection(UpstreamFailure):
    """A *reused* pooled connection ended before the first byte of the answer: the server's keep-alive timeout had
    expired. Nothing was processed, so one retry on a new connection is safe (`post_json` in
    gateway/transport/h1.py)."""

    kind = "stale"


class ResetFailure(UpstreamFailure):
    """The connection broke: before the answer's head on a fresh connection, or inside the body."""

    kind = "reset"


class ProtocolFailure(UpstreamFailure):
    """The answer is not HTTP, cannot be decoded (`content-encoding`), or has an impossible length."""

    kind = "protocol"


class SilenceFailure(UpstreamFailure):
    """Nothing arrived for longer than the budget."""

    kind = "silence"


class PoolFull(UpstreamFailure):
    """The requests of the server have filled the memory that they share, and it ended all of them. It works on: a pause
    is all that it needs."""

    kind = "pool_full"


class ErrorTold(UpstreamFailure):
    """The server told an error inside an answer that began with a 200. `body`: the JSON that tells it, which is weighed
    as the same words with a status would be."""

    kind = "error_told"

    def __init__(self, message: str, body: bytes) -> None:
        super().__init__(message)
        self.body = body


class TooLarge(UpstreamFailure):
    """A body that had to be read whole is larger than the limit."""

    kind = "too_large"


class EngineDied(UpstreamFailure):
    """The server answers that its engine has died: nothing that is sent to it will be answered."""

    kind = "died"


class Response(Protocol):
    """An answer whose head has arrived. Exactly one of `release` and `abort` must be called; both are idempotent."""

    status: int
    headers: Mapping[str, str]  # names in lower case; of repeated headers, the last

    async def read_some(self) -> bytes:
        """All decoded body bytes that have arrived, at least one; b"" at the end of a complete body.

        A body that ends early (short of its content-length, or without the terminating chunk) raises `ResetFailure`.
        At most 256 KiB are read ahead: a caller that stops reading stops the peer (TCP backpressure).
        """

    async def read_all(self, limit: int) -> bytes:
        """The whole decoded body. Raises `TooLarge` beyond `limit` bytes, else as `read_some`."""

    def abort(self, reason: UpstreamFailure | None = None) -> None:
        """Close the socket now, so that the backend stops working on it. A pending or later read raises `reason`
        (default `ResetFailure`)."""

    def release(self) -> None:
        """Return the connection to the pool after the body was read to its end. Before that, this is `abort`."""


def _ignored(_: int) -> None:
    pass


async def read_counted(response: Response, limit: int, count: Callable[[int], object] = _ignored) -> bytes:
    """As `Response.read_all`. `count` is called with the size of each part before it is kept, and may raise."""
    first = await response.read_some()
    count(len(first))
    if not first or len(first) > limit:
        return _within(response, first, limit)
    following = await response.read_some()
    if not following:
        return first  # nearly always
    whole = bytearray(first)  # a list of many tiny parts would take a multiple of the memory
    while following:
        count(len(following))
        whole += following
        _within(response, whole, limit)
        following = await response.read_some()
    return bytes(whole)


async def read_beginning(response: Response, most: int, count: Callable[[int], object] = _ignored) -> bytes:
    """The first `most` bytes of an error's body, or what there is of it before it breaks off: the status has been told,
    whatever becomes of the text. `count` as in `read_counted`."""
    read = bytearray()
    with suppress(ProtocolFailure, ResetFailure):
        while len(read) < most and (piece := await response.read_some()):
            count(len(piece))
            read += piece
    return bytes(read[:most])


async def read_past(response: Response, take: Callable[[bytes], bool]) -> bytes:
    """Read on until `take`, which is called once with what each `read_some` returns, says that it has not dealt with
    it. Returns that, or b"" at the end. A response that can (h1_response.py) calls `take` where the bytes arrive,
    without waking the reader."""
    itself: Callable[[Callable[[bytes], bool]], Awaitable[bytes]] | None = getattr(response, "read_past", None)
    if itself is not None:
        return await itself(take)
    while (data := await response.read_some()) and take(data):
        pass
    return data


def _within(response: Response, body: bytes | bytearray, limit: int) -> bytes:
    if len(body) > limit:
        failure = TooLarge(f"the body is larger than {limit} bytes")
        response.abort(failure)
        raise fresh(failure)
    return b""


class UpstreamClient(Protocol):
    """Sends requests to one origin (scheme, host, port). `connect_timeout` (seconds) may be changed: it applies to new
    connections."""

    connect_timeout: float

    async def send(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | memoryview,
        *,
        fresh: bool = False,
    ) -> Response:
        """Send one request; returns when the answer's head has arrived. The client adds host, content-length,
        `accept-encoding: identity` and `connection`. `fresh` = do not use a pooled connection.

        Redirects are not followed, proxies of the environment are not used, cookies are not kept. A 1xx head is
        skipped. Cancelling the call closes the socket. Raises `ConnectFailure` (also when the connect timeout passes),
        `StaleConnection`, `ResetFailure`, `ProtocolFailure`. There is no timeout on the answer: the caller cancels.
        """

    async def close(self) -> None:
        """Close all connections, idle and busy."""
