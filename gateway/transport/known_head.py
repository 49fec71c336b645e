"""Recognises an answer whose head is that of the answer before, with another length and another date: nearly all
answers of a server are. All other bytes being equal, what the parser has read of the first one holds for the others."""

from __future__ import annotations

from collections.abc import Mapping

DATE = 29  # characters of a date (RFC 9110, 5.6.7)
LEARNED_MOST = 16  # heads of answers that are remembered, one after the other: some servers never send one twice
NUMBER_MOST = 18  # digits of a length
HEAD_MOST = 4096  # bytes of a head that is kept
_END = b"\r\n\r\n"
_DATE, _LENGTH = b"\r\ndate: ", b"\r\ncontent-length: "


class KnownHead:
    """`headers`: as the parser has read them, with the length and the date of the first answer."""

    __slots__ = ("_after", "_before", "_between", "_date_end", "_number_at", "_start", "headers")

    def __init__(self, before: bytes, date: bytes, between: bytes, after: bytes, headers: Mapping[str, str]) -> None:
        self._before = before  # up to the date
        self._between = between  # from there to the number of the length
        self._start = before + date + between  # with the latest date
        self._after = after  # behind the number
        self._date_end = len(before) + len(date)
        self._number_at = len(self._start)
        self.headers = headers

    def body_of(self, data: bytes) -> bytes | None:
        """The body, if `data` is a whole answer with this head and nothing else; else None."""
        if not data.startswith(self._start) and not self._starts_at_another_time(data):
            return None
        at = self._number_at
        end = data.find(b"\r", at, at + NUMBER_MOST + 1)
        number = data[at:end]
        if not data.startswith(self._after, end) or not number.isdigit():
            return None
        begin = end + len(self._after)
        return data[begin:] if int(number) == len(data) - begin else None

    def _starts_at_another_time(self, data: bytes) -> bool:
        if not data.startswith(self._before) or not data.startswith(self._between, self._date_end):
            return False
        if not _may_be_date(data[len(self._before) : self._date_end]):
            return False
        self._start = data[: self._number_at]
        return True


def known_head(data: bytes, headers: Mapping[str, str]) -> KnownHead | None:
    """What recognises the head of the whole answer `data`, which the parser has read; None = nothing does. Without a
    date, or with one behind the length, it is not recognised."""
    end = data.find(_END)
    head = data[: end + len(_END)]
    lower = head.lower()
    date_at, length_at = lower.find(_DATE) + len(_DATE), lower.find(_LENGTH) + len(_LENGTH)
    if not 0 < end <= HEAD_MOST or date_at < len(_DATE) or length_at < date_at + DATE:
        return None
    if lower.count(_DATE.strip()) != 1 or lower.count(_LENGTH.strip()) != 1:
        return None
    date, number = head[date_at : date_at + DATE], head[length_at : head.find(b"\r", length_at)]
    if b"\r" in date or not number.isdigit():
        return None
    between = head[date_at + DATE : length_at]
    return KnownHead(head[:date_at], date, between, head[length_at + len(number) :], headers)


class KnownStreamHead:
    """The head of an answer in chunks. `head`: as it came first."""

    __slots__ = ("_after", "_after_at", "_before", "_date", "_end", "head")

    def __init__(self, head: bytes, date_at: int) -> None:
        """`date_at`: where in the head its date is; -1 = it has none."""
        self.head = head
        self._after_at = date_at + DATE if date_at >= 0 else len(head)
        self._before = head[:date_at] if date_at >= 0 else head
        self._after = head[self._after_at :]
        self._date = head[len(self._before) : self._after_at]
        self._end = len(head)

    def end_in(self, data: bytes) -> int:
        """The index behind the head, if `data` begins with it; else 0."""
        if not data.startswith(self._before) or not data.startswith(self._after, self._after_at):
            return 0
        date = data[len(self._before) : self._after_at]
        if date != self._date:
            if not _may_be_date(date):
                return 0
            self._date = date
        return self._end


def known_stream_head(data: bytes) -> KnownStreamHead | None:
    """What recognises the head of the answer in chunks that begins `data`, as parsed; None = nothing does."""
    end = data.find(_END)
    head = data[: end + len(_END)]
    lower = head.lower()
    if not 0 < end <= HEAD_MOST or lower.count(_DATE.strip()) > 1:
        return None
    at = lower.find(_DATE)
    date_at = at + len(_DATE) if at >= 0 else -1
    return None if at >= 0 and b"\r" in head[date_at : date_at + DATE] else KnownStreamHead(head, date_at)


def _may_be_date(date: bytes) -> bool:
    return date.isascii() and b"\r" not in date and b"\n" not in date


class AnswerHeads:
    """The heads of answers that one connection knows: of the latest `whole` one, and of the latest `stream`. It begins
    with those of other connections to the same backend (`latest`). Both `learn` methods get an answer with status 200,
    behind which the connection stays open."""

    __slots__ = ("_latest", "_learned", "stream", "whole")

    def __init__(self, latest: AnswerHeads | None = None) -> None:
        self.whole: KnownHead | None = latest.whole if latest is not None else None
        self.stream: KnownStreamHead | None = latest.stream if latest is not None else None
        self._latest = latest
        self._learned = 0

    def learn_whole(self, data: bytes, headers: Mapping[str, str]) -> None:
        """The answer `data` has come in one read."""
        usual = "content-length" in headers and headers.keys().isdisjoint(("transfer-encoding", "content-encoding"))
        if usual and self._learned < LEARNED_MOST:
            self._learned += 1
            self.whole = known_head(data, headers)
            if self._latest is not None:
                self._latest.whole = self.whole

    def learn_stream(self, data: bytes, headers: Mapping[str, str]) -> None:
        """The read `data` begins with the head of an answer in chunks."""
        usual = headers.keys().isdisjoint(("content-length", "content-encoding"))
        if usual and self._learned < LEARNED_MOST:
            self._learned += 1
            self.stream = known_stream_head(data)
            if self._latest is not None:
                self._latest.stream = self.stream
