"""Readers of pages yield between their slices; a test has the whole page read in one go."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def whole(reading: Generator[None, None, T]) -> T:
    """The result of a reader that yields between its slices."""
    while True:
        try:
            next(reading)
        except StopIteration as end:
            result: T = end.value
            return result
