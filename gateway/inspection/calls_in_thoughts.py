"""Calls that a model writes inside its thoughts."""

from __future__ import annotations

from collections.abc import Callable

from gateway.inspection.finder import CallFinder
from gateway.inspection.segments import Reasoning, Segment, Text


class CallsInThoughts:
    """Calls inside thoughts. Such a call is a draft and stays a thought, unless the thoughts are never closed and only
    calls follow it: then the model has ended its thoughts without a closing tag."""

    def __init__(self, make_finder: Callable[[], CallFinder] | None) -> None:
        self._make_finder = make_finder  # called when thoughts begin: most answers have none
        self._finder: CallFinder | None = None
        self.begun = False
        self._drafts: list[Segment] = []

    def feed(self, text: str) -> list[Segment]:
        if not self.begun and self._make_finder is not None:
            self._finder = self._make_finder()
        self.begun = True
        return self._split(self._finder.feed(text)) if self._finder else [Reasoning(text)]

    def passes(self, text: str) -> bool:
        """Instead of `feed`, where that would return this text alone: then it is added. False = `feed` it."""
        if self._finder is None:
            return self.begun
        return not self._drafts and self._finder.passes(text)

    def close(self) -> list[Segment]:
        """The thoughts were closed: return the rest of them, with the calls in them as thoughts."""
        segments = self.finish()
        return [Reasoning(segment.raw) for segment in segments if segment.raw]

    def finish(self) -> list[Segment]:
        """The text ended inside the thoughts: return the rest of them, with the last calls as calls."""
        segments = self._split(self._finder.finish()) if self._finder else []
        segments += self._drafts
        self._drafts = []
        self._finder = None
        return segments

    def _split(self, segments: list[Segment]) -> list[Segment]:
        out: list[Segment] = []
        for segment in segments:
            if isinstance(segment, Text):
                out += [Reasoning(draft.raw) for draft in self._drafts if draft.raw]
                out.append(Reasoning(segment.text))
                self._drafts = []
            else:
                self._drafts.append(segment)
        return out
