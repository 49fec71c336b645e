"""An event loop whose clock is made up: what waits for half an hour takes no time, and always goes the same way."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Clock(selectors.SelectSelector):
    """Instead of waiting it lets the time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run_virtual(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end in made-up time. Nothing in there may use sockets or threads."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)
