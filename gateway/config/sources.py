"""Reads the files that routes.yaml is made of, and remembers what was in them, so that an edit of any can be told."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from gateway.config.problems import NotRead
from gateway.shortage import shortage_of

MOST = 4 * 1024 * 1024  # bytes that are read; every file of ours has a smaller limit

# File -> a digest of what was read; None = it is not there, or cannot be read.
Digests = Mapping[Path, bytes | None]


class Sources(dict[Path, bytes | None]):
    """The digests of what was read through it."""

    def read(self, file: Path) -> bytes:
        """What is in the file, up to `MOST` bytes. A pipe is read too, but not remembered: it cannot be read again.
        Raises OSError, `NotRead` where this process lacks what it takes to read."""
        self[file] = None
        try:
            with file.open("rb") as stream:
                content = stream.read(MOST)
                if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    self[file] = hashlib.blake2b(content).digest()
                else:
                    del self[file]
        except (OSError, MemoryError) as error:
            if (kind := shortage_of(error)) is not None:
                raise NotRead(str(file), kind) from error
            raise
        return content


def look(files: Iterable[Path]) -> Digests:
    """What these files hold now. Raises `NotRead`."""
    found = Sources()
    for file in files:
        try:
            found.read(file)
        except OSError:
            continue
    return found
