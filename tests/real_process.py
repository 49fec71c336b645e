"""A real server in a process of its own, for the lanes that need one: started, found answering, ended in any case."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.ports import free_ports
from tests.waiting import wait_until

STOP = 20.0


@dataclass
class RealProcess:
    """One server on a port of its own, the same after every restart.

    `notes` is the folder where its process group and its log are kept, so that the lane can end it whatever becomes of
    pytest (tests/lane.sh).
    """

    name: str
    notes: Path
    start_up: float = field(default=60.0, kw_only=True)  # seconds until it answers, on two idle cores
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
        wait_until(lambda: self.answers() or process.poll() is not None, self.start_up, self.tail)
        assert process.poll() is None, f"{self.name} ended at start-up:\n{self.tail()}"

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
