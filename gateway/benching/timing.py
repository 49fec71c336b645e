"""One request, timed: the stream is read as it arrives, and what it shows is kept."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from gateway.benching.measured import Run
from gateway.domain.upstream import Response, StaleConnection, UpstreamFailure
from gateway.transport.sse import BROKEN_ENDS, DONE, Choice, Framer, data_of, read_chunk

ERROR_MOST = 64 * 1024  # bytes of an error that are read
MESSAGE_MOST = 300  # characters of it that are shown

Send = Callable[[bool], Awaitable[Response]]  # True: on a connection of its own

_COMMENT = re.compile(rb"^: x-gateway (.*)$", re.M)


async def timed(send: Send, limit: float) -> Run:
    """Make the request and read its answer. `limit`: seconds for all of it. Never raises for what goes wrong there:
    the run tells it."""
    watch = Watch()
    try:
        async with asyncio.timeout(limit):
            await _read(send, watch)
    except TimeoutError:
        watch.error = f"no end within {limit:g} s"
    except UpstreamFailure as failure:
        watch.error = f"the connection failed: {failure}"
    return watch.run()


async def _read(send: Send, watch: Watch) -> None:
    try:
        response = await send(False)
    except StaleConnection:  # a kept connection that the server had given up: nothing was asked yet
        watch.started = time.perf_counter()
        response = await send(True)
    try:
        watch.head(response)
        if response.status != 200:
            watch.error = refusal(response.status, await response.read_all(ERROR_MOST))
            return
        framer = Framer()
        while data := await response.read_some():
            now = time.perf_counter()
            for event in framer.feed(data):
                watch.event(event, now)
        watch.end()
    finally:
        response.release()  # closes it where it was not read to its end


def refusal(status: int, body: bytes) -> str:
    """What a server says with an error: its own message where it has one."""
    text = body.decode(errors="replace")
    try:
        answer: Any = msgspec.json.decode(body)
        error = answer.get("error", answer) if isinstance(answer, dict) else answer
        told = error.get("message") or error.get("detail") if isinstance(error, dict) else error
        text = told if isinstance(told, str) else text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return f"answered {status}: {' '.join(text.split())[:MESSAGE_MOST]}"


class Watch:
    """A run while it is made."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.error: str | None = None
        self._first: float | None = None
        self._last: float | None = None
        self._usage: dict[str, Any] = {}
        self._pieces = 0
        self._finish: str | None = None
        self._backend: str | None = None
        self._queued: float | None = None

    def head(self, response: Response) -> None:
        self._route(response.headers.get("x-gateway-backend"), response.headers.get("x-gateway-queue-ms"))

    def _route(self, backend: str | None, queue_ms: str | None) -> None:
        self._backend = backend or self._backend
        if queue_ms is not None and queue_ms.isdigit():
            self._queued = int(queue_ms) / 1000

    def event(self, event: bytes, now: float) -> None:
        """One event, which arrived at `now`."""
        data = data_of(event)
        if data is None:
            self._comment(event)
            return
        chunk = None if data == DONE else read_chunk(data)
        if chunk is None:
            return
        if chunk.error is not None and self.error is None:
            told = chunk.error.get("message") if isinstance(chunk.error, dict) else chunk.error
            self.error = f"broke off: {told}"[:MESSAGE_MOST]
        if isinstance(chunk.usage, dict):
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            if holds_text(choice):
                self._first = now if self._first is None else self._first
                self._last = now
                self._pieces += 1
            if isinstance(choice.finish_reason, str):
                self._finish = choice.finish_reason

    def _comment(self, event: bytes) -> None:
        """Where the status went out before a backend was known, the gateway tells the route in a comment."""
        if found := _COMMENT.search(event):
            told = dict(part.strip().partition("=")[::2] for part in found[1].decode("latin-1").split(";"))
            self._route(told.get("backend"), told.get("queue-ms"))

    def end(self) -> None:
        """The stream has ended. Was it whole?"""
        if self.error is not None:
            return
        if self._finish is None:
            self.error = "the stream ended without a finish_reason"
        elif self._finish in BROKEN_ENDS:
            self.error = f"the stream ended with finish_reason {self._finish}"
        elif self._first is None:
            count = self._count("completion_tokens")
            self.error = f"{count} tokens were counted, but the stream held no text" if count else "it said nothing"

    def _count(self, name: str, *within: str) -> int | None:
        fields: Any = self._usage
        for key in within:
            fields = fields.get(key) if isinstance(fields, dict) else None
        value = fields.get(name) if isinstance(fields, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    def run(self) -> Run:
        return Run(
            started=self.started,
            ended=time.perf_counter(),
            first=self._first,
            last=self._last,
            prompt=self._count("prompt_tokens"),
            completion=self._count("completion_tokens"),
            reasoning=self._count("reasoning_tokens", "completion_tokens_details"),
            cached=self._count("cached_tokens", "prompt_tokens_details"),
            pieces=self._pieces,
            finish=self._finish,
            backend=self._backend,
            queued=self._queued,
            error=self.error,
        )


def holds_text(choice: Choice) -> bool:
    """Any text that the model made, whatever the field is called: servers differ in the name of thoughts."""
    if isinstance(choice.text, str) and choice.text:
        return True
    if not isinstance(choice.delta, dict):
        return False
    return any(name != "role" and isinstance(value, str) and value for name, value in choice.delta.items())
