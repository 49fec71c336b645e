"""Answers of servers that are asked in another way than the client asked: with a stream, for one answer at a time, and
without the stop strings, which are looked for here."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from gateway.domain.endpoints import CHAT, Endpoint
from gateway.domain.upstream import Response, UpstreamFailure
from gateway.engines.base import TranslatedResponse
from gateway.inspection.assembler import Assembler, Object, read_object
from gateway.inspection.chunk_filter import ChunkFilter, total_usage
from gateway.transport.sse import DONE, Counted, Framer, HeldBytes, data_of, error_line

WHOLE_MOST = 64 * 1024 * 1024  # bytes of an assembled answer

Send = Callable[[], Awaitable[Response]]

_encode = msgspec.json.Encoder().encode


class StreamOfParts(TranslatedResponse):
    """The streams that make up one answer, read one after the other as one. `first` is the answer to the first request,
    `more` sends the others. `stops`: stop strings. `prompt_tokens`: of each request, estimated. `memory` counts what is
    kept. `each`: so many in a row are answers to one prompt, whose tokens count once."""

    content_type = "text/event-stream"

    def __init__(
        self,
        endpoint: Endpoint,
        first: Response,
        more: Iterable[Send],
        stops: Sequence[str],
        prompt_tokens: int,
        memory: Counted | None = None,
        each: int = 1,
    ) -> None:
        super().__init__(first, self.content_type)
        self.endpoint = endpoint
        self._held, self._kept = HeldBytes(memory), HeldBytes(memory)
        self._more = deque(more)
        self._stops, self._prompt_tokens, self._each = stops, prompt_tokens, each
        self._head: Object = {}  # of the first chunk
        self._usages: list[Object] = []
        self.ended = False
        self._begin()

    def _begin(self) -> None:
        self._framer = Framer()
        self._filter = ChunkFilter(chat=self.endpoint is CHAT, stops=self._stops, index=len(self._usages))

    async def next(self) -> list[Object | None] | None:
        """The next chunks (None: a comment), at last one with the whole usage. None at the end."""
        if self.ended:
            return None
        data = await self.upstream.read_some()
        chunks: list[Object | None] = []
        done = not data
        events = self._framer.feed(data) if data else self._framer.finish()
        self._held.set(self._framer.unfinished)
        for event in events:
            payload = data_of(event) or error_line(event)
            if not payload:
                chunks.append(None)
                continue
            done = payload == DONE
            if not done and self._filter.take(chunk := read_object(payload)):
                self._head = self._head or {name: value for name, value in chunk.items() if name != "choices"}
                chunks.append(chunk)
            if done or self._filter.stopped:
                break
        if done or self._filter.stopped:
            await self._end_part()
        if self.ended:
            chunks.append({**self._head, "choices": [], "usage": total_usage(self._usages, self._each)})
        return chunks

    async def _end_part(self) -> None:
        """The stream has all that is needed: close it, and send the next request."""
        if not self._filter.finished:
            raise UpstreamFailure("the stream ended without a finish_reason")
        self._usages.append(self._filter.used(self._prompt_tokens))
        self.upstream.release()  # a server that would go on after a stop string ends by this
        if not self._more:
            self.ended = True
            return
        self.upstream = await self._more.popleft()()
        if self.upstream.status >= 300:
            raise UpstreamFailure(f"answered {self.upstream.status} to one of several parts of a request")
        self._begin()

    async def read_some(self) -> bytes:
        out: list[bytes] = []
        while not out:
            chunks = await self.next()
            if chunks is None:
                return b""
            out = [b":\n\n" if chunk is None else b"data: " + _encode(chunk) + b"\n\n" for chunk in chunks]
        if self.ended:
            out.append(b"data: [DONE]\n\n")
        return b"".join(out)


class WholeOfParts(StreamOfParts):
    """The parts as one JSON object."""

    content_type = "application/json"
    _read = False

    async def read_some(self) -> bytes:
        return b"" if self._read else await self.read_all(WHOLE_MOST)

    async def read_all(self, limit: int) -> bytes:
        self._read = True
        assembler = Assembler(self.endpoint, limit)
        while (chunks := await self.next()) is not None:
            for chunk in chunks:
                if chunk is not None:
                    assembler.add(chunk)
            self._kept.set(assembler.kept)
        return assembler.finish()
