"""JSON as a backend should not write it: a valid value in which a node was replaced by something else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]

# What may stand anywhere. Bytes are written as they are, so that it need not be JSON.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 5, 2**63, 2**64, 10**400, 1.5, -0.5, 1e308),
    *("", "x", "stop", "tool_calls", "<think>", "</think>", "\u2028", "x" * 3000, '{"city": "Oslo"}', "[]"),
    *([], {}, [None], [[]], [{}], ["x"], [1.5], {"type": "text"}, [{"type": "text", "text": 5}], {"function": None}),
    *(b"NaN", b"-Infinity", b"1e999", b"1" + b"0" * 5000, b'"\\ud800"', b'"\xff"', b'"\x01"', b"}", b"[" * 3000),
    b"[" * 300 + b"]" * 300,
)


def nodes(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all nodes below `value`, its own first."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from nodes(child, (*path, key))


def replaced(value: Any, path: Path, odd: Any) -> bytes:
    """`value` as JSON with `odd` at this path."""
    raw = odd if isinstance(odd, bytes) else json.dumps(odd).encode()
    if not path:
        return raw
    changed = copy.deepcopy(value)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = "@odd@"
    return dumped(changed).replace(b'"@odd@"', raw, 1)


def dumped(value: Any) -> bytes:
    """As vLLM writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def mutated(value: Any) -> st.SearchStrategy[bytes]:
    """`value` with one node replaced, or left out."""
    places = st.sampled_from(list(nodes(value)))
    return st.builds(lambda path, odd: replaced(value, path, odd), places, st.sampled_from(ODD))


def mutated_one_of(values: list[Any]) -> st.SearchStrategy[list[bytes]]:
    """All of them as JSON, and up to two of them mutated."""

    def build(changes: dict[int, bytes]) -> list[bytes]:
        return [changes.get(place, dumped(value)) for place, value in enumerate(values)]

    return st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=2, unique=True).flatmap(
        lambda places: st.fixed_dictionaries({place: mutated(values[place]) for place in places}).map(build)
    )
