"""A server that sends exact bytes, and each of the upstream clients in front of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from gateway.domain.upstream import Response, UpstreamFailure
from gateway.transport.aio import AioClient
from gateway.transport.h1 import H1Client
from tests.transport.wire_server import Handler, WireServer
from tests.waiting import turns

Maker = Callable[..., H1Client | AioClient]
MAKERS: list[Maker] = [H1Client, AioClient]
MIB = 1024 * 1024


class Rig:
    """A server and a client of it."""

    def __init__(self, make: Maker) -> None:
        self.make = make
        self._stack = contextlib.AsyncExitStack()
        self.server: WireServer
        self.client: H1Client | AioClient

    async def start(self, handler: Handler, max_idle: float = 4.0) -> None:
        self.server = await self._stack.enter_async_context(WireServer(handler))
        self.client = self.make(self.server.origin, connect_timeout=2.0, max_idle=max_idle)

    async def stop(self) -> None:
        await self.client.close()
        try:
            await self.server.connections(0)
        finally:
            await self._stack.aclose()

    async def get(self, path: str = "/", **options: bool) -> Response:
        return await self.client.send("GET", path, [], b"", **options)

    async def post(self, body: bytes = b"{}") -> Response:
        return await self.client.send("POST", "/", [("content-type", "application/json")], body)

    async def whole(self, path: str = "/") -> bytes:
        response = await self.get(path)
        body = await response.read_all(100 * MIB)
        response.release()
        return body


async def drain(response: Response) -> tuple[bytes, UpstreamFailure | None]:
    """What a body yields, and the failure it ended with."""
    got = b""
    try:
        while data := await response.read_some():
            got += data
    except UpstreamFailure as failure:
        return got, failure
    return got, None


async def settle() -> None:
    """Let the loop handle what the kernel already has: on the loopback that is all that was sent or closed."""
    await turns(10)


def was_reused(response: Response) -> bool:
    return bool(response.reused)  # type: ignore[attr-defined]  # of both implementations, for statistics
