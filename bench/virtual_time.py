"""An event loop whose time passes only while nothing is to be done, so that what is simulated in it takes as long as it
says, whatever the machine does meanwhile. Sockets are real ones."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

GRACE = 0.0003  # real seconds for threads and the kernel, before time is let pass

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Lets time pass instead of waiting. `grace`: real seconds in which nothing came, before time is let pass."""

    now = 1_000_000.0  # seconds

    def __init__(self, grace: float) -> None:
        super().__init__()
        self._grace = grace

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if found := super().select(self._grace if timeout is not None else None):
            return found
        self.now += timeout or 0.0
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, selector: _Selector) -> None:
        self._clock = selector
        super().__init__(selector)

    def time(self) -> float:
        return self._clock.now


@contextmanager
def _monotonic(selector: _Selector) -> Iterator[None]:
    """`time.monotonic` tells the loop's time."""
    real = time.monotonic
    time.monotonic = lambda: selector.now
    try:
        yield
    finally:
        time.monotonic = real


def run(main: Coroutine[Any, Any, T], grace: float = GRACE) -> T:
    """As `asyncio.run`, in time that is simulated. `grace`: more where another process is part of it."""
    selector = _Selector(grace)
    with _monotonic(selector), asyncio.Runner(loop_factory=lambda: _Loop(selector)) as runner:
        return runner.run(main)
