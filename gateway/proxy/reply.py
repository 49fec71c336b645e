"""What the client has been sent so far, and the two commits.

*Status commit*: our 200 and headers were sent; another backend may still take over. *Content commit*: content was
sent; from then on no other backend is tried. Both wait for the first content, but the status at most `hold` seconds:
then it is sent early, followed by heartbeats. These are data chunks, because comments do not reset the timeouts of
clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Callable, Iterable
from math import inf
from time import time

import msgspec

from gateway.domain.endpoints import Endpoint
from gateway.domain.request_timer import RequestTimer
from gateway.errors import STREAM_INTERRUPTED, GatewayError
from gateway.inspection.rewrite import ReplyIdentity
from gateway.proxy.exchange import Exchange, nothing

_REQUEST_ID = re.compile(rb"[\w.-]{1,128}")
HEARTBEAT = 10.0  # seconds without anything sent
WAIT_TOLD = 5.0  # seconds of a wait until a person is told of it
LOADING_TOLD = 15.0  # seconds until a stream is told that the model is being loaded
LAST_WORDS = 5.0  # seconds in which the client must read a stream's error event
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_JSON = (b"content-type", b"application/json")
Header = tuple[bytes, bytes]


class StreamReply:
    """The client's side of one streamed request. `base` are the headers known before any attempt."""

    def __init__(
        self,
        exchange: Exchange,
        timer: RequestTimer,
        endpoint: Endpoint,
        model: str,
        request_id: str,
        base: list[Header],
    ) -> None:
        self.exchange = exchange
        self._timer = timer
        self._endpoint = endpoint
        self._model = model
        self._request_id = request_id
        self._base = base
        self.identity = ReplyIdentity()
        self.committed = False  # the status is committed
        self.early = False  # the status was committed before any backend's output
        self.content = False  # content is committed
        self._waits: Callable[[], str] | None = None  # what a person is told of the wait; None: nothing is told
        self._hold_until = inf  # until when the status is held back while there is nothing to tell
        self.loading: Callable[[], str] = str  # for how long the model is being loaded, "" where it is not
        self.served_by = ""  # the backend that the headers or the last comment named

    def tell_waits(self, waits: Callable[[], str]) -> None:
        """Say as thoughts what the request waits for (`waits`: "" = for nothing but its answer), before it is held back
        as long as it may be."""
        self._waits, self._hold_until = waits, self._timer.beat_at
        self._timer.beat_at = min(self._timer.beat_at, self._timer.now() + WAIT_TOLD)

    async def begin(self, backend: str, headers: list[Header]) -> None:
        """Status commit: the headers say how the request is served. After an early commit, a comment does."""
        if not self.committed:
            self.committed = True
            self.served_by = backend
            await self.exchange.start(200, STREAM_HEADERS + self._base + headers)
        elif self.served_by != backend:
            self.served_by = backend
            served = b"; ".join(name.removeprefix(b"x-gateway-") + b"=" + value for name, value in headers)
            await self.send(b": x-gateway " + served + b"\n\n")

    async def resume(self, backend: str) -> None:
        """Another backend goes on with the content: a comment says so, once."""
        if self.served_by != backend:
            self.served_by = backend
            await self.send(b": x-gateway resumed=" + _latin(backend) + b"\n\n")

    async def send(self, data: bytes) -> None:
        timer = self._timer
        timer.writing = timer.now()
        await self.exchange.write(data)
        timer.writing = 0.0
        timer.beat_at = timer.now() + HEARTBEAT

    async def finish(self, rest: bytes = b"") -> None:
        """Send the last events and [DONE], which ends every complete stream, whether the backend sent one or not."""
        self.exchange.stop_watching()
        self._timer.last_write()
        await self.exchange.finish(rest + b"data: [DONE]\n\n")
        self._timer.rest()

    async def beat(self) -> None:
        """Commit the status early if need be, and send one empty chunk."""
        if self._timer.writing:
            return  # the client has not read what was sent before
        wait = self._waits() if self._waits is not None and not self.content else ""
        if not (wait or self.committed) and self._timer.now() < self._hold_until < inf:
            self._timer.beat_at = min(self._timer.now() + WAIT_TOLD, self._hold_until)
            return
        if not self.committed:
            self.committed = self.early = True
            await self.exchange.start(200, [*STREAM_HEADERS, *self._base, (b"x-gateway-committed", b"early")])
        self.identity.fix(self._endpoint.id_prefix + self._request_id, int(time()))
        loading = self.loading()
        await self.send((f": {loading}\n\n".encode() if loading else b"") + self._heartbeat(wait))

    def _heartbeat(self, wait: str) -> bytes:
        delta = {"reasoning_content": f"{wait}\n"} if wait else {}
        empty: dict[str, object] = {"delta": delta} if self._endpoint.id_prefix == "chatcmpl-" else {"text": ""}
        chunk = {
            "id": self.identity.id,
            "object": self._endpoint.chunk_object,
            "created": self.identity.created,
            "model": self._model,
            "choices": [{"index": 0, **empty, "finish_reason": None}],
        }
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    async def fail(self, error: GatewayError) -> None:
        """A final failure after the status was sent: send an error event, then cut the stream, so that it does not
        end as if complete."""
        self.exchange.stop_watching()
        self._timer.rest()
        with contextlib.suppress(TimeoutError):  # a client that does not read is not waited for
            async with asyncio.timeout(LAST_WORDS):
                await self.exchange.write(b"data: " + error.envelope() + b"\n\n")

    async def interrupt(self) -> None:
        """The stream broke after content: send one error event, then cut the stream."""
        await self.fail(GatewayError("stream_interrupted", STREAM_INTERRUPTED))


async def send_whole(
    exchange: Exchange,
    status: int,
    body: bytes,
    headers: list[Header],
    progress: Callable[[], object] = nothing,
) -> None:
    """Send a whole answer. `progress` is called whenever the client has read some of a long one."""
    exchange.stop_watching()
    await exchange.start(status, [_JSON, (b"content-length", str(len(body)).encode()), *headers])
    await exchange.finish(body, progress)


def request_id(given: bytes | None) -> str:
    """The client's own id if it is well-formed, else a new one."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode()
    return random.getrandbits(128).to_bytes(16).hex()  # it only has to be unique


def request_header(request_id: str) -> Header:
    return (b"x-request-id", request_id.encode())


def base_headers(request_id: str, alias: str) -> list[Header]:
    """The headers of every answer, errors too."""
    headers = [request_header(request_id)]
    if alias:
        headers.append((b"x-gateway-alias", _latin(alias)))
    return headers


def listed(names: Iterable[str]) -> bytes:
    """Names that a client sent, as the value of a header."""
    return ",".join(re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:100] for name in names).encode()[:1000]


def attempt_headers(
    backend: str, attempts: int, queued: int, detour: tuple[str, str] | None, adapted: list[str]
) -> list[Header]:
    """How the request is served. `queued` is in milliseconds, `detour` ("fallback" | "routed", reason)."""
    headers = [
        (b"x-gateway-backend", _latin(backend)),
        (b"x-gateway-attempts", b"%d" % attempts),
        (b"x-gateway-queue-ms", b"%d" % queued),
    ]
    if detour is not None:
        headers.append((b"x-gateway-" + detour[0].encode(), detour[1].encode()))
    if adapted:
        headers.append((b"x-gateway-adapted", ",".join(adapted).encode()))
    return headers


def _latin(text: str) -> bytes:
    return text.encode("latin-1", "replace")
