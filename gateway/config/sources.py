"""Reads routes.yaml and the files that it refers to, and keeps a digest of each, by which edits are noticed. And the
files that a gateway keeps across restarts."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import select
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from gateway.config.problems import Digests, NotRead
from gateway.shortage import shortage_of

K = TypeVar("K")

MOST = 4 * 1024 * 1024  # bytes that are read of a file; routes.yaml and secrets have smaller limits of their own
PATIENCE = 2.0  # seconds to wait for the whole content of a pipe


class Sources(dict[Path, bytes | None]):
    """The digests of the files that were read through this object."""

    def read(self, file: Path, patience: float = PATIENCE) -> bytes:
        """As `read_file`. No digest is kept of a pipe, which cannot be read again. Raises OSError, and `NotRead` when
        this process is short of files or memory."""
        self[file] = None
        try:
            content, regular = _read(file, MOST, patience)
        except (OSError, MemoryError) as error:
            if (kind := shortage_of(error)) is not None:
                raise NotRead(str(file), kind) from error
            raise
        if regular:
            self[file] = hashlib.blake2b(content).digest()
        else:
            del self[file]
        return content


def look(files: Iterable[Path]) -> Digests:
    """The digests of what these files hold now; pipes are not waited for. Raises `NotRead`."""
    found = Sources()
    for file in files:
        try:
            found.read(file, patience=0.0)
        except (OSError, ValueError):
            continue
    return found


def read_file(file: Path, most: int = MOST, patience: float = PATIENCE) -> bytes:
    """The content of the file. A pipe (a process substitution, /dev/stdin) must deliver its content and its end within
    `patience` seconds. Raises OSError, also for more than `most` bytes and for a pipe that is too slow."""
    return _read(file, most, patience)[0]


def replace_file(file: Path, content: bytes) -> None:
    """Replace the file in one step, so that a reader, or a start after a crash, finds the old content or the new.
    Only its owner may read it. Makes its folder. Raises OSError. Blocks."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def read_kept(file: Path, kind: type[K], log: logging.Logger, otherwise: str, most: int = 64 * 1024) -> K | None:
    """What a gateway has kept in this file as JSON; None where there is none. One that cannot be read (or has more than
    `most` bytes: no gateway wrote it) counts as none, with a warning that ends with `otherwise`. Blocks."""
    try:
        return msgspec.json.decode(read_file(file, most, patience=0.0), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log.warning("%s cannot be read (%s): %s", file, error, otherwise)
        return None


def keep(file: Path, value: object, log: logging.Logger) -> None:
    """Keep this value as JSON. A write that fails is logged: the value counts until the next start. Blocks."""
    try:
        replace_file(file, msgspec.json.encode(value))
    except OSError as error:
        log.warning("%s cannot be written: %s", file, error)


def _read(file: Path, most: int, patience: float) -> tuple[bytes, bool]:
    """(the content, is it a regular file)."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        regular = stat.S_ISREG(mode)
        until = time.monotonic() + patience
        content = bytearray()
        while True:
            if not regular:
                _wait(descriptor, until - time.monotonic())
            try:
                piece = os.read(descriptor, min(most + 1 - len(content), 1024 * 1024))
            except BlockingIOError:
                continue
            if not piece:
                return bytes(content), regular
            content += piece
            if len(content) > most:
                raise OSError(errno.EFBIG, f"it is larger than {most // 1024:,} KiB")
    finally:
        os.close(descriptor)


def _wait(descriptor: int, seconds: float) -> None:
    """Until something comes through a pipe, or its writer closes it. Raises TimeoutError (an OSError)."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    if seconds <= 0 or not waiting.poll(seconds * 1000):
        raise TimeoutError(errno.ETIMEDOUT, "it is no regular file, and nothing came out of it in time")
