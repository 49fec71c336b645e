"""A proxy for the benchmark's own tests: passes bytes on, and can be told to lose an event or to refuse."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.replies import DELTAS

REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lose: bytes) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data.replace(lose, b"", 1) if lose else data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def relay(upstream: int, *, lose_event: bool = False, refuse: bool = False, port: int = 0) -> AsyncIterator[int]:
    """A listener on 127.0.0.1 in front of `upstream`; yields its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if refuse:
            await reader.read(65536)
            writer.write(REFUSAL)
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", upstream)
        await asyncio.gather(_pump(reader, back, b""), _pump(there, writer, DELTAS[0] if lose_event else b""))

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
