"""Ollama's answers as `Response` objects: their bodies are translated into OpenAI's format while they are read."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.domain.upstream import Response, UnreadableOutput, UpstreamFailure, read_counted
from gateway.engines.base import TranslatedResponse
from gateway.engines.ollama.calls import RequiredCallReader
from gateway.engines.ollama.reply import (
    REPEATED,
    STOPPED,
    LineFramer,
    OllamaLine,
    OllamaMessage,
    ReplyBuilder,
    error_text,
    is_cut_call,
    is_repeating,
    read_line,
)
from gateway.inspection.known_errors import is_unreadable
from gateway.transport.sse import Counted, HeldBytes

Checked = Callable[[OllamaLine], str | None]  # the last line -> a kind of violation
KEEPALIVE_EVERY = 5.0  # seconds between events while a call is held back, so that the stream does not look silent
_LOADED = "Ollama has only loaded or unloaded the model and answered nothing"


class OllamaStream(TranslatedResponse):
    """A stream of lines as SSE. `violation` is set with the last line; `calls` reads a required call from the text."""

    def __init__(
        self,
        upstream: Response,
        reply: ReplyBuilder,
        check: Checked,
        calls: RequiredCallReader | None = None,
        memory: Counted | None = None,
    ) -> None:
        super().__init__(upstream)
        self.violation: str | None = None
        self._reply, self._check, self._calls = reply, check, calls
        self._framer, self._held = LineFramer(), HeldBytes(memory)
        self._sent_at = time.monotonic()
        self._ended = False  # the last line has arrived: done or an error
        self._piece, self._repeated, self._pieces = "", 0, 0  # the last one, how often it came in a row, all

    async def read_some(self) -> bytes:
        while True:
            data = await self.upstream.read_some()
            lines = self._framer.feed(data) if data else self._framer.finish()
            self._held.set(self._framer.size)
            out = b"".join([self._events(line) for line in lines])
            if not data and not self._ended and self._repeated >= REPEATED:
                out += self._stopped()
            if not out and data and self._calls is not None and time.monotonic() - self._sent_at >= KEEPALIVE_EVERY:
                out = self._reply.keepalive_event()
            if out or not data:
                self._sent_at = time.monotonic()
                return out

    def _events(self, data: bytes) -> bytes:
        if self._ended:
            return b""
        line = read_line(data)
        if line.only_loaded():
            raise UpstreamFailure(_LOADED)
        if is_cut_call(line.error):
            line = OllamaLine(done=True, done_reason="length", eval_count=self._pieces)
        elif isinstance(line.error, str) and is_unreadable(line.error):
            raise UnreadableOutput(line.error)
        self._count(line)
        if self._calls is not None:
            line = self._calls.take(line)
        if line.done or line.error is not None:
            self._ended = True
            self.violation = self._check(line)
        return self._reply.events(line)

    def _count(self, line: OllamaLine) -> None:
        message = line.message or OllamaMessage()
        piece = message.content or message.thinking or line.response or ""
        if piece:
            self._pieces += 1
            self._repeated = self._repeated + 1 if piece == self._piece else 1
            self._piece = piece

    def _stopped(self) -> bytes:
        """The end of a stream that Ollama has ended without its last line, because one token came again and again."""
        self._ended, self._reply.stopped = True, STOPPED
        line = OllamaLine(done=True, done_reason="length", eval_count=self._pieces)
        if self._calls is not None:
            line = self._calls.take(line)
        self.violation = self._check(line) or "repetition"
        return self._reply.events(line)


class OllamaWhole(TranslatedResponse):
    """One object, which `translate` translates when it has been read."""

    def __init__(
        self,
        upstream: Response,
        translate: Callable[[bytes], tuple[bytes, str | None]],
        limit: int,
        memory: Counted | None = None,
    ) -> None:
        super().__init__(upstream, "application/json")
        self.violation: str | None = None
        self._translate, self._limit, self._memory = translate, limit, memory
        self._read = False

    async def read_some(self) -> bytes:
        return b"" if self._read else await self.read_all(self._limit)

    async def read_all(self, limit: int) -> bytes:
        count = self._memory.add if self._memory is not None else lambda _: None
        body = await read_counted(self.upstream, limit, count)
        self._read = True
        count(len(body))  # read as JSON, it is there once more
        translated, self.violation = self._translate(body)
        return translated


def whole_line(body: bytes) -> OllamaLine:
    """A whole answer; one that Ollama has ended because of one token again and again is not `done`. Raises
    UpstreamFailure if it is an error or incomplete, ProtocolFailure if it cannot be read."""
    line = read_line(body)
    if line.error is not None:
        raise UpstreamFailure(f"Ollama answered 200 with an error: {error_text(line.error)[:300]}")
    if line.only_loaded():
        raise UpstreamFailure(_LOADED)
    if not line.done and not is_repeating(line):
        raise UpstreamFailure("Ollama's answer is not marked as done")
    return line
