"""In which order things are measured: ways take turns, and who begins changes, so that drift hits all alike. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def turns(items: Sequence[int], ways: Sequence[str], repeats: int) -> Iterator[tuple[int, int, str]]:
    """(repeat, item, way) of all that is to be measured: within a repeat every item (a length of prompt, a concurrency)
    once by each way, one way right after the other."""
    for repeat in range(repeats):
        for place, item in enumerate(items):
            ordered = ways if (repeat + place) % 2 == 0 else ways[::-1]
            for way in ordered:
                yield repeat, item, way
