"""Limits in seconds that mean the same on every machine: a slow one, or one that others use too, has more of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# CPU seconds of `_work` on the machine that the limits are for, with nobody else on it: one where nginx needs 20 us
# for a small request (`make bench`). Where it needs 48, `_work` takes twice as long.
_CPU = 0.045
_PARTS = re.compile(r'"[^"]*"|[{}:,\[\]]|\d+')
_TEXT = '{"name": "get_weather", "days": [1, 2, 3], "city": "Oslo"},\n' * 2500


@contextmanager
def cpu_within(seconds: float) -> Iterator[None]:
    """AssertionError when the block takes more CPU seconds of this process."""
    yield from _within(seconds, time.process_time)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """AssertionError when the block takes longer."""
    yield from _within(seconds, time.perf_counter)


def slowness(clock: Callable[[], float] = time.process_time) -> float:
    """How many times as long as on the machine of the limits a fixed piece of work takes at the moment; at least 1."""
    began = clock()
    _work()
    return max(1.0, (clock() - began) / _CPU)


def _within(seconds: float, clock: Callable[[], float]) -> Iterator[None]:
    before, began = slowness(clock), clock()
    yield
    took = clock() - began
    slower = max(before, slowness(clock))
    assert took < seconds * slower, f"{took:.2f} s instead of {seconds} s; this machine is {slower:.1f} times slower"


def _work() -> int:
    """What a parser in Python does: matches, slices, lookups, and small objects all over the memory."""
    kept: dict[tuple[str, int], list[int]] = {}
    for found in _PARTS.finditer(_TEXT):
        kept[found.group(), found.start()] = [found.start(), found.end()]
    keys = list(kept)
    step, at, total = 7919, 0, 0  # a prime: neighbours in time are no neighbours in memory
    for _ in keys:
        at = (at + step) % len(keys)
        total += kept[keys[at]][1]
    return total
