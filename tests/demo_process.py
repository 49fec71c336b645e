"""`gateway demo` as a real process, for tests that use it as a user would."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from bench.ports import free_ports
from tests.waiting import until_said, wait_until

ROOT = Path(__file__).parents[1]
GATEWAY = Path(sysconfig.get_path("scripts")) / "gateway"
PATIENCE = 40.0  # seconds until a wait is called hung; the machine may be busy
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
_STEERED = re.compile(r"steered at (\S+)/_sim")


@dataclass
class Demo:
    """`url` is the gateway's root, `control` the simulator's, `log` all that it wrote."""

    url: str
    control: str
    process: subprocess.Popen[bytes]
    log: Path

    def steer(self, backend: str, action: str) -> None:
        """POST /_sim/{backend}/{action} on the control port."""
        httpx.post(f"{self.control}/_sim/{backend}/{action}", timeout=PATIENCE, trust_env=False).raise_for_status()


@contextmanager
def running_demo(
    folder: Path,
    *options: str,
    cwd: Path = ROOT,
    program: Sequence[str] = (str(GATEWAY),),
    environ: Mapping[str, str] | None = None,
) -> Iterator[Demo]:
    """Started in `cwd`, ready, and at the end stopped if it still runs. `folder` takes its log."""
    port = free_ports(2)
    log = folder / "demo.log"
    with log.open("wb") as out:
        command = [*program, "demo", "--port", str(port), *options]
        process = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=out, env=environ)
    try:
        url = f"http://127.0.0.1:{port}"
        until_ready(url, process, log)
        steered = _STEERED.search(log.read_text())
        assert steered is not None, log.read_text()
        yield Demo(url, steered[1], process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when /ready says 200 and nothing is left to be looked at for the first time."""

    def is_ready() -> bool:
        assert process.poll() is None, f"the demo ended with {process.returncode}:\n{log.read_text()}"
        with suppress(httpx.TransportError):
            return httpx.get(f"{url}/ready", timeout=1, trust_env=False).status_code == 200
        return False

    wait_until(is_ready, PATIENCE, log.read_text)


async def gateway_ready(client: httpx.AsyncClient) -> None:
    """Return when the /ready of another process says 200."""

    async def is_ready() -> bool:
        with suppress(httpx.TransportError):
            return (await client.get("/ready")).status_code == 200
        return False

    await until_said(is_ready, PATIENCE)
