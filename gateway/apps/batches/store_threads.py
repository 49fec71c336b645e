"""The threads in which the store of batches is used, and how its failures are told."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from gateway.apps.batches.records import BatchRecord
from gateway.apps.batches.store import BatchStore, StoreAway, StoreFailed, StoreFull
from gateway.proxy.services import Services
from gateway.shortage import WORDS, Kind, shortage_of

T = TypeVar("T")

log = logging.getLogger("gateway.apps.batches")

AWAY = 0.5  # seconds until a store that is away is asked again
FULL = 5.0  # the same of one that is full, or whose disk fails: a validation begins anew each time
NOTED_EVERY = 60.0  # seconds between two reports of a disk that fails


class StoreThreads:
    """`store` is used nowhere else."""

    def __init__(self, store: BatchStore, services: Services) -> None:
        self._store = store
        self._services = services
        self._thread = ThreadPoolExecutor(store.threads, "batches")
        self._noted = float("-inf")  # when a failure of the store was last reported

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    async def run(self, work: Callable[..., T], *args: Any, **more: Any) -> T:
        """Run one method of the store. Raises StoreAway, also where its disk fails."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args, **more))
        except StoreFailed:
            self._note_failure()
            raise
        except StoreFull as error:
            self._say(error)
            raise
        except (OSError, sqlite3.Error) as error:
            if (kind := shortage_of(error)) is not None:
                raise self._short_of(kind) from None
            self._note_failure()
            raise StoreFailed(f"The gateway cannot use {self._store.where}: {error}") from None

    def _note_failure(self) -> None:
        """Report that the store fails, and not again for a while: what asks it goes on asking."""
        clock = time.monotonic()
        if clock - self._noted >= NOTED_EVERY:
            self._noted = clock
            self._services.metrics.failures.note("batches", f"using {self._store.where}")

    def _short_of(self, kind: Kind) -> StoreFull:
        self._services.on_short(kind)
        full = StoreFull(f"The gateway itself is short of {WORDS[kind]}: delete files, or make room there.")
        self._say(full)
        return full

    def _say(self, full: StoreFull) -> None:
        """In the log, and not again for a while."""
        clock = time.monotonic()
        if clock - self._noted >= NOTED_EVERY:
            self._noted = clock
            log.error("batches wait, and results that have come are kept in memory: %s", full)

    async def patiently(self, work: Callable[..., T], *args: Any, **more: Any) -> T:
        """Run one method of the store; while that is away, full or broken, again and again."""
        while True:
            try:
                return await self.run(work, *args, **more)
            except StoreAway as error:
                log.debug("batches wait: %s", error)
                await asyncio.sleep(pause_of(error))

    async def in_steps(self, begin: Callable[[], Iterator[BatchRecord | None]]) -> BatchRecord:
        """Long work of the store, step by step: what others ask of it comes between two steps. While the store is away,
        full or broken, from the beginning again and again."""
        while True:
            steps = begin()
            try:
                done: BatchRecord | None = None
                while done is None:
                    done = await self.run(next, steps)
                return done
            except StoreAway as error:
                log.debug("batches wait: %s", error)
                await asyncio.sleep(pause_of(error))


def pause_of(error: StoreAway) -> float:
    """Seconds until the store is asked again."""
    return FULL if isinstance(error, StoreFull | StoreFailed) else AWAY
