"""Runs `gateway demo` during a load test, on free ports."""

from __future__ import annotations

import json
import re
import subprocess
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.k6 import LoadTestError

START_SECONDS = 60.0
STOP_SECONDS = 10.0
_LISTENS = re.compile(r"^gateway on (http://\S+)/v1", re.M)
_STEERED = re.compile(r"steered at (\S+)/_sim")
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy of the environment


@dataclass(frozen=True)
class Demo:
    """`url` is the gateway's root, `control` the simulator's."""

    url: str
    control: str

    def backend(self, name: str) -> str:
        """The URL of a simulated backend."""
        return str(_get(f"{self.control}/_sim")[name]["url"])


def _get(url: str) -> Any:
    with _DIRECT.open(url, timeout=5) as reply:
        return json.loads(reply.read())


@contextmanager
def running_demo(folder: Path, speedup: float, routes: Path) -> Iterator[Demo]:
    """The demo, ready; stopped at the end. Its log is folder/demo.log. Raises LoadTestError if it does not start."""
    script, log = Path(sysconfig.get_path("scripts")) / "gateway", folder / "demo.log"
    with log.open("wb") as out:
        options = ["--port", "0", "--speedup", str(speedup), "--config", str(routes)]
        process = subprocess.Popen([str(script), "demo", *options], stdout=out, stderr=out, start_new_session=True)
    try:
        yield _ready(process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(process: subprocess.Popen[bytes], log: Path) -> Demo:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise LoadTestError(f"gateway demo ended with {process.returncode}:\n{log.read_text()}")
        text = log.read_text()
        url, control = _LISTENS.search(text), _STEERED.search(text)
        if url and control:
            try:
                _get(f"{url[1]}/ready")
            except (OSError, ValueError):  # not listening yet, or 503 until every backend was probed once
                pass
            else:
                return Demo(url[1], control[1])
        time.sleep(0.1)
    raise LoadTestError(f"gateway demo is not ready after {START_SECONDS:.0f} s:\n{log.read_text()}")
