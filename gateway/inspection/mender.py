"""Mends one choice of an answer: splits calls and thoughts that the backend left in the text from it.

In doubt, text stays text. No text is lost: the joined `raw` of all segments is the input. The segments (with neighbours
of the same kind merged) do not depend on how the text is split into feeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gateway.inspection.finder import MAX_HELD, CallFinder, CallsInThoughts
from gateway.inspection.formats import Format
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.reasoning import AnswerEnd, LateTags, Thoughts, splitter_of
from gateway.inspection.segments import Call, Gap, Reasoning, Segment, Text, merged

__all__ = ["MAX_HELD", "Call", "Gap", "Mender", "OfferedTools", "Reasoning", "Segment", "Text"]

# Characters that are searched at a time. A search keeps all other threads waiting, the event loop's too.
PIECE = 64 * 1024


class Mender:
    """`formats`: tried in this order where their markers are the same. `tools`: the request's (its JSON, or
    `OfferedTools` when several choices share it); without tools no text is a call. `reasoning`: how thoughts are
    marked; None = they stay in the text. `max_held`: a call longer than this many characters stays text."""

    def __init__(
        self,
        formats: Sequence[Format],
        tools: OfferedTools | Iterable[Any],
        reasoning: Thoughts | None = None,
        max_held: int = MAX_HELD,
    ) -> None:
        offered = tools if isinstance(tools, OfferedTools) else OfferedTools(tools)
        armed = bool(formats) and bool(offered)
        self._late_tags = LateTags(reasoning) if reasoning else None
        self._content = CallFinder(formats, offered, max_held) if armed else None
        self._splitter = splitter_of(reasoning) if reasoning else None
        self._answer_end = AnswerEnd(reasoning.answer[1]) if reasoning and reasoning.answer else None
        self._thoughts = CallsInThoughts(
            (lambda: CallFinder(formats, offered, max_held)) if armed and reasoning else None
        )

    @property
    def opened(self) -> bool:
        """Did the content begin with the tag that opens thoughts?"""
        return self._splitter is not None and self._splitter.opened

    @property
    def past_thoughts(self) -> bool:
        """Can only content and calls follow?"""
        return self._splitter is None or self._splitter.done

    @property
    def saw_thoughts_later(self) -> bool:
        """Did a later line of the content begin with a tag of thoughts? It stays there, since it may be prose."""
        return self._late_tags is not None and self._late_tags.found

    def feed(self, text: str) -> list[Segment]:
        """Add content. Returns the segments that are decided now."""
        if len(text) > PIECE:
            pieces = (text[at : at + PIECE] for at in range(0, len(text), PIECE))
            return merged(segment for piece in pieces for segment in self.feed(piece))
        if self._splitter is None:
            if self._content is not None:
                return self._content.feed(text)
            return [Text(text)] if text else []
        if self._splitter.done:
            return self._checked(self._text(text))
        return self._checked(self._split(self._splitter.feed(text)))

    def passes(self, text: str) -> bool:
        """Instead of `feed`, where that would return this text alone: then it is added. False = `feed` it."""
        late = self._late_tags
        if not self._is_in_line or ("\n" in text and late is not None and not late.found):
            return False
        return self._content is None or self._content.passes(text)

    @property
    def finder(self) -> CallFinder | None:
        """The one check of content without a line end, until other content is fed; None = none, or several."""
        return self._content if self._is_in_line else None

    @property
    def _is_in_line(self) -> bool:
        """Is the content past the thoughts, and past where its line may begin with a tag of thoughts?"""
        if self._splitter is not None and (not self._splitter.done or self._answer_end is not None):
            return False
        late = self._late_tags
        return late is None or late.found or late.line is None

    def finish(self) -> list[Segment]:
        """Return the remaining segments at the end of the content. `feed` must not be called afterwards."""
        segments: list[Segment] = []
        if self._splitter is not None:
            segments = self._split(self._splitter.finish())
            segments += self._thoughts.finish()
        return self._checked(segments + (self._content.finish() if self._content else []), final=True)

    def _text(self, text: str) -> list[Segment]:
        if self._content is None:
            return [Text(text)] if text else []
        return self._content.feed(text)

    def _checked(self, segments: list[Segment], *, final: bool = False) -> list[Segment]:
        if self._answer_end is not None:
            segments = self._answer_end.feed(segments, final=final)
        if self._late_tags is not None and not self._late_tags.found:
            for segment in segments:
                if isinstance(segment, Text):
                    self._late_tags.feed(segment.text)
        return segments

    def _split(self, segments: list[Segment]) -> list[Segment]:
        out: list[Segment] = []
        for segment in segments:
            if isinstance(segment, Reasoning):
                out += self._thoughts.feed(segment.text)
            elif isinstance(segment, Text):
                out += self._text(segment.text)
            else:
                out += [*(self._thoughts.close() if self._thoughts.begun else ()), segment]
        return out
