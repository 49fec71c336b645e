"""Runs one command: an argument vector, for a bounded time, of whose output the last part is kept."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from gateway.printable import visible
from gateway.shortage import WORDS, shortage_of

OUTPUT_MOST = 4096  # bytes of the output that are kept, the last ones
_READ = 65536
_READS_MOST = 64  # at a time: a command that never stops writing must not keep the loop
_KILLED_WITHIN = 2.0  # seconds; a process that hangs in a driver cannot be killed
_CHANGED = "REMOTE HOST IDENTIFICATION HAS CHANGED"
_SENT = re.compile(r"^(SHA256:[A-Za-z0-9+/]+)\.?\s*$", re.M)
_OFFENDING = re.compile(r"^Offending (\S+) key in (\S+?):(\d+)\s*$", re.M)
_FILE_MOST = 1024 * 1024  # bytes of a known_hosts that are read
# A connection that was there and went, or never came about: the command may have run. What a key or a name is about is
# no matter of trying again.
_FINAL = ("host key", "permission denied", "could not resolve", "bad configuration", "no such identity", "usage: ssh")


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


# -- ssh --------------------------------------------------------------------------------------------------------------
# What an ssh that failed means, and the command that mends it. OpenSSH never translates its words.


class SshProblem(NamedTuple):
    """`why`: in a sentence. `mend`: a command."""

    why: str
    mend: str


def problem_of(target: str, said: str) -> SshProblem | None:
    """What the output of a failed ssh to `target` says of the connection; None: it says nothing of one."""
    host = target.rpartition("@")[2]
    stated = said.lower()
    if _CHANGED in said:
        return _changed(host, said)
    if "host key verification failed" in stated or "host key is known" in stated:
        mend = f"ssh {target} true   # and compare the host's key with the one on its console before you accept it"
        return SshProblem(f"the host key of {host} is not known here: Host key verification failed.", mend)
    return None


def was_cut(problem: str, said: str) -> bool:
    """Whether the connection failed, and another try may do. `problem`: how the command ended. 255: ssh itself."""
    if problem != "exit code 255" and not problem.startswith("did not end"):
        return False
    return not any(word in said.lower() for word in _FINAL)


def _changed(host: str, said: str) -> SshProblem:
    sent, place = _SENT.search(said), _OFFENDING.search(said)
    why = f"the host key of {host} has changed: it sends {sent[1] if sent else 'another key'}"
    if place is None:
        return SshProblem(why, f"ssh-keygen -R {host}")
    kind, file, line = place[1], visible(place[2]), int(place[3])
    why += f" ({kind}), and {_known(Path(place[2]), line) or 'another one'} is known (line {line} of {file})"
    why += "; was the machine installed anew? If not, somebody else answers in its place"
    compare = f"# when `ssh-keygen -lf /etc/ssh/ssh_host_{kind.lower()}_key.pub` on {host}'s console says the same"
    if file.startswith("/run/credentials/"):
        install = "sudo install -m 0600 ./fleet/_gateway/known_hosts /etc/spark-gateway/ssh/known_hosts"
        return SshProblem(why, f"./fleet/_gateway/host-keys.sh && {install}   {compare}; then restart the gateway")
    return SshProblem(why, f"ssh-keygen -R {host} -f {file} && ssh-keyscan {host} >>{file}   {compare}")


def _known(file: Path, line: int) -> str | None:
    """The fingerprint of the key in this line of a known_hosts; None where it cannot be read."""
    try:
        with file.open("rb") as opened:
            words = opened.read(_FILE_MOST).splitlines()[line - 1].split()
        key = next(word for word in words if word.startswith(b"AAAA"))
        return f"SHA256:{b64encode(sha256(b64decode(key)).digest()).decode().rstrip('=')}"
    except (OSError, IndexError, StopIteration, ValueError):
        return None
