"""Finds tool calls in text that arrives in pieces of any size. The result does not depend on how the text is split."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gateway.inspection.cursor import SPACE
from gateway.inspection.formats import Format, Parsed
from gateway.inspection.formats.base import NEED_MORE
from gateway.inspection.markdown import MarkdownContext
from gateway.inspection.markers import markers_of
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.segments import Call, Gap, Reasoning, Segment, Text

MAX_HELD = 1 << 20
EFFORT = 3  # characters read without finding a call, per character of text; beyond that, markers in them are skipped
FREE_EFFORT = 1 << 16
NO_CALL = Parsed()
REPARSE_ALWAYS = 16  # up to this many characters, an incomplete call is parsed again after every piece of text
REPARSE_RARELY_FROM = 4096  # from this many characters on, it must grow fourfold, not double, to be parsed again
REPARSE_EFFORT = 1  # characters parsed because of closing strings, per held character, beyond the first `REPARSE_FREE`
REPARSE_FREE = 1 << 16
_NEVER = re.compile(r"(?!)")
_TAIL = 32  # characters before the new text in which a closing string may have begun
_TICKS = re.compile("`*")
_RUN = re.compile("(?P<ticks>`+)")


class CallFinder:
    """`formats`: in the order in which they are tried. `max_held`: the longest call, in characters.

    Text is held back if it is a possible beginning of a marker, white space that may belong to a call (at most as long
    as the longest marker), or an incomplete call."""

    def __init__(self, formats: Sequence[Format], tools: OfferedTools, max_held: int = MAX_HELD) -> None:
        self._tools = tools
        self._max_held = max_held
        self._markers = markers_of(tuple(dict.fromkeys(formats)))
        self._hinted = self._markers.hint.search
        self._context = MarkdownContext(self._markers)
        self._flows = False  # no text is held, and text without a marker's first character is returned at once
        self._buf = ""  # one character that was returned (for look-behind), then the held ones
        self._pos = 0  # where the held characters begin
        self._base = 0  # offset of _buf in the whole text
        self._at_start = True  # only white space and calls so far
        self._space: re.Pattern[str] | None = SPACE  # white space that is dropped if a call follows; None inside text
        self._after_call = False
        self._not_before = 0  # no call begins before this offset of the whole text
        self._wasted = 0  # characters read at markers that began no call
        self._outside: tuple[int, int] | None = None  # inside code: `_wasted` and `_not_before` before the code
        self._held: HeldText | None = None

    def feed(self, text: str) -> list[Segment]:
        if self.passes(text):  # the most frequent case
            return [Text(text)] if text else []
        if self._held is None:
            self._buf += text
        elif self._held.should_parse(text):
            self._buf += self._held.drain()
        else:
            return []
        return self._scan(final=False)

    def passes(self, text: str) -> bool:
        """Instead of `feed`, where that would return this text alone: then it is added. False = `feed` it."""
        if not self._flows or self._hinted(text) is not None:
            return False
        if text:
            self._base += len(text)  # `_buf` always keeps one character
            self._buf = text[-1]
        return True

    def finish(self) -> list[Segment]:
        """The text has ended: return the segments that were held back."""
        if self._held is not None:
            self._buf += self._held.drain()
        return self._scan(final=True)

    def _scan(self, final: bool) -> list[Segment]:
        out: list[Segment] = []
        held, self._held = self._held, None
        at = self._end_run(final) if self._context.amid_run else self._pos
        not_closed = 0  # up to this offset the current code is not closed
        while True:
            if self._space is not None and at == self._pos:
                at = self._space_end(at)
                if self._space is not None and at == len(self._buf) and not final:
                    break
            match = self._context.pattern(self._at_start).search(self._buf, at)
            if match is None:
                self._send_rest(out)
                break
            start = match.start()
            if match.lastgroup != "marker":
                self._enter(match, final)
                at, not_closed = match.end(), 0
                continue
            if start > at:
                self._space = None
            found = match["marker"]
            if self._context.plain:
                parsed = self._parse_at(start, found, final)
            elif self._context.example:
                parsed = self._first_in_block(match, final)
            else:
                if start >= not_closed:
                    closing, not_closed = self._context.closing(self._buf, start, final)
                    if closing is not None:
                        at = closing
                        continue
                parsed = self._parse_inside(start, found, final)
            if parsed.need_more:
                self._wait(out, start, found, held)
                break
            if parsed.calls:
                self._context.leave()
                self._outside = None
                self._send_calls(out, start, parsed)
                at = self._pos
            else:
                self._space, self._at_start = None, False
                at = start + max(parsed.consumed, 1)
                if found[0] == "`" and self._context.plain and (ticks := _RUN.match(self._buf, start)) is not None:
                    self._enter(ticks, final)  # a fence without a call opens code
                    at = ticks.end()
        self._forget_sent()
        return out

    def _enter(self, match: re.Match[str], final: bool) -> None:
        self._space, self._at_start = None, False
        if match.lastgroup == "end":
            self._outside = None
        self._context.enter(match, at_end=match.end() == len(self._buf) and not final)
        self._keep_effort()

    def _keep_effort(self) -> None:
        """Effort inside code that is closed later does not count: in a text that comes at once it is skipped."""
        if self._context.in_code:
            self._outside = self._outside or (self._wasted, self._not_before)
        elif self._outside:
            self._wasted, self._not_before = self._outside
            self._outside = None

    def _first_in_block(self, match: re.Match[str], final: bool) -> Parsed:
        """Handle a marker that is the first text in a fenced block: the block is an example, not a call."""
        if not final and all(one.length is None for one in self._markers.started_by(match["marker"])):
            return NEED_MORE
        self._context.enter(match, at_end=False)
        return NO_CALL

    def _parse_inside(self, start: int, found: str, final: bool) -> Parsed:
        """The same as `_parse_at`, inside code or a quotation that is not closed before the call begins. The call is
        refused as a whole if it is the first text in the quotation, or if anything but the end of the line (in a block:
        the end of the text) follows it."""
        parsed = self._parse_at(start, found, final)
        if not parsed.calls:
            return parsed
        end = start + parsed.consumed
        if self._context.quotes(self._buf[start - 1]):
            return Parsed(consumed=parsed.consumed)
        while True:
            end, ends_line = self._context.behind(self._buf, end)
            if ends_line or end == len(self._buf):
                if end - start <= self._max_held:
                    return parsed if ends_line or final else NEED_MORE
                break
            match = self._markers.block.match(self._buf, end)
            if end - start > self._max_held or match is None or match.lastgroup != "marker":
                break
            another = self._parse_at(end, match["marker"], final)
            if another.need_more:
                return NEED_MORE
            if not another.calls:
                break
            end += another.consumed
        # The text behind the last call refuses all of them: none is parsed a second time.
        return Parsed(consumed=end - start)

    def _end_run(self, final: bool) -> int:
        """The position behind the rest of a run of backticks that was split between two pieces."""
        match = _TICKS.match(self._buf, self._pos)
        assert match is not None  # the pattern also matches nothing
        self._context.ticks(match.end() - self._pos, at_end=match.end() == len(self._buf) and not final)
        self._keep_effort()
        return match.end()

    def _space_end(self, at: int) -> int:
        assert self._space is not None
        match = self._space.match(self._buf, at)
        assert match is not None  # the pattern also matches nothing
        if match.end() - at > self._markers.longest:
            self._space = None  # more than may be held back: it is text
        return match.end()

    def _parse_at(self, start: int, found: str, final: bool) -> Parsed:
        """Parse the text at `start`, where the marker `found` is. The first format that does not refuse decides."""
        if self._base + start < self._not_before:
            return NO_CALL
        if self._at_start and self._space is None and self._text_before(start):
            self._at_start = False
        looked = 0
        for format_, length, follow in self._markers.started_by(found):
            if format_.only_at_start and not self._at_start:
                continue
            if length is None:
                if final or start + len(found) < len(self._buf):
                    continue
                parsed = NEED_MORE
            elif follow.match(self._buf, start + length):
                parsed = format_.parse(self._buf, start, self._tools, final=final)
            else:
                continue
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

    def _wait(self, out: list[Segment], start: int, found: str, held: HeldText | None) -> None:
        """Hold the text from `start` on, and white space before it that may be dropped."""
        if self._space is None:
            self._send_text(out, start)
        offset = self._base + start
        if held is None or held.offset != offset:
            held = HeldText(offset, len(self._buf) - start, self._max_held)
        held.closing = self._markers.closing(found)
        self._held = held

    def _send_calls(self, out: list[Segment], start: int, parsed: Parsed) -> None:
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
        self._space = self._markers.space

    def _send_rest(self, out: list[Segment]) -> None:
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

    def _send_text(self, out: list[Segment], end: int) -> None:
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
        hold_back = self._space is not None or self._held is not None or self._at_start
        self._flows = not hold_back and self._pos == len(self._buf) == 1 and self._context.idle


class HeldText:
    """An incomplete call: the text that is held back from `offset` (of the whole text) on.

    Each attempt to parse it reads all of it, so attempts are limited: their cost stays within a fixed factor of the
    length. This may delay a call, but does not change the result."""

    __slots__ = ("_again", "_most", "_parts", "_seen", "_size", "_spent", "_tail", "closing", "offset")

    def __init__(self, offset: int, size: int, most: int) -> None:
        self.offset = offset
        self._size = self._seen = size
        self.closing = _NEVER  # the strings that may complete the call
        self._most = most
        self._spent = 0
        self._parts: list[str] = []
        self._tail = ""
        self._again = False  # a closing string was last: the text behind it may complete the call

    def should_parse(self, text: str) -> bool:
        """Add text. Returns whether to parse the call again: while it is short (so that prose is released quickly), at
        a closing string and the text after it, when the call has grown enough, and when it is too long."""
        self._parts.append(text)
        size = self._size = self._size + len(text)
        recent = self._tail + text
        closed = self.closing.search(recent)
        if closed is not None:
            self._tail = recent[max(closed.end(), len(recent) - _TAIL) :]
            parse_now = self._again = True
        else:
            self._tail = recent[-_TAIL:]
            parse_now = False
            if self._again:
                self._again = text.isspace()
                parse_now = not self._again
        if (
            size <= REPARSE_ALWAYS
            or size >= self._most
            or size >= self._seen * (2 if size < REPARSE_RARELY_FROM else 4)
        ):
            return True
        return parse_now and self._spent + size <= REPARSE_EFFORT * size + REPARSE_FREE

    def drain(self) -> str:
        """The text since the last attempt to parse the call."""
        text = "".join(self._parts)
        self._parts.clear()
        self._seen = self._size
        if self._size > REPARSE_ALWAYS:
            self._spent += self._size
        return text


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
