"""Encodes litellm's replies in OpenAI's format."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.apps.cloud.errors import status_of, text_of, unwrapped
from gateway.domain.upstream import ResetFailure, UpstreamFailure, read_counted
from gateway.engines.base import error_of

_encode = msgspec.json.Encoder().encode
_OWN = "provider_specific_fields"  # litellm's copy of fields that the message already has


def whole_body(reply: Any, request_id: str) -> bytes:
    """A `ModelResponse` as one JSON object."""
    body = reply.model_dump(exclude_none=True)
    body["id"] = "chatcmpl-" + request_id
    for choice in body.get("choices") or []:
        choice["message"].setdefault("content", None)
        choice.setdefault("finish_reason", None)
        choice["message"].pop(_OWN, None)
    return _encode(body)


def embeddings_body(reply: Any) -> bytes:
    return _encode(reply.model_dump(exclude_none=True))


def chunk_body(chunk: Any, request_id: str) -> dict[str, Any]:
    """One chunk in OpenAI's format: every choice has a `finish_reason`, and usage comes in a chunk without choices."""
    body: dict[str, Any] = chunk.model_dump(exclude_none=True)
    body["id"] = "chatcmpl-" + request_id
    for choice in body.get("choices") or []:
        choice.setdefault("finish_reason", None)
        (choice.get("delta") or {}).pop(_OWN, None)
    if "usage" in body and not any(_has_output(choice) for choice in body.get("choices") or []):
        body["choices"] = []
    return body


def _has_output(choice: Mapping[str, Any]) -> bool:
    return bool(choice.get("finish_reason")) or any((choice.get("delta") or {}).values())


class LiteLLMStream:
    """A `Response` that reads litellm's iterator as SSE."""

    def __init__(self, sdk: Any, stream: Any, request_id: str, key: str | None) -> None:
        self.status = 200
        self.headers: Mapping[str, str] = {"content-type": "text/event-stream"}
        self._sdk, self._stream, self._request_id, self._key = sdk, stream, request_id, key
        self._first: bytes | None = None
        self._over = False  # no further chunk will be read
        self._failure: UpstreamFailure | None = None
        self._reading: asyncio.Task[bytes] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def peek(self) -> None:
        """Wait for the first chunk. Raises litellm's errors, which can still become answers with their status."""
        try:
            self._first = await self._next()
        except BaseException:
            self.abort()
            raise

    async def read_some(self) -> bytes:
        if self._failure is not None:
            raise self._failure
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._over:
            return b""
        # The read is a task of its own, so that `abort` can cancel it; asyncio.wait distinguishes that cancellation
        # from a cancellation of the caller.
        reading = self._reading = asyncio.ensure_future(self._next_chunk())
        try:
            await asyncio.wait([reading])
        except asyncio.CancelledError:
            reading.cancel()
            raise
        if reading.cancelled():
            raise self._failure or ResetFailure("the read was cancelled")
        return reading.result()

    async def _next_chunk(self) -> bytes:
        try:
            return await self._next()
        except Exception as error:
            self._over = True
            error = unwrapped(self._sdk, error)
            body = {"error": error_of(text_of(error, self._key), status_of(error))}
            return b"data: " + _encode(body) + b"\n\n"

    async def _next(self) -> bytes:
        """The next event, b"" at the end. litellm treats every end of the connection as the end of the answer and
        invents a finish_reason. Such final chunks are passed on only if the cloud sent a finish_reason."""
        while True:
            try:
                chunk = await anext(self._stream)
            except StopAsyncIteration:
                self._over = True
                return b"data: [DONE]\n\n" if self._finished() else b""
            body = chunk_body(chunk, self._request_id)
            ends = any(choice["finish_reason"] for choice in body.get("choices") or [])
            if ends and not self._finished():
                self._over = True
                return b""
            return b"data: " + _encode(body) + b"\n\n"

    def _finished(self) -> bool:
        return bool(self._stream.received_finish_reason or self._stream.intermittent_finish_reason)

    async def read_all(self, limit: int) -> bytes:
        return await read_counted(self, limit)

    def abort(self, reason: UpstreamFailure | None = None) -> None:
        if self._closing is not None:
            return
        self._failure = reason or ResetFailure("aborted by the gateway")
        if self._reading is not None:
            self._reading.cancel()
        self._closing = asyncio.ensure_future(close(self._stream, self._reading))

    def release(self) -> None:
        if not self._over:
            self.abort()


async def close(stream: Any, reading: asyncio.Task[bytes] | None) -> None:
    """Close the connection of a stream. Where litellm's iterator has no `aclose`, the generator behind it is closed."""
    if reading is not None:
        await asyncio.wait([reading])  # a generator that runs cannot be closed
    inner = getattr(stream, "completion_stream", None)
    for closable in (stream, getattr(inner, "streaming_response", None)):
        if closable is not None and hasattr(closable, "aclose"):
            with contextlib.suppress(Exception):
                await closable.aclose()
