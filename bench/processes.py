"""Child processes: pinned to a core, in a group of their own, and gone with us whatever happens."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1
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


def free_ports(count: int) -> list[int]:
    """Local TCP ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


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
