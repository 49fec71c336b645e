"""The patterns that find the markers of several formats, where a call may begin, and the formats that a marker may
start."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import NamedTuple

from gateway.inspection.formats.base import Format, literal

# A quote opens at the start of a word only: 15" is a size.
_AT_WORD = r"(?<![^\s(\[{>])"
_TICKS = r"(?P<ticks>`+)"
_DISTINCT = 4  # least length of closing strings whose beginning is recognised
_QUOTE_ENDS = {'"': r'["\n]', "“": r"[”\n]"}


class Start(NamedTuple):
    """A format whose call may begin here. `length`: of its marker; None while the marker is incomplete. `follow`: a
    pattern for the text behind it."""

    format: Format
    length: int | None
    follow: re.Pattern[str]


class Markers:
    """The patterns for one set of formats; built once per set.

    `start` and `text` find openings of code and quotations, and markers: at the start of a text, and later in it.
    `line`, `block` and `quotes` find the end of inline code, of a fenced block and of a quotation, and markers in them.
    An incomplete marker at the end of the text is found too. A marker is not found if the text behind it excludes a
    call."""

    def __init__(self, formats: tuple[Format, ...]) -> None:
        self._formats = formats
        self.longest = max((len(m) for f in formats for m in f.markers), default=0)
        self.space = re.compile(rf"[\s{re.escape(''.join(f.separators for f in formats))}]*")
        self._later = _marker([f for f in formats if not f.only_at_start])
        firsts, later = (
            sorted({marker[0] for f in some for marker in f.markers})
            for some in (formats, [f for f in formats if not f.only_at_start])
        )
        self._openers = _openers(re.escape("".join(firsts)))
        # Of text behind the start; a marker that counts only there has no hint.
        self.hint = re.compile("[" + re.escape("".join(sorted({"`", '"', "“", *later}))) + "]")
        marks = sorted({marker for f in formats for marker in f.markers})
        self.anywhere = re.compile("|".join(map(re.escape, marks)) if marks else r"(?!)")  # a whole marker
        self._started_by: dict[str, tuple[Start, ...]] = {}
        self._closing: dict[str, re.Pattern[str]] = {}

    # Compiled on first use: with many formats each takes tens of milliseconds.
    @cached_property
    def start(self) -> re.Pattern[str]:
        return self._outside(_marker(self._formats))

    @cached_property
    def text(self) -> re.Pattern[str]:
        return self._outside(self._later)

    def _outside(self, marker: str) -> re.Pattern[str]:
        """Of code and quotations. A marker goes before the opening of code: it may begin with a fence."""
        return re.compile(f"{marker[1:]}|{self._openers}" if marker else self._openers)

    @cached_property
    def line(self) -> re.Pattern[str]:
        return re.compile(rf"{_TICKS}|(?P<end>\n){self._later}")

    @cached_property
    def block(self) -> re.Pattern[str]:
        return re.compile(_TICKS + self._later)

    @cached_property
    def block_start(self) -> re.Pattern[str]:
        return re.compile(rf"{_TICKS}{_marker(self._formats, follow=False)}|(?P<other>\S)")

    @cached_property
    def quotes(self) -> dict[str, re.Pattern[str]]:
        return {quote: re.compile(f"(?P<end>{end}){self._later}") for quote, end in _QUOTE_ENDS.items()}

    def started_by(self, found: str) -> tuple[Start, ...]:
        """The formats, in order, that `found` may start: a marker, or the beginning of one at the end of the text."""
        if found not in self._started_by:
            starts = [_start(format_, found) for format_ in self._formats]
            self._started_by[found] = tuple(start for start in starts if start is not None)
        return self._started_by[found]

    def closing(self, found: str) -> re.Pattern[str]:
        """A pattern for the strings that may complete a call that `found` starts. It does not match if the beginning of
        another closing string follows at the end of the text: parsing the call would only need more text."""
        if found not in self._closing:
            closers = sorted({closer for start in self.started_by(found) for closer in start.format.closers})
            begun = "|".join(_begun(closer) for closer in closers if len(closer) >= _DISTINCT)
            pattern = "|".join(map(re.escape, closers))
            self._closing[found] = re.compile(rf"(?:{pattern})(?!\s{{0,4}}(?:{begun}))" if begun else pattern)
        return self._closing[found]


def _begun(closer: str) -> str:
    """A pattern for the beginning of `closer`, at least two characters, at the end of the text."""
    return re.escape(closer[:2]) + literal(closer[2:])


def _start(format_: Format, found: str) -> Start | None:
    for marker in format_.markers:
        if found.startswith(marker):
            return Start(format_, len(marker), re.compile(format_.follow(marker)))
    begun = any(marker.startswith(found) for marker in format_.markers)
    return Start(format_, None, re.compile("")) if begun else None


@lru_cache(maxsize=256)
def markers_of(formats: tuple[Format, ...]) -> Markers:
    return Markers(formats)


@lru_cache(maxsize=256)
def begun(words: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern for any of `words`, and for the beginning of one at the end of the text."""
    return re.compile(_alternatives(dict.fromkeys(words, "")))


def _openers(marker_starts: str) -> str:
    """A pattern for openings of code and quotations. Group `whole`: code or a quotation that ends on its line and
    contains no first character of a marker."""
    code, quoted, quotation = (rf"[^{end}\n{marker_starts}]*" for end in '`"”')
    return (
        rf"(?P<whole>`(?!`){code}\n|{_AT_WORD}(?:\"{quoted}[\"\n]|“{quotation}[”\n]))"
        rf"|{_TICKS}|(?P<quote>{_AT_WORD}[\"“])"
    )


def _marker(formats: Iterable[Format], follow: bool = True) -> str:
    """An alternative, with its bar: any marker of `formats`; with `follow`, the required text must follow it."""
    behind: dict[str, str] = {}
    for format_ in formats:
        for marker in format_.markers:
            more = format_.follow(marker) if follow else ""
            behind[marker] = f"{behind[marker]}|{more}" if behind.get(marker, "") and more else more
    return f"|(?P<marker>{_alternatives(behind)})" if behind else ""


def _alternatives(words: Mapping[str, str]) -> str:
    """A pattern for any of `words` (word -> pattern of the text behind it), and for the beginning of one at the end of
    the text. Common prefixes are written once, so that a text full of near-markers costs no more than any other."""
    parts = []
    for first in sorted({word[0] for word in words if word}):
        rest = {word[1:]: behind for word, behind in words.items() if word[:1] == first}
        parts.append(re.escape(first) + _rest(rest))
    return "|".join(parts)


def _rest(words: Mapping[str, str]) -> str:
    if list(words) == [""]:
        return f"(?={words['']})" if words[""] else ""
    ends = f"(?={words['']})" if words.get("") else "" if "" in words else r"\Z"
    return f"(?:{_alternatives({word: behind for word, behind in words.items() if word})}|{ends})"
