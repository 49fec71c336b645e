"""One request, timed: the stream is read as it arrives, and its times, tokens and failure are kept as a sample."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.domain.upstream import Response, UpstreamFailure
from gateway.transport.sse import BROKEN_ENDS, DONE, Choice, Framer, data_of, read_chunk

MAX_CACHED = 0.05  # share of a prompt from the prefix cache above which the prefill rate is not reported
# Pieces of text per token: with fewer, several tokens came at once and the decode rate is not reported.
MIN_PIECES = 0.25
MAX_ERROR_BYTES = 64 * 1024  # of an error response that are read
MAX_MESSAGE = 300  # characters of an error message that are kept

Send = Callable[[], Awaitable[Response]]

_ROUTE_COMMENT = re.compile(rb"^: x-gateway (.*)$", re.M)


@dataclass(slots=True)
class RequestSample:
    """One request. Times are seconds of one clock, None for an event that never came. Tokens are as the server counts
    them, the answer's including its thoughts; None if the server did not report them. `pieces`: events that held text.
    `error`: None if the request succeeded."""

    started: float
    ended: float
    first: float | None = None  # the first text, thoughts included
    last: float | None = None
    prompt: int | None = None
    completion: int | None = None
    reasoning: int | None = None
    cached: int | None = None
    pieces: int = 0
    finish: str | None = None
    backend: str | None = None  # as the gateway reports it
    queued: float | None = None  # seconds of waiting for a slot of the gateway
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def ttft(self) -> float | None:
        """Seconds until the first text."""
        return None if self.first is None else self.first - self.started

    @property
    def is_fresh(self) -> bool:
        """Was (nearly) the whole prompt computed for this request, and not taken from the prefix cache?"""
        return not self.cached or not self.prompt or self.cached <= MAX_CACHED * self.prompt

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens per second until the first text. For short prompts this is mostly network and the first
        step."""
        ttft = self.ttft
        return self.prompt / ttft if self.prompt and ttft and self.is_fresh else None

    @property
    def is_steady(self) -> bool:
        """Did the text come piece by piece? Speculative decoding sends several tokens at a time; a parser that holds
        text back may send many more."""
        return self.completion is not None and self.pieces >= max(2, MIN_PIECES * self.completion)

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second after the first."""
        if self.completion is None or self.completion < 2 or self.first is None or self.last is None:
            return None
        return (self.completion - 1) / (self.last - self.first) if self.is_steady and self.last > self.first else None


async def take_sample(send: Send, limit: float) -> RequestSample:
    """Send the request and read its answer, within `limit` seconds. Failures are not raised: the sample holds them."""
    recorder = SampleRecorder()
    try:
        async with asyncio.timeout(limit):
            await _read_answer(send, recorder)
    except TimeoutError:
        recorder.sample.error = f"no end within {limit:g} s"
    except UpstreamFailure as failure:
        recorder.sample.error = f"the connection failed: {failure}"
    return recorder.finished()


async def _read_answer(send: Send, recorder: SampleRecorder) -> None:
    response = await send()
    try:
        recorder.head(response)
        if response.status != 200:
            recorder.sample.error = refusal(response.status, await response.read_all(MAX_ERROR_BYTES))
            return
        framer = Framer()
        while data := await response.read_some():
            now = time.perf_counter()
            for event in framer.feed(data):
                recorder.event(event, now)
        recorder.end()
    finally:
        response.release()  # closes the connection where the answer was not read to its end


def refusal(status: int, body: bytes) -> str:
    """An error response in one line: the server's own message where it has one, else the body."""
    text = body.decode(errors="replace")
    try:
        answer: Any = msgspec.json.decode(body)
        error = answer.get("error", answer) if isinstance(answer, dict) else answer
        message = error.get("message") or error.get("detail") if isinstance(error, dict) else error
        text = message if isinstance(message, str) else text
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return f"answered {status}: {' '.join(text.split())[:MAX_MESSAGE]}"


class SampleRecorder:
    """Fills a sample while its stream is read."""

    def __init__(self) -> None:
        now = time.perf_counter()
        self.sample = RequestSample(now, now)
        self._usage: dict[str, Any] = {}

    def head(self, response: Response) -> None:
        self._route(response.headers.get("x-gateway-backend"), response.headers.get("x-gateway-queue-ms"))

    def _route(self, backend: str | None, queue_ms: str | None) -> None:
        self.sample.backend = backend or self.sample.backend
        if queue_ms is not None and queue_ms.isdigit():
            self.sample.queued = int(queue_ms) / 1000

    def event(self, event: bytes, now: float) -> None:
        """One event, which arrived at `now`."""
        data, sample = data_of(event), self.sample
        if data is None:
            self._comment(event)
            return
        chunk = None if data == DONE else read_chunk(data)
        if chunk is None:
            return
        if chunk.error is not None and sample.error is None:
            message = chunk.error.get("message") if isinstance(chunk.error, dict) else chunk.error
            sample.error = f"broke off: {message}"[:MAX_MESSAGE]
        if isinstance(chunk.usage, dict):
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            if _holds_text(choice):
                sample.first = now if sample.first is None else sample.first
                sample.last = now
                sample.pieces += 1
            if isinstance(choice.finish_reason, str):
                sample.finish = choice.finish_reason

    def _comment(self, event: bytes) -> None:
        """Where the response head went out before a backend was chosen, the gateway reports the route in a comment."""
        if found := _ROUTE_COMMENT.search(event):
            fields = dict(part.strip().partition("=")[::2] for part in found[1].decode("latin-1").split(";"))
            self._route(fields.get("backend"), fields.get("queue-ms"))

    def end(self) -> None:
        """The stream has ended. An incomplete or empty one is an error."""
        sample = self.sample
        if sample.error is not None:
            return
        if sample.finish is None:
            sample.error = "the stream ended without a finish_reason"
        elif sample.finish in BROKEN_ENDS:
            sample.error = f"the stream ended with finish_reason {sample.finish}"
        elif sample.first is None:
            count = self._count("completion_tokens")
            sample.error = (
                f"{count} tokens were counted, but the stream held no text" if count else "the answer was empty"
            )

    def _count(self, name: str, *within: str) -> int | None:
        fields: Any = self._usage
        for key in within:
            fields = fields.get(key) if isinstance(fields, dict) else None
        value = fields.get(name) if isinstance(fields, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    def finished(self) -> RequestSample:
        sample = self.sample
        sample.ended = time.perf_counter()
        sample.prompt, sample.completion = self._count("prompt_tokens"), self._count("completion_tokens")
        sample.reasoning = self._count("reasoning_tokens", "completion_tokens_details")
        sample.cached = self._count("cached_tokens", "prompt_tokens_details")
        return sample


def _holds_text(choice: Choice) -> bool:
    """Any text that the model made, whatever the field is called: servers name the field of thoughts differently."""
    if isinstance(choice.text, str) and choice.text:
        return True
    if not isinstance(choice.delta, dict):
        return False
    return any(name != "role" and isinstance(value, str) and value for name, value in choice.delta.items())
