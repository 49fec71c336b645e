"""Mends one choice of an answer: calls and thoughts that upstream left in the text become calls and thoughts.

Wherever a piece is in doubt the text stays what it was. Nothing is lost: the `raw` of all pieces, joined, is what came
in; and however the text is cut into feeds, the pieces (neighbours of a kind merged) are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gateway.inspection.finder import MAX_HELD, CallFinder
from gateway.inspection.formats import Format
from gateway.inspection.offered_tools import Offered
from gateway.inspection.reasoning import AnswerEnd, Later, Splitter, Thoughts
from gateway.inspection.segments import Call, Gap, Piece, Reasoning, Text

__all__ = ["MAX_HELD", "Call", "Gap", "Mender", "Offered", "Piece", "Reasoning", "Text"]


class Mender:
    """`formats`: tried in this order where their markers are the same. `tools`: the request's (its JSON, or `Offered`
    when several choices share it); without any nothing is a call. `reasoning`: how thoughts are marked; None = leave
    them. `max_held`: a call longer than this many characters stays text."""

    def __init__(
        self,
        formats: Sequence[Format],
        tools: Offered | Iterable[Any],
        reasoning: Thoughts | None = None,
        max_held: int = MAX_HELD,
    ) -> None:
        offered = tools if isinstance(tools, Offered) else Offered(tools)
        armed = bool(formats) and bool(offered)
        self._later = Later(reasoning) if reasoning else None
        self._content = CallFinder(formats, offered, max_held) if armed else None
        self._splitter = Splitter(reasoning) if reasoning else None
        self._answer_end = AnswerEnd(reasoning.answer[1]) if reasoning and reasoning.answer else None
        self._thoughts = _InThoughts((lambda: CallFinder(formats, offered, max_held)) if armed and reasoning else None)

    @property
    def saw_thoughts_later(self) -> bool:
        """Did a line of the content begin with a tag of thoughts, where such tags no longer count? They stay in the
        content: they may be prose."""
        return self._later is not None and self._later.seen

    def feed(self, text: str) -> list[Piece]:
        """More of the content; what can be told of it so far."""
        if self._splitter is None:
            if self._content is not None:
                return self._content.feed(text)
            return [Text(text)] if text else []
        if self._splitter.done:
            return self._watched(self._text(text))
        return self._watched(self._sorted(self._splitter.feed(text)))

    def finish(self) -> list[Piece]:
        """The rest, at the end of the content. Nothing is fed afterwards."""
        pieces: list[Piece] = []
        if self._splitter is not None:
            pieces = self._sorted(self._splitter.finish())
            pieces += self._thoughts.finish()
        return self._watched(pieces + (self._content.finish() if self._content else []), final=True)

    def _text(self, text: str) -> list[Piece]:
        if self._content is None:
            return [Text(text)] if text else []
        return self._content.feed(text)

    def _watched(self, pieces: list[Piece], *, final: bool = False) -> list[Piece]:
        if self._answer_end is not None:
            pieces = self._answer_end.take(pieces, final=final)
        if self._later is not None and not self._later.seen:
            for piece in pieces:
                if isinstance(piece, Text):
                    self._later.feed(piece.text)
        return pieces

    def _sorted(self, pieces: list[Piece]) -> list[Piece]:
        out: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Reasoning):
                out += self._thoughts.feed(piece.text)
            elif isinstance(piece, Text):
                out += self._text(piece.text)
            else:
                out += [*(self._thoughts.close() if self._thoughts.begun else ()), piece]
        return out


class _InThoughts:
    """A call inside thoughts is a draft, unless the thoughts are never closed and nothing but calls comes after it:
    then the model went over to calling without a closing tag."""

    def __init__(self, make_finder: Callable[[], CallFinder] | None) -> None:
        self._make_finder = make_finder  # asked when thoughts begin: most answers have none
        self._finder: CallFinder | None = None
        self.begun = False
        self._drafts: list[Piece] = []

    def feed(self, text: str) -> list[Piece]:
        if not self.begun and self._make_finder is not None:
            self._finder = self._make_finder()
        self.begun = True
        return self._sorted(self._finder.feed(text)) if self._finder else [Reasoning(text)]

    def close(self) -> list[Piece]:
        """The thoughts were closed: calls in them were drafts."""
        pieces = self.finish()
        return [Reasoning(piece.raw) for piece in pieces if piece.raw]

    def finish(self) -> list[Piece]:
        """The text ended inside the thoughts."""
        pieces = self._sorted(self._finder.finish()) if self._finder else []
        pieces += self._drafts
        self._drafts = []
        self._finder = None
        return pieces

    def _sorted(self, pieces: list[Piece]) -> list[Piece]:
        out: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Text):
                out += [Reasoning(draft.raw) for draft in self._drafts if draft.raw]
                out.append(Reasoning(piece.text))
                self._drafts = []
            else:
                self._drafts.append(piece)
        return out
