"""The answer of a log that is followed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.status import STALLED, until_left

Lines = Callable[[Callable[[], bool]], AsyncGenerator[str]]  # of a log, until the function says that it is over


class FollowedLog(Response):
    """A log as text, until the reader leaves or stalls, or the gateway stops."""

    media_type = "text/plain"

    def __init__(
        self, lines: Callable[[Callable[[], bool]], AsyncGenerator[str]], stopping: Callable[[], bool]
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._lines = lines
        self._stopping = stopping

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        left = asyncio.create_task(until_left(receive))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with contextlib.aclosing(self._lines(lambda: left.done() or self._stopping())) as lines:
                async for line in lines:
                    async with asyncio.timeout(STALLED):
                        body = f"{line}\n".encode()
                        await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            pass
        finally:
            left.cancel()
