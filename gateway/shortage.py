"""Recognises errors that mean that this process itself has run out of files, memory, ports, threads or disk. Such an
error is no evidence about a backend, nor about a file that could not be read because of it."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
from pathlib import Path
from typing import Literal, get_args

Kind = Literal["files", "memory", "ports", "threads", "budget", "disk"]
KINDS: tuple[Kind, ...] = get_args(Kind)

WORDS: dict[Kind, str] = {
    "files": "open files (raise `ulimit -n`, or LimitNOFILE of its service)",
    "memory": "memory",
    "ports": "local ports for connections to backends",
    "threads": "threads (raise `ulimit -u`, or TasksMax of its service)",
    "budget": "room for bodies and answers (`server.memory`)",
    "disk": "room on the disk of `server.data`",
}

_BY_ERRNO: dict[int, Kind] = {
    errno.EMFILE: "files",
    errno.ENFILE: "files",
    errno.ENOMEM: "memory",
    errno.ENOBUFS: "memory",
    errno.EADDRNOTAVAIL: "ports",
    errno.ENOSPC: "disk",
    errno.EDQUOT: "disk",
}
FREE_LEAST = 256 * 1024 * 1024  # bytes of a disk that stay free for the ledger, the log and other programs
_CAUSES_MOST = 50  # exceptions that are examined, causes and members of groups included
_THREADS = "can't start new thread"


class OwnShortage(OSError):
    """The gateway itself is short of `kind`."""

    def __init__(self, kind: Kind, message: str = "") -> None:
        super().__init__(message or f"the gateway itself is short of {WORDS[kind]}")
        self.kind = kind


def check_disk(place: Path | int, size: int) -> None:
    """Raises OwnShortage where so many more bytes would leave the disk of this path or open file less than
    `FREE_LEAST`. For everything that clients may fill."""
    disk = os.statvfs(place)
    if disk.f_bavail * disk.f_frsize - size < FREE_LEAST:
        raise OwnShortage("disk")


def shortage_of(error: BaseException, *, address: tuple[str, int] | None = None) -> Kind | None:
    """The resource whose lack caused `error`, by the error itself or one of its causes; None = no such lack.

    `address` (host, port): the target of a connection, to distinguish used up ports from an address without a route.
    An unresolved name counts as a lack of files when no file can be opened: the resolver does not report why it
    failed.
    """
    pending, seen = [error], 0
    while pending and seen < _CAUSES_MOST:
        found, seen = pending.pop(), seen + 1
        kind = _kind_of(found)
        if kind == "ports" and address is not None and not _has_way(address):
            kind = None
        if kind is not None:
            return kind
        pending += [cause for cause in (found.__cause__, found.__context__) if cause is not None]
        if isinstance(found, BaseExceptionGroup):
            pending += found.exceptions
        inner = getattr(found, "os_error", None)  # aiohttp's
        if isinstance(inner, BaseException):
            pending.append(inner)
    return None


def _kind_of(error: BaseException) -> Kind | None:
    if isinstance(error, OwnShortage):
        return error.kind
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, sqlite3.Error):
        return "disk" if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL else None
    if isinstance(error, RuntimeError):
        return "threads" if _THREADS in str(error) else None
    if not isinstance(error, OSError):
        return None
    if isinstance(error, socket.gaierror):
        return _short_now()
    if error.errno in _BY_ERRNO:
        return _BY_ERRNO[error.errno]
    if error.errno is None:  # several addresses failed differently: asyncio joins their errors to one text
        text = str(error)
        return next((kind for number, kind in _BY_ERRNO.items() if f"[Errno {number}]" in text), None)
    return None


def _short_now() -> Kind | None:
    try:
        socket.socket().close()
    except OSError as error:
        return _BY_ERRNO.get(error.errno or 0)
    return None


def _has_way(address: tuple[str, int]) -> bool:
    """Has this machine a route to the address? (A UDP connect sends nothing, and UDP has ports of its own.)"""
    host, port = address
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((host, port))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    except (ValueError, OverflowError):
        return True
    return True
