"""A real redis-server for tests: on a port of its own, without a disk; killed, frozen and started again at will."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

import pytest
import redis

from bench.ports import free_ports
from tests.waiting import wait_until

PATIENCE = 20.0  # seconds until a start is called hung
INSTALL = 120.0


@cache
def program() -> str | None:
    """Where redis-server is; where it is not, and this machine lets us, it is installed."""
    found = shutil.which("redis-server")
    if found is None and os.getuid() == 0 and shutil.which("apt-get") is not None:
        with suppress(subprocess.SubprocessError):
            for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "redis-server"]):
                environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
                subprocess.run(["apt-get", *command], env=environ, capture_output=True, timeout=INSTALL, check=True)
        found = shutil.which("redis-server")
    return found


class RedisServer:
    """`url` stays the same over restarts. `options`: further ones of redis-server."""

    def __init__(self, executable: str, options: tuple[str, ...] = ()) -> None:
        self._executable = executable
        self._options = options
        self.port = free_ports(1)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        options += self._options
        self.process = subprocess.Popen([self._executable, *options], stdout=subprocess.DEVNULL, cwd="/")
        wait_until(self._answers, PATIENCE, lambda: "redis-server does not answer")

    def _answers(self) -> bool:
        with suppress(redis.ConnectionError), self.client() as client:
            return bool(client.ping())
        return False

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, protocol=2)

    def kill(self) -> None:
        """As by a power cut: it forgets everything."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.process = None

    def freeze(self) -> None:
        """It takes connections and bytes, and says nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def running_redis(*options: str) -> Iterator[RedisServer]:
    executable = program()
    if executable is None:
        pytest.skip("redis-server is not here, and could not be installed (Debian: apt-get install redis-server)")
    server = RedisServer(executable, options)
    server.start()
    try:
        yield server
    finally:
        if server.process is not None:
            server.kill()
