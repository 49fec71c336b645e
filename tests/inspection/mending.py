"""Shorthands for tests of the mender."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.inspection.formats import FORMATS
from gateway.inspection.mender import MAX_HELD, Call, Mender, Reasoning, Text
from gateway.inspection.reasoning import Thoughts
from gateway.inspection.segments import Segment, merged

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
TOOLS: list[Any] = json.loads((ORACLE / "tools.json").read_text())
CASES: list[dict[str, Any]] = [json.loads(line) for line in (ORACLE / "cases.jsonl").read_text().splitlines()]


@dataclass(frozen=True)
class Mended:
    """What a client sees. `calls`: (name, arguments decoded)."""

    pieces: list[Segment]

    @property
    def calls(self) -> list[tuple[str, Any]]:
        return [(piece.name, json.loads(piece.arguments)) for piece in self.pieces if isinstance(piece, Call)]

    @property
    def content(self) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Text))

    @property
    def reasoning(self) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Reasoning))

    @property
    def raw(self) -> str:
        return "".join(piece.raw for piece in self.pieces)


def mender(
    parsers: str | Iterable[str], reasoning: Thoughts | None = None, max_held: int = MAX_HELD, tools: Any = None
) -> Mender:
    names = parsers.split() if isinstance(parsers, str) else parsers
    return Mender([FORMATS[name] for name in names], TOOLS if tools is None else tools, reasoning, max_held)


def run(machine: Mender, pieces: Iterable[str]) -> Mended:
    out: list[Segment] = []
    for piece in pieces:
        out += machine.feed(piece)
    return Mended(merged(out + machine.finish()))


def mend(
    parsers: str,
    text: str,
    reasoning: Thoughts | None = None,
    max_held: int = MAX_HELD,
    tools: Any = None,
) -> Mended:
    """`text` mended in one go, after making sure that other cuts give the same and that nothing is lost."""
    whole = run(mender(parsers, reasoning, max_held, tools), [text])
    assert whole.raw == text
    for size in (1, 2, 3, 7, 64):
        assert run(mender(parsers, reasoning, max_held, tools), cut(text, size)) == whole
    return whole


def cut(text: str, size: int) -> Iterator[str]:
    return (text[i : i + size] for i in range(0, len(text), size))


def torn(text: str, seed: int) -> Iterator[str]:
    """`text` in pieces of random lengths, some of them empty."""
    dice = random.Random(seed)
    at = 0
    while at < len(text):
        step = dice.choice((0, 1, 1, 2, 3, 5, 9, 20, 100, 1000))
        yield text[at : at + step]
        at += step
