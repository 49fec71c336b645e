"""Records that the event loop queues, and a thread writes to a file of `server.data`.

`kill -9` loses what was queued since the last write. While the file cannot be written, requests go on, the error is
logged once, and the newest records are kept. A single record that cannot be stored is set aside, so that no other is
lost.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

from gateway.supervision import Failures

T = TypeVar("T")

# Errors that mean that this one record cannot be stored. (Any other error means that nothing can be stored for now.)
UNFIT = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    TypeError,
    ValueError,
)


class QueuedWriter(Generic[T]):
    """`put` is for the event loop's thread and never waits. `part`: its name in logs and metrics; `file`: what it
    writes, for people. `flush`: seconds until a record is written; `retry_most`: between two tries. `kept`: records
    that wait, in a burst or while the file cannot be written; `at_once`: those of one write. `lost`: dropped ones."""

    part: str
    file: str
    flush = 0.5
    retry_most = 30.0
    kept = 50_000
    at_once = kept

    def __init__(self, path: Path, failures: Failures | None = None) -> None:
        self.path = path
        self.lost = 0
        self._log = logging.getLogger(f"gateway.{self.part}")
        self._failures = failures or Failures()
        self._queue: deque[T] = deque(maxlen=self.kept)
        self._held: list[T] = []  # taken from the queue, not written yet
        self._using = threading.Lock()  # for the file and what is held
        self._wake = threading.Event()
        self._awake = False  # it is set; asking it costs more
        self._stop = threading.Event()
        self._thread = self._failures.thread(self.part, self._run, self._stop)
        self._pause = self.flush

    def store(self, records: Sequence[T]) -> None:
        """Write all or none. Raises sqlite3.Error, OSError."""
        raise NotImplementedError

    def close_file(self) -> None:
        raise NotImplementedError

    def put(self, record: T) -> None:
        if len(self._queue) == self.kept:
            self.lost += 1
        self._queue.append(record)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Write the remaining records and stop; gives up after some seconds."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(10.0)
        if unwritten := len(self._held) + len(self._queue):
            self.lost += unwritten
            text = "%s %s could not be written until the end; entries lost: %d"
            self._log.error(text, self.file, self.path, self.lost)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._stop.wait(self._pause)
            self._wake.clear()
            self._awake = False  # before the queue is looked at
            with self._using:
                try:
                    self.write(self.kept if self._stop.is_set() else self.at_once)
                except (sqlite3.Error, OSError) as error:
                    self._failed(error)
            if self._held or self._queue:
                self._wake.set()
        with self._using:
            self.close_file()

    def write(self, most: int) -> None:
        """Write the oldest records that wait. Raises if nothing can be written now; then they are held."""
        held, queue = self._held, self._queue
        if (over := len(held) + len(queue) - self.kept) > 0:
            self.lost += over
            del held[:over]
        held += [queue.popleft() for _ in range(min(most - len(held), len(queue)))]
        if not held:
            return
        try:
            self.store(held)
        except sqlite3.OperationalError:
            raise
        except UNFIT as error:
            self._store_each(error)
        held.clear()
        if self._pause != self.flush:
            self._log.info("%s %s is written again; entries lost: %d", self.file, self.path, self.lost)
            self._pause = self.flush

    def _store_each(self, error: Exception) -> None:
        """One of the records that are held cannot be stored: the others are."""
        refused = 0
        while self._held:
            try:
                self.store(self._held[:1])
            except sqlite3.OperationalError:
                raise
            except UNFIT:
                refused += 1
                self.lost += 1
            del self._held[0]
        if refused:
            self._log.error("%s %s does not take %d entries (%s): set aside", self.file, self.path, refused, error)
            self._failures.count(self.part)

    def _failed(self, error: Exception) -> None:
        self.close_file()
        if self._pause == self.flush:
            self._failures.count(self.part)
            text = "%s %s cannot be written (%s): requests go on, the newest %d are kept until it can"
            self._log.error(text, self.file, self.path, error, self.kept)
        self._pause = min(self._pause * 2.0, self.retry_most)
