"""The exchange with a client of the Messages API, which the request path sees as a chat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.dialects.anthropic.answer import to_message
from gateway.dialects.anthropic.errors import envelope, retry_header
from gateway.dialects.anthropic.request import to_chat
from gateway.dialects.anthropic.stream import MessageStream
from gateway.proxy.exchange import Exchange, Headers, nothing
from gateway.transport.sse import Framer

_LENGTH = b"content-length"


class MessagesExchange:
    """An `Exchange` (proxy/exchange.py) around another. A stream is translated as it arrives. A whole answer or an
    error is translated when it is complete; its head is sent then, because the length changes."""

    __slots__ = ("_framer", "_head", "_inner", "_request_id", "_stream", "headers", "share")

    def __init__(self, inner: Exchange) -> None:
        self._inner = inner
        self.headers = inner.headers
        self.share = inner.share
        self._request_id = ""
        self._framer = Framer()
        self._stream: MessageStream | None = None
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None  # not sent yet

    @property
    def started(self) -> bool:
        return self._inner.started

    @property
    def peer(self) -> str:
        return self._inner.peer

    def task(self) -> asyncio.Task[None]:
        return self._inner.task()

    async def read_body(self, limit: int) -> bytes:
        """The body of the equivalent chat request."""
        body = await self._inner.read_body(limit)
        chat = to_chat(body)
        if len(chat) > len(body):
            self.share.add(len(chat) - len(body))
        return chat

    def on_leave(self, callback: Callable[[], object]) -> None:
        self._inner.on_leave(callback)

    def stop_watching(self) -> None:
        self._inner.stop_watching()

    async def start(self, status: int, headers: Headers) -> None:
        fields = dict(headers)
        self._request_id = fields[b"x-request-id"].decode("latin-1")
        head = [*fields.items(), (b"request-id", fields[b"x-request-id"])]
        if fields[b"content-type"].startswith(b"text/event-stream"):
            self._stream = MessageStream(self._request_id)
            await self._inner.start(status, head)
        else:
            self._head = status, head

    async def write(self, data: bytes) -> None:
        if translated := self._translated(data):
            await self._inner.write(translated)

    async def finish(self, data: bytes = b"", progress: Callable[[], object] = nothing) -> None:
        if self._head is None:
            await self._inner.finish(self._translated(data), progress)
            return
        status, head = self._head
        ok = status < 300
        body = to_message(data, "msg_" + self._request_id) if ok else envelope(status, data, self._request_id)
        self._head = None
        fields = dict(head) | {_LENGTH: str(len(body)).encode()} | retry_header(status)
        await self._inner.start(status, fields.items())
        await self._inner.finish(body, progress)

    def _translated(self, data: bytes) -> bytes:
        assert self._stream is not None  # only streams are written in parts
        return self._stream.translate(self._framer.feed(data))
