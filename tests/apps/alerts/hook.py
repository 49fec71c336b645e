"""A server that alerts are sent to: it keeps what it was asked, and answers as a test wants."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.scripted import answer, json_answer

PATIENCE = 10.0  # seconds until a wait in a test is called hung
OK = answer(b"ok", content_type="text/plain")
HANG = b""


@dataclass
class Asked:
    method: str
    path: str
    body: bytes
    at: float  # monotonic

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Hook:
    """Request number n gets answer n, the last one repeats; `HANG` = none."""

    answers: tuple[bytes, ...]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def texts(self) -> list[str]:
        return [asked.json["text"] for asked in self.asked]

    def told(self) -> list[tuple[str, str]]:
        """(kind, name) of all alerts that came to a webhook."""
        return [(a["kind"], a["name"]) for asked in self.asked for a in asked.json["alerts"]]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_asked(self, times: int) -> None:
        await self.until(lambda: len(self.asked) >= times)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                _, *lines = head.lower().split("\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
                body = await reader.readexactly(length)
                method, path, _ = head.split(" ", 2)
                self.asked.append(Asked(method, path, body, time.monotonic()))
                self._changed.set()
                said = self.answers[min(len(self.asked), len(self.answers)) - 1]
                if said == HANG:
                    await reader.read()
                    return
                writer.write(said)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def hooked(*answers: bytes) -> AsyncIterator[Hook]:
    hook = Hook(answers or (OK,))
    server = await asyncio.start_server(hook.accept, "127.0.0.1", 0)
    hook.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield hook
    finally:
        server.close()
        await hook.close()


def refusal(status: str, *headers: str, body: object = None) -> bytes:
    raw = json.dumps(body or {"ok": False}).encode()
    return answer(raw, status, "application/json", *headers) if headers else json_answer(body or {"ok": False}, status)
