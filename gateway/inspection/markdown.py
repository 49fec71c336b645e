"""Finds code and quotations in an answer, so that a marker the model only writes *about* is not read as a call."""

from __future__ import annotations

import re
from enum import Enum

from gateway.inspection.markers import Markers

_FENCE = 3  # least backticks that open a block; a block does not end with its line
_BLOCK_LINE = re.compile(r"(?P<ticks>`+)|(?P<end>\n)")
_BLOCK_END = re.compile(r"(?P<ticks>`+)")
_LINE_REST = re.compile(r"[^\S\n]*+")
_REST = re.compile(r"\s*+")


class _Block(Enum):
    """The state of a fenced block."""

    OPENING = "in its first line"
    BLANK = "empty so far"
    FILLED = "has text"
    EXAMPLE = "began with a marker, so it shows an example, closed or not"


class MarkdownContext:
    """Follows code fences, inline code and quotations through a text that arrives in pieces.

    A character that seems to open one may be something else: an apostrophe, an inch sign, a block that is never closed.
    So a call inside counts if text precedes it there and nothing follows it up to the end of the line or, in a block,
    of the whole text."""

    __slots__ = ("_block", "_markers", "_quote", "_run", "_ticks")

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self._ticks = 0  # length of the run of backticks that opened the current code; 0 = outside code
        self._quote = ""
        self._block = _Block.OPENING
        self._run = 0  # backticks at the end of the text so far: more of them may follow

    @property
    def plain(self) -> bool:
        """Outside code and quotations."""
        return not (self._ticks or self._quote)

    @property
    def in_code(self) -> bool:
        return self._ticks > 0

    @property
    def idle(self) -> bool:
        """Can only a marker or a backtick change the state?"""
        inside_block = self._ticks >= _FENCE and self._block in (_Block.FILLED, _Block.EXAMPLE)
        return not self._run and (self.plain or inside_block)

    @property
    def example(self) -> bool:
        """At the start of a block, where a marker makes the block an example."""
        return self._ticks >= _FENCE and self._block is _Block.BLANK

    @property
    def amid_run(self) -> bool:
        return self._run > 0

    def pattern(self, at_start: bool) -> re.Pattern[str]:
        """The pattern to search for next. `at_start`: no content so far."""
        if self._quote:
            return self._markers.quotes[self._quote]
        if not self._ticks:
            return self._markers.start if at_start else self._markers.text
        if self._ticks < _FENCE:
            return self._markers.line
        if self._block is _Block.FILLED:
            return self._markers.block
        if self._block is _Block.BLANK:
            return self._markers.block_start
        return _BLOCK_LINE if self._block is _Block.OPENING else _BLOCK_END

    def enter(self, match: re.Match[str], at_end: bool) -> None:
        """Update the state after a match of `pattern`. `at_end`: the match is at the end of the text so far."""
        kind = match.lastgroup
        if kind == "ticks":
            self.ticks(match.end() - match.start(), at_end)
        elif kind == "quote":
            self._quote = match.group()
        elif kind == "end" and self._ticks >= _FENCE:
            self._block = _Block.BLANK
        elif kind == "end":
            self.leave()
        elif kind == "other":
            self._block = _Block.FILLED
        elif kind == "marker":
            self._block = _Block.EXAMPLE

    def ticks(self, count: int, at_end: bool) -> None:
        """Update the state after `count` more backticks in a row. `at_end`: more may follow."""
        self._run += count
        if at_end:
            return
        run, self._run = self._run, 0
        if not self._ticks:
            self._ticks, self._block = run, _Block.OPENING
        elif run == self._ticks or (self._ticks >= _FENCE and run > self._ticks):
            self._ticks = 0

    def leave(self) -> None:
        """Leave the code or quotation, closed or not."""
        self._ticks, self._quote = 0, ""

    def closing(self, text: str, at: int, final: bool) -> tuple[int | None, int]:
        """(the offset behind `at` at which the current code is closed; None = it is not, the offset up to which that is
        valid). A quotation is never reported as closed: calls contain quotes."""
        if self._quote:
            return None, len(text)
        if self._ticks >= _FENCE:
            found, end = text.find("`" * self._ticks, at), len(text)
        else:
            newline = text.find("\n", at)
            end = len(text) if newline < 0 else newline + 1
            last = "(?!`)" if final else "(?=[^`])"  # more may follow at the end
            match = re.compile(f"(?<!`)`{{{self._ticks}}}{last}").search(text, at, end)
            found = match.start() if match else -1
        return (None if found < 0 else found), end

    def quotes(self, before: str) -> bool:
        """Does a call directly behind the character `before` begin a quotation or inline code?"""
        return self._ticks < _FENCE and before == (self._quote or "`")

    def behind(self, text: str, at: int) -> tuple[int, bool]:
        """Skip white space behind a call in code or a quotation: (offset, does the line end; False in a block)."""
        rest = _REST if self._ticks >= _FENCE else _LINE_REST
        match = rest.match(text, at)
        assert match is not None  # the pattern also matches nothing
        return match.end(), rest is _LINE_REST and text.startswith("\n", match.end())
