"""Which models a simulated Ollama holds in memory: loads that take time and end with the client that began them, the
window and the expiry of each, and who has to wait or to go for another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Sequence as List
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from simulator.memory import GIB, Node, Share
from simulator.ollama_request import OllamaError, keep_alive_seconds
from simulator.server import ClientGone, Exchange

KEEP_ALIVE = 300  # seconds that a model stays after a use, where the request that loaded it did not say
BUSY = "server busy, please try again.  maximum pending requests exceeded"


@dataclass(slots=True)
class Runner:
    """A model in memory. `shift`: as it was loaded with. `keep`: seconds that it stays after a use, `until`: Unix
    seconds at which it goes if it is not used before. `users`: requests that it computes."""

    name: str
    window: int
    shift: bool
    keep: float
    until: float = 0.0
    users: int = 0
    loading: bool = True

    @property
    def expires(self) -> float:
        return time.time() + self.keep if self.loading else self.until


class Runners:
    """`load`: real seconds that a load takes. `most`: OLLAMA_MAX_LOADED_MODELS; None = as many as the memory holds.
    `queue`: OLLAMA_MAX_QUEUE, which counts only requests that need a load. `weights`: name -> the file that it shares
    with other names, and with it the runner. `shifts`: another `shift` than before is another load."""

    def __init__(self, load: float, speedup: float, on_change: Callable[[], None]) -> None:
        self.load, self.speedup = load, speedup
        self.most: int | None = None
        self.queue = 512
        self.weights: Mapping[str, str] = {}
        self.shares: Mapping[str, List[Share]] = {}
        self.shifts = False
        self.loads = 0  # that came to their end
        self.aborted = 0  # loads whose client left
        self.gate: asyncio.Event | None = None  # a load ends when it is set, however long it has taken
        self._runners: dict[str, Runner] = {}  # by file of weights
        self._pending = 0
        self._turns: dict[str, asyncio.Lock] = {}
        self._freed = asyncio.Event()
        self._on_change = on_change

    @property
    def loaded(self) -> dict[str, Runner]:
        """Name -> runner. A name that shares the runner of another one is not among them."""
        now = time.time()
        self._runners = {f: r for f, r in self._runners.items() if r.users or r.loading or r.until > now}
        return {runner.name: runner for runner in self._runners.values()}

    def clear(self) -> None:
        self._runners.clear()
        self._changed()

    def unload(self, model: str) -> None:
        """As `ollama stop` does."""
        self._runners.pop(self._file(model), None)
        self._changed()

    def held_on(self, node: Node) -> int:
        shares = (share for model in self.loaded for share in self.shares.get(model, ()))
        return sum(share.holds for share in shares if share.node is node)

    @asynccontextmanager
    async def used(
        self, exchange: Exchange, model: str, window: int, body: Mapping[str, Any]
    ) -> AsyncIterator[tuple[int, float]]:
        """The model, loaded for one request: (its window, seconds that the load took). The client that leaves
        meanwhile takes its load with it."""
        if exchange.gone:
            raise ClientGone
        began = time.monotonic()
        entering = asyncio.ensure_future(self._enter(model, window, body))

        def left() -> None:
            entering.cancel()

        exchange.on_lost.append(left)
        try:
            runner = await entering
        except asyncio.CancelledError:
            entering.cancel()
            if exchange.gone:
                raise ClientGone from None
            raise
        try:
            yield runner.window, time.monotonic() - began
        finally:
            runner.users -= 1
            runner.until = time.time() + runner.keep
            self._changed()

    async def _enter(self, model: str, window: int, body: Mapping[str, Any]) -> Runner:
        file, keep = self._file(model), body.get("keep_alive")
        shift = body.get("shift") is not False or not self.shifts
        asked = None if keep is None else keep_alive_seconds(keep) / self.speedup
        if not self._fits(file, window, shift):
            if self._pending >= self.queue:
                raise OllamaError(503, BUSY)
            self._pending += 1
            try:
                async with self._turn(file):
                    if not self._fits(file, window, shift):
                        kept = KEEP_ALIVE / self.speedup if asked is None else asked
                        await self._bring_in(file, Runner(model, window, shift, kept))
                    return self._begin(file, asked)
            finally:
                self._pending -= 1
        async with self._turn(file):  # behind the requests for other models that wait for this one's end
            if self._fits(file, window, shift):
                return self._begin(file, asked)
        return await self._enter(model, window, body)

    def _begin(self, file: str, keep: float | None) -> Runner:
        runner = self._runners[file]
        runner.users += 1
        runner.keep = runner.keep if keep is None else keep
        return runner

    def _fits(self, file: str, window: int, shift: bool) -> bool:
        runner = self._runners.get(file) if self.loaded else None
        return runner is not None and not runner.loading and (runner.window, runner.shift) == (window, shift)

    async def _bring_in(self, file: str, runner: Runner) -> None:
        """Raises OllamaError when its memory is not free."""
        await self._idle(self._runners.get(file))
        self._runners.pop(file, None)
        while self.most is not None and len(self.loaded) >= self.most:
            oldest = next(iter(self._runners))
            await self._idle(self._runners[oldest])
            self._runners.pop(oldest, None)
        self._check_memory(runner.name)
        self._runners[file] = runner
        self._changed()
        try:
            await asyncio.sleep(self.load / self.speedup)
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.aborted += 1
            if self._runners.get(file) is runner:
                del self._runners[file]
            raise
        finally:
            self._changed()
        runner.loading, runner.until = False, time.time() + runner.keep
        self._runners[file] = runner
        self.loads += 1

    def _check_memory(self, model: str) -> None:
        for share in self.shares.get(model, ()):
            if share.holds > share.node.free() and not any(r.users for r in self._runners.values()):
                self._runners.clear()
            free = share.node.free()
            if share.holds > free:
                wanted = f"{share.holds / GIB:.1f} GiB) than is available ({max(free, 0) / GIB:.1f} GiB)"
                raise OllamaError(500, f"model requires more system memory ({wanted}")

    async def _idle(self, runner: Runner | None) -> None:
        while runner is not None and runner.users:
            self._freed.clear()
            await self._freed.wait()

    def _turn(self, file: str) -> asyncio.Lock:
        return self._turns.setdefault("" if self.most is not None else file, asyncio.Lock())

    def _file(self, model: str) -> str:
        return self.weights.get(model, model)

    def _changed(self) -> None:
        self._freed.set()
        self._on_change()
