"""Notices edits of files, however they are made: written in place, renamed over, swapped by a symbolic link, deleted
and created again, mounted from elsewhere.

Directories are watched, because an editor that renames a new file over the old one causes no event at the old one. An
event only causes a look: whether there was an edit is decided by the content of the files. A look every half second
finds edits without events: on a network mount, or behind a link in the middle of a path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from pathlib import Path

from watchfiles import watch

from gateway.config.problems import Digests
from gateway.config.sources import look

log = logging.getLogger("gateway.config")

STEP = 200  # milliseconds; an edit is complete when no event has come for one to two of these
LOOK = 500  # milliseconds between two looks without any event

Places = Mapping[Path, tuple[int, int]]


async def edits(known: Callable[[], Digests]) -> AsyncGenerator[None, None]:
    """One item whenever the content of a file differs from its digest in `known()`. The caller then reads all files;
    an edit made meanwhile gives one more item. Raises what the watch fails with.

    A thread watches, so that the event loop is not woken while nothing happens."""
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
        watcher.stopped.set()
        watcher.read.set()
        await asyncio.to_thread(watcher.join)


class _Watcher(threading.Thread):
    """`noticed`: there was an edit, or an `error`; the next one is looked for when the files are `read`."""

    def __init__(self, known: Callable[[], Digests], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="edits", daemon=True)
        self.noticed = asyncio.Event()
        self.read = threading.Event()
        self.stopped = threading.Event()
        self.error: Exception | None = None
        self._known = known
        self._loop = loop

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self._watch(places(self._known()))
        except Exception as error:
            self.error = error
            self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            self._loop.call_soon_threadsafe(self.noticed.set)

    def _watch(self, watched: Places) -> None:
        """Until a directory is added or replaced, which has to be watched then."""
        with contextlib.closing(_wakes(watched, self.stopped)) as wakes:
            for _ in wakes:
                before = self._known()
                now, there = _survey(tuple(before))
                if self.stopped.is_set():
                    return
                if self._known() is not before:
                    continue  # the caller has read the files meanwhile
                if now != before:
                    self.read.clear()
                    self._tell()
                    self.read.wait()
                elif there != watched:
                    return


def _survey(files: Iterable[Path]) -> tuple[Digests, Places]:
    return look(files), places(files)


def _wakes(watched: Places, stopped: threading.Event) -> Generator[None, None, None]:
    """One item at once, then one after each event in these places and every half second."""
    yield
    if watched:
        events = watch(
            *watched,
            watch_filter=None,
            step=STEP,
            stop_event=stopped,
            rust_timeout=LOOK,
            yield_on_timeout=True,
            recursive=False,
            ignore_permission_denied=True,
        )
        try:
            for _ in events:
                yield
        except (OSError, RuntimeError) as error:  # a place is gone, or the system has no watches left
            log.debug("the files are only looked at: %s", error)
    stopped.wait(LOOK / 1000)
    yield


def places(files: Iterable[Path]) -> Places:
    """What to watch for these files, each place with its device and inode: the files (a mounted file has events of its
    own), their directories, and the directories to which links lead."""
    wanted: set[Path] = set()
    for file in files:
        try:
            wanted |= {file, file.parent, file.resolve().parent}
        except (OSError, RuntimeError):  # links that lead in a circle
            wanted |= {file.parent}
    found = {}
    for place in wanted:
        try:
            status = place.stat()
        except OSError:
            continue
        found[place] = (status.st_dev, status.st_ino)
    return found
