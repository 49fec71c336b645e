"""What is code or quotation in an answer, so that a marker somebody only writes *about* is left alone."""

from __future__ import annotations

import re
from collections.abc import Iterable

_FENCE = 3  # backticks from which a run opens a block, which lines do not end
# `whole`: code or a quotation that ends within the text, closed or at the end of its line. A quote opens at the start
# of a word only: 15" is a size.
_AT_WORD = r"(?<![^\s(\[{>])"
_OPENERS = (
    rf"(?P<whole>`(?!`)[^`\n]*\n|{_AT_WORD}(?:\"[^\"\n]*[\"\n]|“[^”\n]*[”\n]))"
    rf"|(?P<ticks>`+)|(?P<quote>{_AT_WORD}[\"“])"
)
_IN_CODE = {False: re.compile(r"(?P<ticks>`+)|(?P<end>\n)"), True: re.compile(r"(?P<ticks>`+)")}
_IN_QUOTE = {'"': re.compile(r"(?P<end>[\"\n])"), "“": re.compile(r"(?P<end>[”\n])")}


def hint(markers: Iterable[str]) -> re.Pattern[str]:
    """Cheaply finds a character with which anything of `pattern` may begin."""
    return re.compile("[" + re.escape("".join(sorted({"`", '"', "“", *(marker[0] for marker in markers)}))) + "]")


def begun(words: Iterable[str]) -> re.Pattern[str]:
    """Finds any of `words`, and any beginning of one at the end of the text."""
    return re.compile(_alternatives(sorted(set(words))))


def pattern(markers: Iterable[str]) -> re.Pattern[str]:
    """Finds, in plain text, what opens code or a quotation, and a `marker`, be it only begun at the end of the text."""
    tries = _alternatives(sorted(set(markers)))
    return re.compile(_OPENERS + (f"|(?P<marker>{tries})" if tries else ""))


def _alternatives(words: list[str]) -> str:
    """A pattern for any of `words`, and for any beginning of one at the end of the text. Shared beginnings are
    written once, so that a text of nothing but near-markers costs no more than any other."""
    if "" in words:
        return ""
    parts = []
    for first in sorted({word[0] for word in words}):
        rest = _alternatives([word[1:] for word in words if word[0] == first])
        parts.append(re.escape(first) + (f"(?:{rest}|\\Z)" if rest else ""))
    return "|".join(parts)


class Prose:
    """Follows code fences, inline code and quotations through a text that comes in pieces."""

    __slots__ = ("_quote", "_run", "_ticks")

    def __init__(self) -> None:
        self._ticks = 0  # length of the run of backticks that opened the code we are in
        self._quote = ""
        self._run = 0  # backticks at the end of what was seen: more of them may follow

    @property
    def plain(self) -> bool:
        """Outside code and quotations, and not amid a run of backticks."""
        return not (self._ticks or self._quote or self._run)

    @property
    def amid_run(self) -> bool:
        return self._run > 0

    def closer(self) -> re.Pattern[str] | None:
        """What to look for to leave the present code or quotation; None in plain text."""
        if self._ticks:
            return _IN_CODE[self._ticks >= _FENCE]
        return _IN_QUOTE[self._quote] if self._quote else None

    def enter(self, match: re.Match[str], at_end: bool) -> None:
        """Takes note of a match, of `pattern` or `closer`, other than a marker. `at_end`: it ends the text so far."""
        if match.lastgroup == "ticks":
            self.ticks(match.end() - match.start(), at_end)
        elif match.lastgroup == "quote":
            self._quote = match.group()
        elif match.lastgroup == "end":
            self._ticks, self._quote = 0, ""

    def ticks(self, count: int, at_end: bool) -> None:
        """`count` more backticks in a row."""
        self._run += count
        if at_end:
            return
        run, self._run = self._run, 0
        if not self._ticks:
            self._ticks = run
        elif run == self._ticks or (self._ticks >= _FENCE and run > self._ticks):
            self._ticks = 0
