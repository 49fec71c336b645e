"""Undoing a `content-encoding` piece by piece, never more than a bounded step at a time."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from .client import ProtocolFailure

STEP = 256 * 1024
"""Decoded bytes one call may yield: a body that inflates a thousandfold costs its reader steps, not memory."""

_GZIP = 16 + zlib.MAX_WBITS
_ZLIB = zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


def inflater_for(headers: Mapping[str, str]) -> Inflater | None:
    """The decoder that a response with these (lower-case) headers needs; None when its body is plain.

    Raises `ProtocolFailure` for an encoding that was not asked for and cannot be undone (br, zstd, two in a row).
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
    """`feed` what came off the wire, take decoded bytes with `step` until it yields b"", `finish` at the body's end."""

    __slots__ = ("_gzip", "_pending", "_started", "_stream")

    def __init__(self, encoding: str) -> None:
        self._gzip = encoding != "deflate"
        self._stream = zlib.decompressobj(_GZIP if self._gzip else _ZLIB)
        self._pending = b""
        self._started = False

    def feed(self, data: bytes) -> None:
        """Adds encoded bytes. Nothing is decoded yet."""
        if not data:
            return
        if not self._started:
            self._started = True
            # RFC 9110 says zlib-wrapped; enough servers send the bare stream that both have to be understood.
            if not self._gzip and data[0] & 0x0F != 8:
                self._stream = zlib.decompressobj(_RAW)
        self._pending += data

    def step(self) -> bytes:
        """Up to `STEP` decoded bytes; b"" when more input is needed. Raises `ProtocolFailure` on bad data."""
        while True:
            if self._stream.eof:
                if not self._pending:
                    return b""
                if not self._gzip:
                    raise ProtocolFailure("bytes after the end of a deflate body")
                self._stream = zlib.decompressobj(_GZIP)  # gzip allows members one after the other
            try:
                # Also with no input left: the window may still hold output that the last step had no room for.
                out = self._stream.decompress(self._pending, STEP)
            except zlib.error as error:
                raise ProtocolFailure(f"the body is not what its content-encoding says: {error}") from error
            self._pending = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            if out or not self._pending:
                return out

    def finish(self) -> None:
        """Call at the end of the body, when `step` yields nothing. Raises `ProtocolFailure` if the stream is short."""
        if self._started and not self._stream.eof:
            raise ProtocolFailure("the body ends inside its content-encoding")
