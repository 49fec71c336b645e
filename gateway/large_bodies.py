"""Long work on a large body or page: in a thread, so that other requests are served meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")

LARGE = 128 * 1024  # bytes of a body that is translated; a smaller one takes milliseconds, in the worst case 20
SEARCHED = 1024 * 1024  # bytes of a body that is only read: its fields, and a search for media; 2 ms
PACE = 32 * 1024 * 1024  # bytes a second of large conversations that are read from the disk and joined
# Python runs one thread at a time: each further one would make the event loop wait for its turn longer.
THREADS = 2
_waiting: set[asyncio.Task[Any] | None] = set()


async def apart(sender: str, work: Callable[[], T]) -> T:
    """The result of `work`, which must touch nothing that others change. The event loop and the thread take turns,
    every few milliseconds. `sender` is the client whose body it is: its other work waits, and nobody else's."""
    task = asyncio.current_task()
    _waiting.add(task)
    try:
        return await asyncio.wrap_future(_threads().submit(sender, work))
    finally:
        _waiting.discard(task)


async def apart_if_large(sender: str, size: int, work: Callable[[], T], most: int = SEARCHED) -> T:
    """`apart` for work on more than `most` bytes (LARGE where they are translated); less is done here, at once."""
    return work() if size <= most else await apart(sender, work)


class Paced:
    """Large work in turn, with a rest of at least its own time behind it: some of it keeps the event loop, although it
    is done apart."""

    def __init__(self, rate: float = PACE, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait for the turn of work on `size` bytes, and hold it. Small work has no turn."""
        if size <= SEARCHED:
            yield
            return
        async with self._turn:
            if (left := self._free_at - self._clock()) > 0:
                await asyncio.sleep(left)
            began = self._clock()
            try:
                yield
            finally:
                now = self._clock()
                self._free_at = now + max(size / self._rate, now - began)


def is_apart(task: asyncio.Task[Any]) -> bool:
    """Does this task wait for its `apart`, and so for nobody but the gateway itself?"""
    return task in _waiting


class SharedThreads:
    """Threads that many senders share. Each sender has one of them at a time, and when it has had one, the others that
    wait come first."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, "large-body")
        self._lock = Lock()
        self._queues: dict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = {}  # sender -> its work, in turn
        self._served: set[str] = set()  # senders that have a thread

    def submit(self, sender: str, work: Callable[[], T]) -> Future[T]:
        result: Future[T] = Future()
        with self._lock:
            self._queues.setdefault(sender, deque()).append((result, work))
        self._threads.submit(self._run)
        return result

    def _run(self) -> None:
        """Work until only senders wait that have another thread, which goes on with theirs."""
        while (found := self._next()) is not None:
            sender, result, work = found
            try:
                if result.set_running_or_notify_cancel():  # else its request was given up
                    result.set_result(work())
            except BaseException as error:
                result.set_exception(error)
            finally:
                del found, result, work  # this thread would hold the body until its next work
                with self._lock:
                    self._served.discard(sender)

    def _next(self) -> tuple[str, Future[Any], Callable[[], Any]] | None:
        with self._lock:
            sender = next((one for one in self._queues if one not in self._served), None)
            if sender is None:
                return None
            queue = self._queues.pop(sender)
            result, work = queue.popleft()
            if queue:
                self._queues[sender] = queue  # behind all others
            self._served.add(sender)
            return sender, result, work


@cache
def _threads() -> SharedThreads:
    return SharedThreads(THREADS)
