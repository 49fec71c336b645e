"""The exchange with a client of a translated API, which the request path sees as a chat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gateway.admission.memory import Share
from gateway.domain.request import OwnForm
from gateway.large_bodies import LARGE, apart
from gateway.proxy.exchange import Exchange, Headers, nothing
from gateway.proxy.reply import listed
from gateway.transport.sse import Framer

_LENGTH, _KIND = b"content-length", b"content-type"


class Translation:
    """One request and its answer, without effects. The methods raise GatewayError for the client's mistakes, and
    ProtocolFailure for a backend's."""

    own: OwnForm | None = None  # after `request`: the request as it came, if servers may be asked with it
    session: bytes | None = None  # after `request`: its id in the client's body, where the chat does not have it
    left_out: Sequence[str] = ()  # after `request`: what the backends are not asked for
    stream_type: bytes | None = None  # the content-type of its streams; None: that of a chat's

    def request(self, body: bytes) -> bytes:
        """The body of the equivalent chat request."""
        raise NotImplementedError

    def held(self) -> int:
        """The bytes of the request that the answer needs, beside the chat request."""
        return 0

    def begin(self, request_id: str) -> list[tuple[bytes, bytes]]:
        """Called with the head of the answer. Returns further headers."""
        return [(b"x-gateway-left-out", listed(self.left_out))] if self.left_out else []

    def whole(self, body: bytes) -> bytes:
        """The answer, from the whole answer of a chat."""
        raise NotImplementedError

    def error(self, status: int, body: bytes) -> tuple[bytes, dict[bytes, bytes]]:
        """An error, from OpenAI's envelope, and further headers."""
        return body, {}

    def events(self, events: Iterable[bytes], hold: Callable[[int], object]) -> bytes:
        """The next bytes of a stream, from events of a chat's. `hold` counts bytes that are kept until its end."""
        raise NotImplementedError


class TranslatedExchange:
    """An `Exchange` (proxy/exchange.py) around another. A stream is translated as it arrives. A whole answer or an
    error is translated when it is complete; its head is sent then, because the length changes."""

    __slots__ = (
        *("_framer", "_head", "_inner", "_translation", "caller", "flow", "share"),
        *("on_leave", "peer", "stop_watching", "task"),
    )

    def __init__(self, inner: Exchange, translation: Translation) -> None:
        self._inner = inner
        self.caller = inner.caller
        self.flow = inner.flow
        self.share: Share = inner.share
        self.peer, self.task = inner.peer, inner.task
        self.on_leave, self.stop_watching = inner.on_leave, inner.stop_watching
        self._translation = translation
        self._framer = Framer()
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None  # not sent yet

    @property
    def headers(self) -> dict[bytes, bytes]:
        return self.caller.headers

    @property
    def started(self) -> bool:
        return self._inner.started

    @property
    def own(self) -> OwnForm | None:
        return self._translation.own

    @property
    def session(self) -> bytes | None:
        return self._translation.session

    async def read_body(self, limit: int) -> bytes:
        """The body of the equivalent chat request."""
        body = await self._inner.read_body(limit)
        return await self.translate(body)

    async def translate(self, body: bytes) -> bytes:
        """The chat request, from a body whose bytes are counted as held already."""
        counted = len(body)
        if len(body) > LARGE:
            chat = await self._apart(lambda: self._translation.request(body))
        else:
            chat = self._translation.request(body)
        held = len(chat) + self._translation.held()
        if held > counted:
            self.share.add(held - counted)
        return chat

    async def start(self, status: int, headers: Headers) -> None:
        fields = dict(headers)
        streams = fields[_KIND].startswith(b"text/event-stream")
        fields[_KIND] = (streams and self._translation.stream_type) or fields[_KIND]
        head = [*fields.items(), *self._translation.begin(fields[b"x-request-id"].decode("latin-1"))]
        if streams:
            await self._inner.start(status, head)
        else:
            self._head = status, head

    async def write(self, data: bytes) -> None:
        if len(data) <= LARGE:
            translated = self._translated(data)
        else:
            kept: list[int] = []  # shares are counted by the event loop's thread alone
            events = self._framer.feed(data)
            translated = await self._apart(lambda: self._translation.events(events, kept.append))
            self.share.add(sum(kept))
        if translated:
            await self._inner.write(translated)

    def put(self, data: bytes) -> None:
        if translated := self._translated(data):
            self._inner.put(translated)

    async def finish(self, data: bytes = b"", progress: Callable[[], object] = nothing) -> None:
        if self._head is None:
            await self._inner.finish(self._translated(data), progress)
            return
        status, head = self._head
        more: dict[bytes, bytes] = {}
        self.share.add(len(data))  # translated, it is there once more
        if status < 300:
            whole = self._translation.whole
            body = whole(data) if len(data) <= LARGE else await self._apart(lambda: whole(data))
        else:
            body, more = self._translation.error(status, data)
        self._head = None
        fields = dict(head) | {_LENGTH: str(len(body)).encode()} | more
        await self._send_whole(status, fields.items(), body, progress)

    async def _send_whole(self, status: int, fields: Headers, body: bytes, progress: Callable[[], object]) -> None:
        await self._inner.start(status, fields)
        await self._inner.finish(body, progress)

    async def _apart(self, work: Callable[[], bytes]) -> bytes:
        return await apart(self.caller.sender, work)

    def _translated(self, data: bytes) -> bytes:
        return self._translation.events(self._framer.feed(data), self.share.add)
