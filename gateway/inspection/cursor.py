"""Reads markup from a text that may still grow.

Every reader is *monotone*: its result for a text is the same for every longer text. If more text could change the
result it raises `NeedMore`, unless the text is final."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Never

SPACE = re.compile(r"\s*")
NAME = re.compile(r"[^\s<>{}\[\]()\"'`,;=|｜\\]{1,128}")
# If a JSON text is only cut off, its error is at most so many characters before its end: `tru`, `-`, `1e`, `"\u00`.
UNSURE = 12
MAX_DEPTH = 100  # of objects and lists inside each other
_WINDOW = 256
_NESTING = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[^"\[\]{}]++', re.S)  # everything but brackets outside strings
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}


class NeedMore(Exception):
    """The text ends before the result is decided."""


class NotACall(Exception):
    """There is no call at this position. `at`: the offset of the character that decided it."""

    def __init__(self, at: int) -> None:
        self.at = at


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


# strict=False: models put raw newlines into strings.
_JSON = json.JSONDecoder(strict=False, parse_constant=_no_constant)


class Cursor:
    """A position in `text`. `final`: no more text will follow. `looked`: the furthest offset that was read so far."""

    __slots__ = ("final", "looked", "pos", "text")

    def __init__(self, text: str, pos: int, *, final: bool) -> None:
        self.text = text
        self.pos = pos
        self.looked = pos
        self.final = final

    def short(self) -> Never:
        """Raise because the text ends too early: NotACall if it is final, else NeedMore."""
        if self.final:
            raise NotACall(len(self.text))
        raise NeedMore

    def fail(self, at: int | None = None) -> Never:
        raise NotACall(min(self.pos if at is None else at, len(self.text)))

    def space(self) -> None:
        if not self.text[self.pos : self.pos + 1].isspace():
            return
        match = SPACE.match(self.text, self.pos)
        assert match is not None  # the pattern also matches nothing
        self.pos = match.end()

    def peek(self) -> str:
        """The character at the cursor; "" at the end of the text. Does not move."""
        if self.pos >= self.looked:
            self.looked = self.pos + 1
        return self.text[self.pos : self.pos + 1]

    def at(self, *options: str) -> str | None:
        """The first of `options` that the text has at the cursor, if any. Does not move."""
        for option in options:
            end = self.pos + len(option)
            if end > self.looked:
                self.looked = end
            if self.text.startswith(option, self.pos):
                return option
            if end > len(self.text) and not self.final and self._cut_short(option):
                raise NeedMore
        return None

    def _cut_short(self, option: str) -> bool:
        left = len(self.text) - self.pos
        return left < len(option) and option.startswith(self.text[self.pos :])

    def skip(self, *options: str) -> bool:
        """Move past the first of `options` that the text has at the cursor. Returns whether there was one."""
        first, text = options[0], self.text
        end = self.pos + len(first)
        if text.startswith(first, self.pos):
            self.pos = end
            if end > self.looked:
                self.looked = end
            return True
        if len(options) == 1 and end <= len(text):  # nearly always; more text would not change the result
            if end > self.looked:
                self.looked = end
            return False
        found = self.at(*options)
        if found is None:
            return False
        self.pos += len(found)
        return True

    def expect(self, *options: str) -> None:
        """Move past one of `options`. Raises NotACall if there is none."""
        if not self.skip(*options):
            self.fail(self.pos + 1)

    def skip_spaced(self, *options: str) -> bool:
        """Move past white space and one of `options` behind it. If none follows, the cursor does not move."""
        before = self.pos
        self.space()
        if self.skip(*options):
            return True
        self.pos = before
        return False

    def close(self, *options: str, min_prefix: int = 1) -> bool:
        """Move past white space and a closing tag; of a final text `min_prefix` characters of the tag are enough."""
        if self.skip_spaced(*options):
            return True
        before = self.pos
        self.space()
        if (
            self.final
            and len(self.text) - self.pos >= min_prefix
            and any(self._cut_short(option) for option in options)
        ):
            self.pos = len(self.text)
            return True
        self.pos = before
        return False

    def name(self, known: Callable[[str], bool], could_become: Callable[[str], bool]) -> str:
        """Read an offered tool's name. Raises NotACall at the first character behind which no name is possible."""
        match = NAME.match(self.text, self.pos)
        word = match.group() if match else ""
        ends = self.pos + len(word)
        if ends == len(self.text) and not self.final and could_become(word):
            raise NeedMore
        if not known(word):
            right = len(word)
            while right and not could_become(word[:right]):
                right -= 1
            self.fail(self.pos + right + 1)
        self.looked = max(self.looked, ends + 1)
        self.pos = ends
        return word

    def run(self, pattern: re.Pattern[str]) -> str:
        """Read what `pattern`, which also matches nothing, has here. What stands at the end of the text may go on."""
        match = pattern.match(self.text, self.pos)
        assert match is not None  # the pattern also matches nothing
        if match.end() == len(self.text):
            self.short()
        self.pos = match.end()
        return match.group()

    def until(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """The next match, which any text may precede. Moves behind it."""
        match = pattern.search(self.text, self.pos)
        if match is None:
            self.short()
        self.pos = match.end()
        self.looked = max(self.looked, match.end())
        return match

    def json(self) -> Any:
        """Read a JSON object, list or string. It is decoded in a growing window, because an error of the decoder costs
        as much as all text before it. The window is cut where the nesting is too deep, because every level costs the
        decoder a stack frame, and the next marker inside would cost them again."""
        size = _WINDOW
        while True:
            window = self.text[self.pos : self.pos + size]
            deep = too_deep(window)
            if deep is not None:
                window = window[: deep + UNSURE]
            try:
                value, length = _JSON.raw_decode(window)
            except json.JSONDecodeError as error:
                settled = error.pos + UNSURE
                if not error.msg.startswith("Unterminated string") and settled <= len(window):
                    self.fail(self.pos + min(settled, deep or settled))
            except ValueError:  # NaN; a number of thousands of digits
                self.fail(self.pos + 1)
            else:
                self.pos += length
                self.looked = max(self.looked, self.pos)
                return value
            if deep is not None and deep + UNSURE <= len(window):
                self.fail(self.pos + deep)
            if self.pos + size >= len(self.text):
                self.short()
            size *= 8


def too_deep(text: str) -> int | None:
    """The number of characters after which JSON `text` is nested deeper than `MAX_DEPTH`; None if it never is."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return None
    brackets = _NESTING.sub("", text)
    if max(accumulate(map(_STEPS.__getitem__, brackets))) <= MAX_DEPTH:
        return None
    depths = accumulate(map(_STEPS.__getitem__, brackets))
    steps = next(i for i, depth in enumerate(depths, 1) if depth > MAX_DEPTH)
    match = re.compile(rf"(?:(?:{_NESTING.pattern})*+[\[\]{{}}]){{{steps}}}", re.S).match(text)
    assert match is not None  # there are that many brackets
    return match.end()
