"""Waiting for what has no event of its own: another process, a file, the kernel's buffers. Wherever there is an event
(an asyncio.Event, a simulated server's `wait_for`), tests wait for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE = 20.0  # seconds until a wait in a test is called hung
_HERE, _ELSEWHERE = 0.005, 0.01  # seconds between two looks: in this loop, at another process
_FROZEN = 0.1  # seconds: of a look that takes longer, the rest does not count as waiting
_STILL = 0.15  # seconds without a change after which something stands still

T = TypeVar("T")


async def turns(count: int = 1) -> None:
    """Let the loop run so many rounds: what is ready runs, and no time has to pass."""
    for _ in range(count):
        await asyncio.sleep(0)


async def pace(seconds: float) -> None:
    """How quickly a simulated client, backend or editor goes on. It is part of what is played, such as a reader that is
    slow, and never a wait for what the gateway does."""
    await asyncio.sleep(seconds)


async def until(condition: Callable[[], object], within: float = PATIENCE) -> None:
    """TimeoutError when it never comes. Time in which the machine did not let this process run does not count: what is
    waited for runs in this process too, and has had no chance either."""
    left = within
    while not condition():
        if left <= 0:
            raise TimeoutError
        before = time.monotonic()
        await asyncio.sleep(_HERE)
        left -= min(time.monotonic() - before, _FROZEN)


async def until_said(ask: Callable[[], Awaitable[T | None]], within: float = PATIENCE) -> T:
    """What `ask` gives, once it is true."""
    async with asyncio.timeout(within):
        while not (said := await ask()):
            await asyncio.sleep(_ELSEWHERE)
        return said


async def standing(count: Callable[[], int], within: float = PATIENCE) -> int:
    """What `count` gives when it does not change any more; it must have become something (not 0)."""
    async with asyncio.timeout(within):
        while True:
            before = count()
            await asyncio.sleep(_STILL)
            if before and count() == before:
                return before


def wait_until(condition: Callable[[], object], within: float = PATIENCE, why: Callable[[], str] = str) -> None:
    """As `until`, without a loop; fails with what `why` tells."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"it did not come within {within} s. {why()}"
        time.sleep(_ELSEWHERE)
