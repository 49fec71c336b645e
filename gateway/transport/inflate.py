"""Decodes a `content-encoding` piece by piece, in steps of bounded size."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from gateway.domain.upstream import ProtocolFailure

STEP = 64 * 1024
"""Most decoded bytes that one call returns: a body that inflates a thousandfold takes more steps, not more memory."""
PIECE = 16 * 1024  # encoded bytes that are decoded at a time
EMPTY_MOST = 1000  # gzip members without content in one body: no real server sends more

_GZIP = 16 + zlib.MAX_WBITS
_ZLIB = zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


def inflater_for(headers: Mapping[str, str]) -> Inflater | None:
    """The decoder that a response with these (lower-case) headers needs; None when its body is plain.

    Raises `ProtocolFailure` for an encoding that was not requested and is not supported (br, zstd, several encodings).
    """
    encoding = headers.get("content-encoding")
    if encoding is None:
        return None
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return Inflater(encoding)
    raise ProtocolFailure(f"the backend sent content-encoding {encoding!r} though only identity was accepted")


class Inflater:
    """`feed` it what is received, take what is decoded with `step` until b"", `finish` at the body's end."""

    __slots__ = ("_at", "_empty", "_gzip", "_member", "_more", "_pending", "_started", "_stream")

    def __init__(self, encoding: str) -> None:
        self._gzip = encoding != "deflate"
        self._stream = zlib.decompressobj(_GZIP if self._gzip else _ZLIB)
        self._pending = b""
        self._at = 0  # where in `_pending` the next piece begins
        self._started = False
        self._more = False  # the last step returned bytes: the next may too, without more input
        self._member = False  # the current gzip member has yielded bytes
        self._empty = 0  # members that yielded none

    @property
    def more(self) -> bool:
        """May the next `step` return bytes without more input? Then the reader first lets other tasks run."""
        return self._more

    def feed(self, data: bytes) -> None:
        """Adds encoded bytes. Nothing is decoded yet."""
        if not data:
            return
        if not self._started:
            self._started = True
            # RFC 9110 requires a zlib wrapper, but many servers send the bare stream, so both are accepted.
            if not self._gzip and data[0] & 0x0F != 8:
                self._stream = zlib.decompressobj(_RAW)
        self._pending = self._pending[self._at :] + data
        self._at = 0

    def step(self) -> bytes:
        """Up to `STEP` decoded bytes; b"" when more input is needed. Raises `ProtocolFailure` on bad data."""
        while True:
            if self._stream.eof:
                if self._at >= len(self._pending):
                    self._more = False
                    return b""
                self._next_member()
            piece = self._pending[self._at : self._at + PIECE]
            try:
                # This also runs with no input left: the decoder may still hold output that exceeded the last step.
                out = self._stream.decompress(piece, STEP)
            except zlib.error as error:
                raise ProtocolFailure(f"the body is not what its content-encoding says: {error}") from error
            rest = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            self._at += len(piece) - len(rest)
            if out or self._at >= len(self._pending):
                self._member = self._member or bool(out)
                self._more = bool(out)
                return out

    def _next_member(self) -> None:
        """Start the next gzip member: a gzip body may consist of several."""
        if not self._gzip:
            raise ProtocolFailure("bytes after the end of a deflate body")
        if not self._member:
            self._empty += 1
            if self._empty > EMPTY_MOST:
                raise ProtocolFailure(f"a gzip body of more than {EMPTY_MOST} members without content")
        self._member = False
        self._stream = zlib.decompressobj(_GZIP)

    def finish(self) -> None:
        """Call at the end of the body, when `step` yields nothing. Raises `ProtocolFailure` if the stream is short."""
        if self._started and not self._stream.eof:
            raise ProtocolFailure("the body ends inside its content-encoding")
