"""Reads a chunked request body strictly, from pieces of any size. Sans-IO."""

from __future__ import annotations

import re

from gateway.http.request_head import MAX_BYTES, MAX_FIELDS, check_lines, malformed, parse_field, too_large

_WORD = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_EXTENSION = rb";%b(?:=(?:%b|\"(?:[^\"\\\x00-\x08\x0a-\x1f\x7f]|\\[\t\x20-\x7e])*\"))?" % (_WORD, _WORD)
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})((?:%b)*)" % _EXTENSION)
_SIZE_LINE_BEGUN = re.compile(rb"(?:[0-9A-Fa-f]{1,15}(?:;[\t\x20-\x7e\x80-\xff]*)?\r?)?")
_MAX_LINE = 4096  # bytes of one size with its extensions
_PLAIN = {b"%x" % size: size for size in range(1, 256)}
_PLAIN.update({b"%X" % size: size for size in range(1, 256)})


class ChunkedBody:
    """`feed` it until `rest` is not None: the bytes behind the body.

    Extensions and trailers are checked and discarded; together they may have `MAX_BYTES`.
    """

    __slots__ = ("_begun", "_closing", "_extra", "_left", "_trailers", "rest")

    def __init__(self) -> None:
        self.rest: bytes | None = None
        self._left = 0  # bytes of the present chunk that are missing
        self._closing = False  # the CR LF behind the data is missing
        self._trailers: int | None = None  # how many so far; None = before the last chunk
        self._begun = b""  # the part of an incomplete line
        self._extra = 0  # bytes of extensions and trailers so far

    def feed(self, data: bytes) -> bytes:
        """The body bytes in `data`. Raises GatewayError (400, 431) for a malformed body."""
        if self._begun:
            data, self._begun = self._begun + data, b""
        if self._trailers is not None:
            self._read_trailers(data, 0)
            return b""
        pieces: list[bytes] = []
        at = 0
        find = data.find
        while True:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._closing = True
            if self._closing:
                ending = data[at : at + 2]
                if ending != b"\r\n":
                    self._wait_for_line_end(ending)
                    break
                self._closing = False
                at += 2
            end = find(b"\r\n", at, at + _MAX_LINE)
            if end < 0:
                self._wait_for_size(data[at:])
                break
            line = data[at:end]
            at = end + 2
            size = _PLAIN.get(line)
            if size is None:
                size = self._size(line)
                if not size:
                    self._trailers = 0
                    self._read_trailers(data, at)
                    break
            self._left = size
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _size(self, line: bytes) -> int:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise malformed("a chunk of its body has no size")
        self._count(len(match[2]))
        return int(match[1], 16)

    def _wait_for_line_end(self, begun: bytes) -> None:
        if not b"\r\n".startswith(begun):
            raise malformed("a chunk of its body is longer than it says")
        self._begun = begun

    def _wait_for_size(self, begun: bytes) -> None:
        if len(begun) >= _MAX_LINE:
            raise too_large()
        if not _SIZE_LINE_BEGUN.fullmatch(begun):
            raise malformed("a chunk of its body has no size")
        self._begun = begun

    def _read_trailers(self, data: bytes, at: int) -> None:
        assert self._trailers is not None
        while (end := data.find(b"\r\n", at, at + MAX_BYTES)) >= 0:
            line = data[at:end]
            at = end + 2
            if not line:
                self.rest = data[at:]
                return
            check_lines(line)
            parse_field(line)
            self._count(len(line))
            self._trailers += 1
            if self._trailers > MAX_FIELDS:
                raise too_large()
        self._begun = data[at:]
        if self._extra + len(self._begun) > MAX_BYTES:
            raise too_large()
        if b"\n" in self._begun:
            raise malformed("a line of its trailers does not end with CR LF")

    def _count(self, extra: int) -> None:
        self._extra += extra
        if self._extra > MAX_BYTES:
            raise too_large()
