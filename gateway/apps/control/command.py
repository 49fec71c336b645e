"""Runs one command: an argument vector, for a bounded time, of whose output the last part is kept."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import NamedTuple

from gateway.printable import visible
from gateway.shortage import WORDS, shortage_of

OUTPUT_MOST = 4096  # bytes of the output that are kept, the last ones
_READ = 65536
_READS_MOST = 64  # at a time: a command that never stops writing must not keep the loop
_KILLED_WITHIN = 2.0  # seconds; a process that hangs in a driver cannot be killed


class CommandOutcome(NamedTuple):
    """How a command ended. `problem`: why it failed, "" = exit code 0. `output`: what it wrote, shown safely."""

    problem: str
    output: str


async def run(argv: tuple[str, ...], seconds: float, most: int = OUTPUT_MOST) -> CommandOutcome:
    """Run a command in a session of its own, without input. It is killed with its children after `seconds`, and when
    the caller is cancelled. What it leaves behind in the background is not waited for. `most`: bytes of its output
    that are kept."""
    try:
        reading, writing = os.pipe()
    except OSError as error:
        return _not_run(argv, error)
    os.set_blocking(reading, False)
    tail = _Tail(reading, most)
    loop = asyncio.get_running_loop()
    loop.add_reader(reading, tail.read)
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=writing, stderr=writing, start_new_session=True
            )
        except (OSError, ValueError) as error:
            return _not_run(argv, error)
        finally:
            os.close(writing)
        problem = await _outcome(process, seconds)
        tail.read()
        return CommandOutcome(problem, tail.text())
    finally:
        loop.remove_reader(reading)
        os.close(reading)


def _not_run(argv: tuple[str, ...], error: OSError | ValueError) -> CommandOutcome:
    kind = shortage_of(error)
    if kind is not None:
        return CommandOutcome(f"{argv[0]} cannot be run: the gateway itself is short of {WORDS[kind]}", "")
    return CommandOutcome(f"{argv[0]} cannot be run: {getattr(error, 'strerror', None) or error}", "")


async def _outcome(process: asyncio.subprocess.Process, seconds: float) -> str:
    """Why the command failed; "" = it did not."""
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
    except TimeoutError:
        return f"did not end within {seconds:g} s"
    finally:
        if process.returncode is None:
            await kill(process)
    return "" if code == 0 else f"exit code {code}" if code > 0 else f"ended by signal {-code}"


async def kill(process: asyncio.subprocess.Process) -> None:
    """Kill a process that leads its session, with its children."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_KILLED_WITHIN):
            await process.wait()


class _Tail:
    """The last bytes of a pipe."""

    def __init__(self, descriptor: int, most: int) -> None:
        self._descriptor = descriptor
        self._most = most
        self._kept = b""

    def read(self) -> None:
        for _ in range(_READS_MOST):
            try:
                chunk = os.read(self._descriptor, _READ)
            except (BlockingIOError, InterruptedError):
                return
            if not chunk:
                asyncio.get_running_loop().remove_reader(self._descriptor)
                return
            self._kept = (self._kept + chunk)[-self._most :]

    def text(self) -> str:
        lines = self._kept.decode(errors="replace").strip().splitlines()
        return "\n".join(visible(line) for line in lines)
