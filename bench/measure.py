"""CPU time, memory and ownership of processes, read from Linux' `/proc`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def process_tree(roots: Iterable[int]) -> list[int]:
    """The processes and all their descendants that are alive."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                # "pid (name) state ppid": the name may hold spaces and parentheses, hence the last one.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: dict[int, None] = {}
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found and (PROC / str(pid)).exists():
            found[pid] = None
            todo += children.get(pid, ())
    return list(found)


def cpu_ns(pids: Iterable[int]) -> int:
    """Nanoseconds that the threads of these processes have run. A thread that ended since is not counted."""
    total = 0
    for pid in pids:
        for task in (PROC / str(pid) / "task").glob("*/schedstat"):
            try:
                total += int(task.read_text().split()[0])
            except OSError:
                continue
    return total


def rss_bytes(pids: Iterable[int]) -> int:
    """Resident memory, summed; pages that processes share count in each."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for pid in pids:
        try:
            total += int((PROC / str(pid) / "statm").read_text().split()[1]) * page
        except OSError:
            continue
    return total


def listeners(port: int) -> list[int]:
    """The processes that listen on a local TCP port and may be looked into."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit() and _holds(entry, inodes)]


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(os.readlink(descriptor) in inodes for descriptor in (process / "fd").iterdir())
    except OSError:
        return False
