"""Reads the chunks of a body (RFC 9112, 7.1) that come whole, as a server writes them for each event of a stream. For
anything else there is the parser, which need not see the whole chunks: between two chunks its state is the same."""

from __future__ import annotations

CHUNKS_MOST = 8  # of one read: of more, as in a burst, some are likely cut
_SIZE_MOST = 8  # digits of a size
_LINES_MOST = 4096  # bytes of a chunk up to which its first line, and its size, are kept
_END = b"\r\n"

_lines: dict[int, bytes] = {}
_sizes: dict[bytes, int] = {}


def whole_chunk(data: bytes) -> bytes | None:
    """The content of `data`, if it is one whole chunk that is not the last; None = it is something else. There is only
    one way in which a chunk of this length begins."""
    length = len(data)
    line = _lines.get(length)
    if line is None:
        line = _line_of(length)
        if length <= _LINES_MOST:
            _lines[length] = line
    return data[len(line) : -2] if line and data.startswith(line) and data.endswith(_END) else None


def _line_of(length: int) -> bytes:
    """The line with which a chunk of `length` bytes begins; b"" where no chunk has this length."""
    for digits in range(1, _SIZE_MOST + 1):
        size = length - digits - 4
        if size > 0 and len(line := b"%x\r\n" % size) == digits + 2:
            return line
    return b""


def _size_of(digits: bytes) -> int | None:
    """The size that is written so; None where no server writes it so."""
    try:
        size = int(digits, 16)
    except ValueError:
        return None
    if size < 0 or b"%x" % size != digits:
        return None
    if size <= _LINES_MOST:
        _sizes[digits] = size
    return size


def whole_chunks(data: bytes, at: int = 0) -> tuple[bytes, bool] | None:
    """What is in `data` from the index `at`, where a chunk begins: (the content, is the last chunk there, with the end
    of the body); None unless it is a few whole chunks and nothing else."""
    contents: list[bytes] = []
    end = len(data)
    while at < end and len(contents) < CHUNKS_MOST:
        line = data.find(_END, at, at + _SIZE_MOST + 2)
        if line < 0:
            return None
        size = _sizes.get(data[at:line])
        if size is None and (size := _size_of(data[at:line])) is None:
            return None
        begin = line + 2
        at = begin + size + 2
        if not data.startswith(_END, at - 2):
            return None
        if not size:
            return (b"".join(contents), True) if at == end else None
        contents.append(data[begin : at - 2])
    return (b"".join(contents), False) if contents and at == end else None


def ends_chunk(data: bytes, at: int) -> bool:
    """Does `data` end with the end of a chunk? At the index `at` one begins."""
    return at == len(data) or whole_chunks(data, at) is not None
