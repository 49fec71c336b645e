"""The file of a form, kept while it may have to be sent again: a small one in memory, a larger one in a temporary file
without a name, which the system removes even when the process is killed."""

from __future__ import annotations

import asyncio
import mmap
import secrets
import tempfile
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import IO

from gateway.shortage import check_disk
from gateway.transport.sse import Counted

KEPT_MOST = 256 * 1024  # bytes in memory; a larger file goes to the disk in pieces of this size
HEAD_ROOM = 1024 * 1024  # bytes before the file on the disk, for the fields that are sent before it
HEADER_MOST = 4096  # bytes at the beginning of a file that are kept to be read


class Upload:
    """`write` the file, then `finish`; from then on `form` gives the body of a request as often as it is needed, one
    at a time. Large files go to `folder`; where it does not exist, to the system's for temporary files."""

    def __init__(self, folder: Path, memory: Counted) -> None:
        self.size = 0  # bytes of the file
        self.beginning = b""  # of the file
        self.field = "file"  # its name in the client's form
        self.further: set[str] = set()  # names of further files that travel with it
        self.filename = "file"
        self.content_type = ""
        self._folder = folder
        self._memory = memory
        self._kept = bytearray()
        self._disk: IO[bytes] | None = None
        self._mapped: mmap.mmap | None = None
        self._digest = blake2b(digest_size=16)
        self._boundary = f"gateway-{secrets.token_hex(16)}"

    async def write(self, data: bytes) -> None:
        """Raises what counting raises, and OSError of the disk."""
        self._memory.add(len(data))
        if len(self.beginning) < HEADER_MOST:
            self.beginning += data[: HEADER_MOST - len(self.beginning)]
        self._digest.update(data)
        self.size += len(data)
        self._kept += data
        if len(self._kept) > KEPT_MOST:
            await self._flush()

    async def finish(self, filename: str, content_type: str) -> None:
        """The file is complete. Raises OSError."""
        self.filename, self.content_type = filename or "file", content_type
        if self._disk is not None:
            self._memory.add(len(self._tail()))
            self._kept += self._tail()
            await self._flush()
            self._disk.flush()
            self._mapped = mmap.mmap(self._disk.fileno(), 0)

    def between(self, name: str, filename: str, content_type: str) -> bytes:
        """What goes between the file before and a further one, with this head: they travel as one."""
        self.further.add(name)
        return b"\r\n" + self._file_head(name, filename, content_type)

    def _file_head(self, name: str, filename: str, content_type: str) -> bytes:
        head = self._field(name) + b'; filename="' + _quoted(filename) + b'"\r\ncontent-type: '
        return head + _line(content_type or "application/octet-stream") + b"\r\n\r\n"

    @property
    def digest(self) -> str:
        """The same for the same bytes."""
        return self._digest.hexdigest()

    @property
    def form_type(self) -> str:
        """The content-type of the form."""
        return f"multipart/form-data; boundary={self._boundary}"

    def form(self, fields: Iterable[tuple[str, str]], file_field: str) -> bytes | memoryview:
        """The body of a form with these fields and then the file. A body from before is overwritten."""
        parts = [self._field(name) + b"\r\n\r\n" + value.encode(errors="replace") for name, value in fields]
        parts.append(self._file_head(file_field, self.filename, self.content_type))
        head = b"\r\n".join(parts)
        if self._mapped is None:
            return head + self._kept + self._tail()
        if len(head) > HEAD_ROOM:
            raise ValueError("the fields of the form are too large")
        start = HEAD_ROOM - len(head)
        self._mapped[start:HEAD_ROOM] = head
        return memoryview(self._mapped)[start:]

    def close(self) -> None:
        """The bytes go when nobody sends them any more."""
        self._kept = bytearray()
        self._mapped = None
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def _field(self, name: str) -> bytes:
        return f"--{self._boundary}\r\n".encode() + b'content-disposition: form-data; name="' + _quoted(name) + b'"'

    def _tail(self) -> bytes:
        return f"\r\n--{self._boundary}--\r\n".encode()

    async def _flush(self) -> None:
        kept, self._kept = self._kept, bytearray()
        await asyncio.to_thread(self._append, kept)  # a busy disk would stop all other requests
        self._memory.release(len(kept))

    def _append(self, data: bytearray) -> None:
        if self._disk is None:
            folder = self._folder if self._folder.is_dir() else None
            self._disk = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed by `close`
            self._disk.seek(HEAD_ROOM)
        check_disk(self._disk.fileno(), len(data))
        self._disk.write(data)


def _quoted(text: str) -> bytes:
    """A name inside quotation marks, as browsers write it."""
    return text.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22").encode(errors="replace")


def _line(text: str) -> bytes:
    return "".join(text.splitlines()).encode("latin-1", "replace")
