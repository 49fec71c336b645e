"""The folder `files/` in `server.data`: the contents of the files of a gateway that is alone.

A mark beside it says that the folder is a gateway's: nothing is put into, or deleted from, a folder of somebody else.
The mark is locked by the one gateway that uses the folder and the database beside it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gateway.apps.batches.store import StoreAway, StoreFailed
from gateway.shortage import check_disk

MARK = "batches.lock"
OWN = re.compile(r"file-(?:(?:output|error)-)?[0-9a-f]{24}(?:\.part)?")  # the names that a gateway gives
WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of a disk that has none
BESIDE = "Gateways that run beside each other need a `server.data` each, or `server.shared`."


class FileFolder:
    """`take` it before anything else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark_path = path.with_name(MARK)
        self._mark: int | None = None  # its descriptor, locked; None: the folder is not taken

    def take(self, *, used_before: bool) -> None:
        """Make the folder, or go on with it. `used_before`: a gateway has a database beside it, so a folder without a
        mark may be that of an older gateway. Raises StoreAway while another gateway uses it, StoreFailed where it is
        somebody else's, OSError."""
        if self._mark is not None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        if not self._mark_path.exists():
            self._check_foreign(used_before)
        mark = os.open(self._mark_path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                os.close(mark)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise StoreAway(
                    f"Another gateway uses {self.path}: it leaves it when it is stopped. {BESIDE}"
                ) from None
            if error.errno not in WITHOUT_LOCKS:
                raise
        self._mark = mark
        os.chmod(self.path, 0o700)

    def _check_foreign(self, used_before: bool) -> None:
        for path in self.path.iterdir():
            if not used_before or not OWN.fullmatch(path.name):
                found = f"The folder {self.path} is not the gateway's own ({path.name!r} is in it)"
                raise StoreFailed(f"{found}: move it away, or choose another `server.data`.")

    def leave(self) -> None:
        """Another gateway may take it."""
        if self._mark is not None:
            os.close(self._mark)
            self._mark = None

    def drop_strays(self, known: Container[str]) -> None:
        """Delete contents without a record: they are left from uploads and outputs that were cut off."""
        for path in self.path.iterdir():
            if path.name not in known and OWN.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def read(self, name: str, at: int, size: int) -> bytes:
        """Fewer bytes where the file ends, or was lost."""
        with suppress(FileNotFoundError), (self.path / name).open("rb") as file:
            file.seek(at)
            return file.read(size)
        return b""

    def drop(self, name: str) -> None:
        with suppress(FileNotFoundError):
            (self.path / name).unlink()


class DiskWriter:
    """Writes one file, as long as its disk has room."""

    held = 0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def write(self, data: bytes) -> None:
        file = self._opened()
        check_disk(file.fileno(), len(data))
        file.write(data)

    def finish(self) -> None:
        file = self._opened()
        file.flush()
        os.fsync(file.fileno())
        file.close()

    def drop(self) -> None:
        if self._file is not None:
            self._file.close()
        self._path.unlink(missing_ok=True)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = open(self._path, "wb", opener=_private)  # noqa: SIM115
        return self._file


def _private(path: str, flags: int) -> int:
    """For `open`: a file that only its owner may read."""
    return os.open(path, flags, 0o600)
