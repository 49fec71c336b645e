"""Notices edits of files, however they are made: written in place, renamed over, swapped by a symbolic link, deleted
and made anew, mounted from elsewhere.

What is watched are directories, since an editor that renames leaves no trace at the file itself; and whatever wakes us,
only the files' content tells whether there was an edit. A look every half second finds what no file system tells of:
edits on a network mount, or behind a link in the middle of a path.
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

STEP = 50  # milliseconds; an edit is over when nothing has happened for one to two of these
LOOK = 500  # milliseconds between two looks without any event

Places = Mapping[Path, tuple[int, int]]


async def edits(known: Callable[[], Digests]) -> AsyncGenerator[None, None]:
    """One item whenever one of the files that are `known` holds something else than is known of it. The caller reads
    them all; what is edited meanwhile is one more edit."""
    while True:
        watched = places(known())
        async with aclosing(_wakes(watched)) as wakes:
            async for _ in wakes:
                before = known()
                now, there = await asyncio.to_thread(_survey, tuple(before))
                if known() is not before:
                    continue  # all was read meanwhile
                if now != before:
                    yield
                elif there != watched:
                    break  # another directory, or another one in its place


def _survey(files: Iterable[Path]) -> tuple[Digests, Places]:
    return look(files), places(files)


async def _wakes(watched: Places) -> AsyncGenerator[None, None]:
    """One item at once, then after each event in these places, and every half second."""
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
        except (OSError, RuntimeError) as error:  # gone meanwhile, or the system has no watches left
            log.debug("the files are only looked at: %s", error)
    await asyncio.sleep(LOOK / 1000)
    yield


def places(files: Iterable[Path]) -> Places:
    """What to watch for these files: they themselves (a file that is mounted has no directory of its own), their
    directories, and those to which links lead; each with its device and inode."""
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
