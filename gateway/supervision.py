"""Supervises the gateway's own background work: an exception is logged with its traceback and counted, and the work
is restarted. It ends no task and no thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Protocol, TypeVar

log = logging.getLogger("gateway.supervision")

K = TypeVar("K")
Start = Callable[[], Coroutine[Any, Any, object]]

AGAIN = 1.0  # seconds until failed work is restarted


async def cancel(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel these tasks, as far as there are any, and wait until all have ended."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


class Counter(Protocol):
    def inc(self, *values: str) -> None: ...


class Closable(Protocol):
    async def close(self) -> None: ...


class Failures:
    """Failures of the gateway's own parts. `counter` counts them by part (`gateway_internal_failures_total`), for
    alerts too; None = they are only logged."""

    def __init__(self, counter: Counter | None = None) -> None:
        self._counter = counter

    def note(self, part: str, what: str, error: BaseException | None = None) -> None:
        """Log and count that `what` has failed with `error`, or with the exception that is being handled. For any
        thread."""
        log.error("%s failed inside the gateway", what, exc_info=error or True)
        self.count(part)

    def count(self, part: str) -> None:
        """Count a failure that was logged already."""
        if self._counter is not None:
            self._counter.inc(part)

    def task(self, part: str, run: Callable[[], Awaitable[object]], name: str | None = None) -> asyncio.Task[None]:
        """A task that runs until `run` returns or the task is cancelled; restarted when it fails."""
        return asyncio.create_task(self._keep(part, run, name or part), name=name or part)

    def once(self, part: str, work: Coroutine[Any, Any, object], name: str | None = None) -> asyncio.Task[Any]:
        """A task that is not restarted when it fails, because it will be started again for another reason."""
        task: asyncio.Task[object] = asyncio.create_task(work, name=name or part)
        task.add_done_callback(lambda done: self._ended(part, done))
        return task

    def only(
        self, running: MutableMapping[K, asyncio.Task[Any]], key: K, part: str, run: Start, name: str
    ) -> asyncio.Task[Any]:
        """The task of this key that is `running`, else a new one of `once`, which leaves `running` when it ends."""
        task = running.get(key)
        if task is None:
            task = running[key] = self.once(part, run(), name)
            task.add_done_callback(lambda _: running.pop(key, None))
        return task

    def thread(self, part: str, run: Callable[[], object], stop: threading.Event) -> threading.Thread:
        """A thread, not started yet, that runs until `run` returns; restarted when it fails, until `stop` is set."""
        return threading.Thread(target=self._keep_thread, args=(part, run, stop), name=part, daemon=True)

    async def close(self, *parts: Closable | None) -> None:
        """Close part after part, also when one of them fails to."""
        for part in parts:
            try:
                if part is not None:
                    await part.close()
            except Exception:
                self.note("stop", f"closing {type(part).__name__}")

    async def _keep(self, part: str, run: Callable[[], Awaitable[object]], name: str) -> None:
        while True:
            try:
                await run()
            except Exception:
                self.note(part, f"the task '{name}'")
                await asyncio.sleep(AGAIN)
            else:
                return

    def _ended(self, part: str, task: asyncio.Task[object]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.note(part, f"the task '{task.get_name()}'", error)

    def _keep_thread(self, part: str, run: Callable[[], object], stop: threading.Event) -> None:
        while True:
            try:
                run()
            except Exception:
                self.note(part, f"the thread '{part}'")
                if stop.wait(AGAIN):
                    return
            else:
                return
