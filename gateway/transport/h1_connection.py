"""One plain HTTP/1.1 connection. httptools calls its methods, which fill the response of the current exchange."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

import httptools

from gateway.domain.upstream import OwnFailure, ProtocolFailure, ResetFailure, StaleConnection, UpstreamFailure
from gateway.errors import fresh
from gateway.shortage import shortage_of

from .collected import PART, CollectedTransport, round_of
from .h1_response import AnswerHeads, H1Response
from .whole_chunks import ends_chunk, whole_chunk

READ_AHEAD = 256 * 1024
JOIN_BELOW = 64 * 1024  # up to this size, copying the body behind the head is cheaper than a second buffer
PIECES_MOST = 64  # unread pieces of a body that are kept separately; further ones are joined, because they may be tiny
_HEAD_END = b"\r\n\r\n"
PIECE = 256 * 1024  # larger request bodies are passed to the transport in pieces of this size
MAX_HEAD = 64 * 1024  # bytes of a head
NAMES = 64  # names remembered per connection: a backend uses the same few again and again


class HeadFields:
    """Reads the header fields of the answers on one connection."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}  # as the backend writes it -> in lower case

    def read(self, head: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
        """The fields by their names in lower case; of repeated ones, the last. Raises `ProtocolFailure` for a head of
        more than `MAX_HEAD` bytes."""
        names = self._names
        fields: dict[str, str] = {}
        size = 0
        for raw, value in head:
            size += len(raw) + len(value) + 4
            name = names.get(raw)
            if name is None:
                name = raw.lower().decode("latin-1")
                if len(names) < NAMES:
                    names[raw] = name
            fields[name] = value.decode("latin-1").rstrip(" \t")
        if size > MAX_HEAD:
            raise head_too_large()
        return fields


def head_too_large() -> ProtocolFailure:
    return ProtocolFailure(f"the head of the answer, or what follows its body, is larger than {MAX_HEAD} bytes")


class H1Connection(asyncio.Protocol):
    """A connection serves one exchange at a time. `on_free` is called with it when it can take the next exchange,
    `on_lost` when it is closed. `latest`: the heads that came on other connections to this backend."""

    __slots__ = (
        "_between_chunks",
        "_bodiless",
        "_eof",
        "_fields",
        "_head",
        "_keep",
        "_known",
        "_moved",
        "_on_free",
        "_on_lost",
        "_parser",
        "_received",
        "_round",
        "_unfinished",
        "_unsent",
        "_writing_paused",
        "idle_since",
        "loop",
        "reading_paused",
        "response",
        "transport",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_free: Callable[[H1Connection], None],
        on_lost: Callable[[H1Connection], None],
        latest: AnswerHeads | None = None,
    ) -> None:
        self.loop = loop
        self.transport: asyncio.Transport | None = None  # None when it is not open
        self.idle_since = 0.0
        self.reading_paused = False
        self._on_free = on_free
        self._on_lost = on_lost
        self._parser: Any = None  # once it is open; the two refer to each other
        self.response: H1Response | None = None
        self._head: list[tuple[bytes, bytes]] | None = None  # the headers so far; None when the head is over
        self._fields = HeadFields()
        self._unfinished = 0  # bytes of an incomplete head, or of chunks and trailers without content
        self._between_chunks = False  # where the latest read has ended; the parser is told only what is no whole chunk
        self._moved = False  # the latest read contained a part of the body
        self._received = False
        self._round = round_of(loop)
        self._keep = False
        self._bodiless = False
        self._eof = False
        self._unsent: memoryview | None = None
        self._writing_paused = False
        self._known = AnswerHeads(latest)

    # The exchange

    async def exchange(
        self, head: bytes, body: bytes | memoryview, *, reused: bool, bodiless: bool = False
    ) -> H1Response:
        """Sends one request and waits for the head of its answer. `bodiless`: the answer to HEAD."""
        if self.transport is None:
            raise ResetFailure(_lost("before the request", None))
        response = self.begin(head, body, reused=reused, bodiless=bodiless)
        del body
        await response.head()
        return response

    def begin(self, head: bytes, body: bytes | memoryview, *, reused: bool, bodiless: bool = False) -> H1Response:
        """Send one request on an open connection. The head of its answer has not come yet."""
        response = self.response = H1Response(self, reused)
        self._head = []
        self._unfinished = 0
        self._received = self._between_chunks = False
        self._keep = False
        self._bodiless = bodiless
        self._write(head, body)
        return response

    def _write(self, head: bytes, body: bytes | memoryview) -> None:
        transport = self.transport
        assert transport is not None
        if len(body) <= JOIN_BELOW:
            transport.write(head + body if body else head)
        elif len(body) <= PIECE:
            transport.writelines((head, body))
        else:
            self._unsent = memoryview(body)
            transport.write(head)
            self._write_more()

    def _write_more(self) -> None:
        # resume_writing calls this too, within the event loop's handling of the socket and after the loop has read
        # from it: so an early answer that a reset follows is read before a write fails with that reset.
        while self._unsent is not None and not self._writing_paused and self.transport is not None:
            piece, self._unsent = self._unsent[:PIECE], self._unsent[PIECE:] or None
            self.transport.write(piece)

    def free(self) -> None:
        """The answer was read: return the connection to the pool, or close it if it cannot be used again."""
        self.response = None
        transport = self.transport
        if transport is None:
            return
        if self._keep and self._unsent is None and not transport.is_closing() and not transport.get_write_buffer_size():
            if self.reading_paused:
                self.resume_reading()
            self._on_free(self)
        else:
            self.drop()

    def drop(self) -> None:
        """Closes the socket now; nothing is flushed."""
        self.response = self._unsent = None
        if self.transport is not None:
            self.transport.abort()

    def fail(self, failure: UpstreamFailure) -> None:
        """Ends the exchange, if there is one, with `failure`, and closes the socket."""
        if self.response is not None:
            self.response.fail(failure)
        self.drop()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one without being a subclass.
        self.transport = CollectedTransport(cast(asyncio.Transport, transport), self.loop)
        self._parser = httptools.HttpResponseParser(self)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._between_chunks:
            collected = self._round
            if len(data) <= PART and not collected.at_once:
                if not collected.reads:
                    collected.begin()
                collected.reads.append((self, data))
                return
            self._pass_reads()
        self.receive(data)

    def _pass_reads(self) -> None:
        if self._round.reads:  # which may be this connection's
            self._round.pass_reads()

    def receive(self, data: bytes) -> None:
        """What has come, in its order."""
        response = self.response
        if response is None:  # no request is waiting: a 408, or bytes left over from an answer
            self.drop()
            return
        if not self._received and not self._bodiless:
            if (whole := self._known.whole) is not None and (body := whole.body_of(data)) is not None:
                self._received = self._keep = True
                response.complete = True
                if body:
                    response.pieces.append(body)
                    response.size = len(body)
                response.begin(200, whole.headers)
                return
            if (stream := self._known.stream) is not None and (at := stream.end_in(data)):
                self._parser.feed_data(stream.head)  # its callbacks begin the response
                self._received = self._between_chunks = True
                data = data[at:]
                if not data:  # vLLM sends the head alone
                    return
        if self._between_chunks:
            content = whole_chunk(data)
            if content is not None and response.pass_piece(content):
                return
            self._between_chunks = content is not None or ends_chunk(data, 0)
        first, self._received = not self._received, True
        self._moved = False
        try:
            self._parser.feed_data(data)
        except Exception as error:
            if response.complete:
                self._keep = False
            else:
                self.fail(_failure_of(error))
            return
        if first and response.is_chunked:
            self._between_chunks = ends_chunk(data, data.find(_HEAD_END) + len(_HEAD_END))
            if self._keep and response.status == 200:
                self._known.learn_stream(data, response.headers)
        if response.sink is not None and response.pieces and not response.complete:
            response.pass_on()
        if not (self._moved or response.complete):
            self._unfinished += len(data)
            if self._unfinished > MAX_HEAD:
                self.fail(head_too_large())
            return
        self._unfinished = 0
        if first and response.complete and self._keep and response.status == 200 and not self._bodiless:
            self._known.learn_whole(data, response.headers)
        if response.size > READ_AHEAD and not (response.complete or self.reading_paused or self.transport is None):
            self.reading_paused = True
            self.transport.pause_reading()

    def eof_received(self) -> None:
        self._pass_reads()
        self._eof = True
        if self.transport is not None:
            self.transport.abort()  # close() would wait to flush a request that the peer does not read

    def connection_lost(self, exc: Exception | None) -> None:
        self._pass_reads()
        self.transport = None
        response = self.response
        self.response = None
        self._unsent = None
        self._parser = None
        self._on_lost(self)
        if response is None or response.complete:
            return
        if exc is not None and (kind := shortage_of(exc)) is not None:
            response.fail(OwnFailure(kind, unsent=False))
        elif response.status and self._eof and exc is None and response.ends_with_connection:
            response.complete = True
            response.wake()
        elif response.reused and not self._received:
            response.fail(StaleConnection(_lost("before the answer", exc)))
        else:
            response.fail(ResetFailure(_lost("in the body" if response.status else "before the answer's head", exc)))

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._write_more()

    def resume_reading(self) -> None:
        self.reading_paused = False
        if self.transport is not None:
            self.transport.resume_reading()

    # httptools.HttpResponseParser

    def on_message_begin(self) -> None:
        if self.response is not None and self.response.complete:
            self._keep = False  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is not None:  # else a trailer
            self._head.append((name, value))

    def on_headers_complete(self) -> None:
        response = self.response
        head = self._head
        if response is None or head is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._head = []
            if status == 101 or self._parser.should_upgrade():
                raise ProtocolFailure("status 101 without having asked for it")
            return
        self._head = None
        self._keep = self._parser.should_keep_alive()
        response.begin(status, self._fields.read(head))
        if self._bodiless:
            self._keep = False  # the parser would wait for the body that the headers announce
            response.complete = True

    def on_body(self, data: bytes) -> None:
        response = self.response
        if response is not None and not response.complete:
            self._moved = True
            self._unfinished = 0
            pieces = response.pieces
            if len(pieces) < PIECES_MOST:
                pieces.append(data)
            elif len(pieces) == PIECES_MOST:
                pieces.append(bytearray(data))
            else:
                pieces[-1] += data
            response.size += len(data)
            if response.sink is None:
                response.wake()

    def on_message_complete(self) -> None:
        response = self.response
        if response is not None and response.status:  # else it was a 1xx
            response.complete = True
            response.wake()


def _failure_of(error: Exception) -> UpstreamFailure:
    """What is wrong with the answer. `error`: of the parser, perhaps behind a failure that its callback has raised."""
    cause = error.__context__
    return fresh(cause) if isinstance(cause, UpstreamFailure) else ProtocolFailure(f"not HTTP: {error}")


def _lost(where: str, exc: Exception | None) -> str:
    return f"the connection ended {where}: {exc}" if exc is not None else f"the backend closed the connection {where}"
