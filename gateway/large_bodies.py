"""Work that goes through a large body value by value: in a thread, so that other requests are served meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

LARGE = 128 * 1024  # bytes of a body that is translated; a smaller one takes milliseconds, in the worst case 20
SEARCHED = 1024 * 1024  # bytes of a body that is searched for media
# Python runs one thread at a time: each further one would make the event loop wait for its turn longer.
THREADS = 2
_waiting: set[asyncio.Task[Any] | None] = set()


async def apart(work: Callable[[], T]) -> T:
    """The result of `work`, which must touch nothing that others change. The event loop and the thread take turns,
    every few milliseconds."""
    task = asyncio.current_task()
    _waiting.add(task)
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads(), work)
    finally:
        _waiting.discard(task)


def is_apart(task: asyncio.Task[Any]) -> bool:
    """Does this task wait for its `apart`, and so for nobody but the gateway itself?"""
    return task in _waiting


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "large-body")
