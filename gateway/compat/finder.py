"""Finds tool calls in text that comes in pieces of any size. What comes out does not depend on how it was cut."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gateway.compat.cursor import SPACE
from gateway.compat.formats import Format, Parsed
from gateway.compat.formats.base import NEED_MORE
from gateway.compat.hold import Hold
from gateway.compat.offered import Offered
from gateway.compat.pieces import Call, Gap, Piece, Text
from gateway.compat.prose import Prose, hint, pattern

MAX_HELD = 1 << 20
EFFORT = 8  # characters read in vain per character of text, beyond which markers inside them are not tried again
FREE_EFFORT = 1 << 16
NO_CALL = Parsed()
_TICKS = re.compile("`*")


class CallFinder:
    """`formats`: in the order in which they are tried. `max_held`: the longest call, in characters.

    Held back are a possible beginning of a marker, white space that may belong to a call (never longer than the longest
    marker), and a call that is not complete."""

    def __init__(self, formats: Sequence[Format], tools: Offered, max_held: int = MAX_HELD) -> None:
        self._formats = list(dict.fromkeys(formats))
        self._tools = tools
        self._max_held = max_held
        self._longest = max((len(m) for f in self._formats for m in f.markers), default=0)
        self._closers = tuple({closer for f in self._formats for closer in f.closers})
        markers = [m for f in self._formats for m in f.markers]
        self._hint = hint(markers)
        self._pattern = pattern(markers)
        self._later_pattern = pattern([m for f in self._formats if not f.only_at_start for m in f.markers])
        self._prose = Prose()
        self._buf = ""  # one character that went out (to look back at), then those that did not
        self._pos = 0  # where the latter begin
        self._base = 0  # offset of _buf in the whole text
        self._at_start = True  # nothing but white space and calls so far
        self._space: re.Pattern[str] | None = SPACE  # what means nothing when a call follows; None amid text
        self._after_call = False
        self._not_before = 0  # no call begins before this offset of the whole text
        self._wasted = 0  # characters read at markers that began no call
        self._hold: Hold | None = None

    def feed(self, text: str) -> list[Piece]:
        if self._hold is not None:
            if not self._hold.worth_a_look(text):
                return []
            self._buf += self._hold.take()
        elif self._amid_text() and self._hint.search(text) is None:  # by far the most usual
            if not text:
                return []
            self._base += len(self._buf) + len(text) - 1
            self._buf, self._pos = text[-1], 1
            self._at_start = self._at_start and text.isspace()
            return [Text(text)]
        else:
            self._buf += text
        return self._scan(final=False)

    def finish(self) -> list[Piece]:
        """What is still held back: the text is at its end."""
        if self._hold is not None:
            self._buf += self._hold.take()
        return self._scan(final=True)

    def _amid_text(self) -> bool:
        return self._space is None and self._pos == len(self._buf) and self._prose.plain

    def _scan(self, final: bool) -> list[Piece]:
        out: list[Piece] = []
        hold, self._hold = self._hold, None
        at = self._end_run(final)
        while True:
            if self._space is not None and at == self._pos:
                at = self._space_end(at)
                if self._space is not None and at == len(self._buf) and not final:
                    break
            inside = self._prose.closer()
            match = (inside or self._markers()).search(self._buf, at)
            if match is None:
                self._send_rest(out)
                break
            if inside is not None or match.lastgroup != "marker":
                self._space, self._at_start = None, False
                self._prose.enter(match, at_end=match.end() == len(self._buf) and not final)
                at = match.end()
                continue
            start = match.start()
            if start > at:
                self._space = None
            parsed = self._look(start, final)
            if parsed.need_more:
                self._wait(out, start, hold)
                break
            if parsed.calls:
                self._send_calls(out, start, parsed)
                at = self._pos
            else:
                self._space, self._at_start = None, False
                at = start + 1
        self._forget_sent()
        return out

    def _end_run(self, final: bool) -> int:
        """Where to go on: behind the rest of a run of backticks that was cut."""
        if not self._prose.amid_run:
            return self._pos
        match = _TICKS.match(self._buf, self._pos)
        assert match is not None  # the pattern also matches nothing
        self._prose.ticks(match.end() - self._pos, at_end=match.end() == len(self._buf) and not final)
        return match.end()

    def _space_end(self, at: int) -> int:
        assert self._space is not None
        match = self._space.match(self._buf, at)
        assert match is not None  # the pattern also matches nothing
        if match.end() - at > self._longest:
            self._space = None  # more than is held back: it is text
        return match.end()

    def _markers(self) -> re.Pattern[str]:
        return self._pattern if self._at_start else self._later_pattern

    def _look(self, start: int, final: bool) -> Parsed:
        """What begins at `start`: NEED_MORE, calls, or none. The first format that does not refuse decides."""
        if self._base + start < self._not_before:
            return NO_CALL
        if self._at_start and self._space is None and self._text_before(start):
            self._at_start = False
        looked = 0
        for format_ in self._formats:
            parsed = self._try(format_, start, final)
            looked = max(looked, parsed.looked)
            too_long = len(self._buf) - start >= self._max_held if parsed.need_more else looked > self._max_held
            if too_long:
                self._not_before = self._base + start + self._max_held
                return NO_CALL
            if parsed.need_more or parsed.calls:
                return parsed
        self._wasted += looked
        if self._wasted > EFFORT * (self._base + start) + FREE_EFFORT:
            self._not_before = self._base + start + looked
        return NO_CALL

    def _text_before(self, start: int) -> bool:
        match = SPACE.match(self._buf, self._pos)
        return match is not None and match.end() < start

    def _try(self, format_: Format, start: int, final: bool) -> Parsed:
        if format_.only_at_start and not self._at_start:
            return NO_CALL
        if self._buf.startswith(format_.markers, start):
            return format_.parse(self._buf, start, self._tools, final=final)
        left = self._buf[start : start + self._longest]
        begun = start + len(left) == len(self._buf) and any(marker.startswith(left) for marker in format_.markers)
        return NEED_MORE if begun and not final else NO_CALL

    def _wait(self, out: list[Piece], start: int, hold: Hold | None) -> None:
        """Holds the text from `start` on, and white space before it that may turn out to mean nothing."""
        if self._space is None:
            self._send_text(out, start)
        offset = self._base + start
        same = hold is not None and hold.offset == offset
        self._hold = hold if same else Hold(offset, len(self._buf) - start, self._closers, self._max_held)

    def _send_calls(self, out: list[Piece], start: int, parsed: Parsed) -> None:
        if self._space is None:
            self._send_text(out, start)
        elif start > self._pos:
            out.append(Gap(self._buf[self._pos : start]))
        raw = self._buf[start : start + parsed.consumed]
        for call in parsed.calls:
            out.append(Call(call.name, call.arguments, raw))
            raw = ""
        self._pos = start + parsed.consumed
        self._after_call = True
        separators = "".join(f.separators for f in self._formats)
        self._space = re.compile(rf"[\s{re.escape(separators)}]*") if separators else SPACE

    def _send_rest(self, out: list[Piece]) -> None:
        if self._space is None:
            self._send_text(out, len(self._buf))
            return
        rest = self._buf[self._pos :]
        if not rest:
            return
        nothing = self._space.fullmatch(rest) is not None
        out.append(Gap(rest) if nothing and self._after_call else Text(rest))
        self._pos = len(self._buf)
        if not nothing:
            self._space, self._at_start = None, False

    def _send_text(self, out: list[Piece], end: int) -> None:
        if end <= self._pos:
            return
        text = self._buf[self._pos : end]
        self._at_start = self._at_start and text.isspace()
        out.append(Text(text))
        self._pos = end

    def _forget_sent(self) -> None:
        if self._pos > 1:
            self._base += self._pos - 1
            self._buf = self._buf[self._pos - 1 :]
            self._pos = 1
