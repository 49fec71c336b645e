"""The segments of mended text. The joined `raw` of all segments is the text that the backend sent, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby


@dataclass(slots=True)  # not frozen: created for every event of a stream, and frozen ones cost twice as much
class Text:
    """Content for the client, exactly as the backend sent it."""

    text: str

    @property
    def raw(self) -> str:
        return self.text


@dataclass(slots=True)
class Reasoning:
    """Thoughts for the reasoning field, exactly as the backend sent them."""

    text: str

    @property
    def raw(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Call:
    """One complete call of an offered tool. `arguments`: a JSON object as text. `raw`: the markup it was read from; of
    several calls in one wrapper the first has all of it."""

    name: str
    arguments: str
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Gap:
    """Characters without content, which the client does not get: the tags around thoughts, white space around calls."""

    raw: str


Segment = Text | Reasoning | Call | Gap


def merged(segments: Iterable[Segment]) -> list[Segment]:
    """The segments with neighbours of the same kind merged; calls stay separate."""
    out: list[Segment] = []
    for kind, group in groupby(segments, type):
        alike = list(group)
        out += alike if kind is Call else [kind("".join(segment.raw for segment in alike))]
    return out
