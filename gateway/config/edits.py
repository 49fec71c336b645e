"""Notices edits of files, however they are made: written in place, renamed over, swapped by a symbolic link, deleted
and created again, mounted from elsewhere.

Directories are watched, because an editor that renames a new file over the old one causes no event at the old one. An
event only causes a look: whether there was an edit is decided by the content of the files. A look every half second
finds edits without events: on a network mount, or behind a link in the middle of a path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path

from watchfiles import awatch

from gateway.config.problems import Digests
from gateway.config.sources import look

log = logging.getLogger("gateway.config")

STEP = 100  # milliseconds; an edit is complete when no event has come for one to two of these
LOOK = 500  # milliseconds between two looks without any event

Places = Mapping[Path, tuple[int, int]]


async def edits(known: Callable[[], Digests]) -> AsyncGenerator[None, None]:
    """One item whenever the content of a file differs from its digest in `known()`. The caller then reads all files;
    an edit made meanwhile gives one more item."""
    while True:
        watched = places(known())
        async with aclosing(_wakes(watched)) as wakes:
            async for _ in wakes:
                before = known()
                now, there = await asyncio.to_thread(_survey, tuple(before))
                if known() is not before:
                    continue  # the caller has read the files meanwhile
                if now != before:
                    yield
                elif there != watched:
                    break  # a directory was added or replaced: watch again


def _survey(files: Iterable[Path]) -> tuple[Digests, Places]:
    return look(files), places(files)


async def _wakes(watched: Places) -> AsyncGenerator[None, None]:
    """One item at once, then one after each event in these places and every half second."""
    yield
    if watched:
        events = awatch(
            *watched,
            watch_filter=None,
            step=STEP,
            rust_timeout=LOOK,
            yield_on_timeout=True,
            recursive=False,
            ignore_permission_denied=True,
        )
        try:
            async with aclosing(events):
                async for _ in events:
                    yield
        except (OSError, RuntimeError) as error:  # a place is gone, or the system has no watches left
            log.debug("the files are only looked at: %s", error)
    await asyncio.sleep(LOOK / 1000)
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
