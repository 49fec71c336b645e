"""Reads pages of metrics in Prometheus' text format from backends and exporters. A page may be of any size, so it is
read in slices, between which the event loop can run other tasks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Iterator
from typing import TypeVar

SLICE = 64 * 1024  # bytes of a page that are read without a pause
NUMBER_MOST = 64  # characters of a number
LABELS_MOST = 200  # labels of a sample
LABELLED_MOST = 16 * 1024  # bytes of a line of which the labels are read
VALUE_MOST = 1e15  # larger values are not believed, whether counts, bytes or seconds

_LABEL = re.compile(rb'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)",?')

T = TypeVar("T")


def slices(page: bytes) -> Iterator[list[bytes]]:
    """The lines of `page`, a slice of them at a time. A line that is longer than a slice is skipped."""
    at = 0
    while at < len(page):
        end = page.rfind(b"\n", at, at + SLICE) if at + SLICE < len(page) else len(page)
        if end >= at:
            yield page[at:end].split(b"\n")
        else:
            following = page.find(b"\n", at + SLICE)
            end = following if following >= 0 else len(page)
        at = end + 1


def split_sample(line: bytes) -> tuple[bytes, bytes, bytes]:
    """(name, labels, value) of a line with labels; a label may hold any text."""
    name, _, rest = line.partition(b"{")
    labels, _, value = rest.rpartition(b"} ")
    return name, labels, value


def labels_of(line: bytes) -> dict[bytes, bytes]:
    """Label -> value of a line; escapes in a value stay as they are. What follows a label that is none is left out, and
    so is a line that is too long."""
    found: dict[bytes, bytes] = {}
    if len(line) > LABELLED_MOST:
        return found
    at = line.find(b"{") + 1
    while len(found) < LABELS_MOST and (label := _LABEL.match(line, at)) is not None:
        found[label[1]] = label[2]
        at = label.end()
    return found


def number(text: bytes) -> float | None:
    """The value of a sample, whether or not a timestamp follows. None where it cannot be a count: it is not a number,
    or is infinite, negative or too large."""
    word = text[: 2 * NUMBER_MOST].split(None, 1)[:1]
    if not word or len(word[0]) > NUMBER_MOST:
        return None
    try:
        value = float(word[0])
    except ValueError:
        return None
    return value if 0.0 <= value <= VALUE_MOST else None  # NaN compares as False


async def in_turns(reading: Generator[None, None, T]) -> T:
    """The result of a reader that yields between its slices; other tasks run in between."""
    while True:
        try:
            next(reading)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
