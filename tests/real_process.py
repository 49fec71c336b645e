"""A real server in a process of its own, for the lanes that need one: started, found answering, ended in any case."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.ports import free_ports

STOP = 20.0
STANDS = 120.0  # seconds without any CPU, while other programs have the machine, until a start is given up


@dataclass
class RealProcess:
    """One server on a port of its own, the same after every restart.

    `notes` is the folder where its process group and its log are kept, so that the lane can end it whatever becomes of
    pytest (tests/lane.sh).
    """

    name: str
    notes: Path
    start_up: float = field(default=60.0, kw_only=True)  # seconds of CPU until it answers, at most
    port: int = field(default_factory=lambda: free_ports(1), kw_only=True)
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    starts: int = field(default=0, init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {}

    @property
    def log(self) -> Path:
        return self.notes / f"{self.name}.log"

    def command(self) -> Sequence[str | Path]:
        raise NotImplementedError

    def environ(self) -> Mapping[str, str]:
        """What is added to the environment."""
        return {}

    def up(self) -> None:
        """Started and answering, or AssertionError with the end of its log."""
        if self.process is not None and self.process.poll() is None and self.answers():
            return
        self.stop()
        self.starts += 1
        with self.log.open("ab") as log:
            # Below the tests and the gateway, and in their session, where that counts: its processes may spin, and on
            # two cores they can keep others from running for seconds.
            self.process = subprocess.Popen(
                ["nice", "-n", "10", *self.command()],
                env={**os.environ, **self.environ()},
                stdout=log,
                stderr=log,
                process_group=0,
            )
        (self.notes / f"{self.name}.{self.process.pid}.pid").write_text(str(self.process.pid))
        process = self.process
        self._wait(process)
        assert process.poll() is None, f"{self.name} ended at start-up:\n{self.tail()}"

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Until it answers or ends. What it may take is counted in its own time: beside other programs that is many
        times the seconds of an idle machine."""
        used, since = 0.0, time.monotonic()
        while process.poll() is None and not self.answers():
            if (now := cpu_seconds(process.pid)) != used:
                used, since = now, time.monotonic()
            told = f"no answer after {used:.0f} s of CPU. {self.tail()}"
            assert used < self.start_up, told
            assert time.monotonic() - since < STANDS, told
            time.sleep(0.1)

    def answers(self) -> bool:
        try:
            return httpx.get(self.url + "/health", timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self, grace: float = STOP) -> None:
        """End everything of it: TERM, and after `grace` seconds at most KILL to the whole group."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP)
        (self.notes / f"{self.name}.{self.process.pid}.pid").unlink(missing_ok=True)
        self.process = None

    def send(self, number: signal.Signals) -> None:
        """To the process that holds the port, e.g. SIGSTOP and SIGCONT."""
        assert self.process is not None
        self.process.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM, as `docker stop` sends it."""
        self.send(signal.SIGTERM)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


def cpu_seconds(group: int) -> float:
    """What all processes of this group have computed."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12]) if int(fields[2]) == group else 0
    return ticks / os.sysconf("SC_CLK_TCK")
