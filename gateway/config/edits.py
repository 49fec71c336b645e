"""Notices edits of files, however they are made: written in place, renamed over, swapped by a symbolic link, deleted
and created again, mounted from elsewhere.

A look at a file's size and times, a few times a second, costs a tenth of what the system's reports of changes cost, and
works on network mounts and behind links, of which no system reports everything. Whether there was an edit is decided by
the content.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path

from gateway.config.problems import Digests
from gateway.config.sources import look

LOOK = 0.25  # seconds between two looks; an edit is complete when two looks find the same
READ = 8  # looks after which the files are read also where their sizes and times are the same

Marks = list[tuple[int, ...] | None]


async def edits(known: Callable[[], Digests]) -> AsyncGenerator[None, None]:
    """One item whenever the content of a file differs from its digest in `known()`. The caller then reads all files;
    an edit made meanwhile gives one more item. Raises what the watch fails with.

    A thread watches: the event loop is not woken while nothing happens, and does not wait for a mount that hangs."""
    watcher = _Watcher(known, asyncio.get_running_loop())
    watcher.start()
    try:
        while True:
            await watcher.noticed.wait()
            watcher.noticed.clear()
            if watcher.error is not None:
                raise watcher.error
            yield
            watcher.read.set()
    finally:
        watcher.stop()
        await asyncio.to_thread(watcher.join)


class _Watcher(threading.Thread):
    """`noticed`: there was an edit, or an `error`; the next one is looked for when the files are `read`."""

    def __init__(self, known: Callable[[], Digests], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="edits", daemon=True)
        self.noticed = asyncio.Event()
        self.read = threading.Event()
        self._watching = threading.Lock()  # held until it stops: waiting for a lock is one call, for an event twenty
        self._watching.acquire()
        self.error: Exception | None = None
        self._known = known
        self._loop = loop

    def stop(self) -> None:
        self._watching.release()
        self.read.set()

    def run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            self.error = error
            self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            self._loop.call_soon_threadsafe(self.noticed.set)

    def _watch(self) -> None:
        looks = 0
        settled: Marks | None = None  # of files without an edit
        edited: Digests | None = None  # what the latest look has found instead
        while not self._watching.acquire(timeout=LOOK):
            looks += 1
            known = self._known()
            marks = marks_of(known)
            if settled == marks and looks % READ:
                continue
            found = look(known)
            if self._known() is not known:
                continue  # the caller has read the files meanwhile
            settled = marks if found == known else None
            if settled is None and found == edited:
                self._tell()
                self.read.wait()  # or until it is stopped, which may have been before
                self.read.clear()
                found = known
            edited = found


def marks_of(files: Iterable[Path]) -> Marks:
    """What changes with nearly every edit of each of these files; None where there is none."""
    return [_mark_of(file) for file in files]


def _mark_of(file: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
