"""Processes: children that are pinned to a core and end with this process whatever happens; CPU time, memory and ports
of any process, read from Linux' `/proc`."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1
PROC = Path("/proc")
ROOT = Path(__file__).resolve().parent.parent  # so that children find `bench` and `gateway` from any folder
STOP_SECONDS = 5.0


class BenchError(Exception):
    """Something that the person at the keyboard can do something about."""


def cores() -> tuple[int, int]:
    """The core for the proxy and the one for load and upstream; the same when there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[1 if len(usable) > 1 else 0]


def raise_file_limit() -> None:
    """500 streams need two descriptors each in a proxy; children inherit the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def spawn(
    command: Sequence[str],
    core: int,
    *,
    cwd: Path | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process on one core. It gets SIGTERM when this process dies, even by SIGKILL."""
    path = (str(ROOT), os.environ.get("PYTHONPATH"))
    prctl = ctypes.CDLL(None).prctl
    process = None
    # An interrupt between fork and our knowing the child would leave it alone, so it waits until we do.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.sched_setaffinity(0, {core})
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=prepare,  # safe: this process has no threads
            start_new_session=True,  # ctrl-C reaches us alone, and we end the children in order
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if process is not None:
            stop(process)
        raise
    return process


def stop(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    """End a process and its group: politely, then not."""
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)  # workers that outlived their master
    except (ProcessLookupError, PermissionError):
        return


# -- what /proc says of a process -------------------------------------------------------------------------------------


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
