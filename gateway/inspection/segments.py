"""What mended text consists of. The `raw` of all segments, joined, is the text that upstream sent, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby


@dataclass(slots=True)  # not frozen: one is made for every event of a stream, and frozen ones cost twice as much
class Text:
    """Content for the client, exactly as upstream wrote it."""

    text: str

    @property
    def raw(self) -> str:
        return self.text


@dataclass(slots=True)
class Reasoning:
    """Thoughts, for the reasoning field, exactly as upstream wrote them."""

    text: str

    @property
    def raw(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Call:
    """One complete call of an offered tool. `arguments`: a JSON object as text. `raw`: the markup it was read from; of
    several calls inside one wrapper the first carries it all."""

    name: str
    arguments: str
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Gap:
    """Characters that say nothing: the tags around thoughts, white space around calls. Not for the client."""

    raw: str


Segment = Text | Reasoning | Call | Gap


def merged(segments: Iterable[Segment]) -> list[Segment]:
    """The same with neighbouring segments of one kind made one; calls stay apart."""
    out: list[Segment] = []
    for kind, group in groupby(segments, type):
        alike = list(group)
        out += alike if kind is Call else [kind("".join(segment.raw for segment in alike))]
    return out
