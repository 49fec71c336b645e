"""What the tests of real machines need: whether they can run here, and commands on the scene's machines."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MACHINES = Path(os.environ.get("MACHINES", "/var/tmp/spark-gateway-machines"))
DOCKER = {**os.environ, "DOCKER_HOST": f"unix://{MACHINES}/docker.sock", "MACHINES": str(MACHINES)}
IMAGE = "spark-gateway:machines"
GATEWAY = "http://10.77.0.2:4000"


def missing(*programs: str) -> str | None:
    """Why the scene cannot be built here; None where it can."""
    if os.geteuid() != 0:
        return "real machines need root"
    absent = [name for name in programs if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)} (tests/machines/run.sh installs them on Debian)" if absent else None


def script(name: str, *words: str, within: float = 900.0) -> str | None:
    """Run a script of this folder; why it failed, None when it has not."""
    done = run([str(HERE / name), *words], within)
    return None if done.returncode == 0 else f"{name}: {(done.stderr or done.stdout).strip()[-600:]}"


def run(
    command: Sequence[str], within: float = 120.0, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    env = {**DOCKER, **(environ or {})}
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=within, errors="replace")


def checked(command: Sequence[str], within: float = 120.0, environ: Mapping[str, str] | None = None) -> str:
    """Its output. AssertionError where it fails."""
    done = run(command, within, environ)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


# -- machines ---------------------------------------------------------------------------------------------------------


def typed(machine: str, command: str, user: str = "root") -> list[str]:
    """What runs a command line on a machine; `user` other than root: in a login shell of that user."""
    shell = f"cd / && {command}" if user == "root" else f"exec su - {user} -c {shlex.quote(command)}"
    lines = f". {shlex.quote(str(HERE / 'lib.sh'))}; inside {machine} bash -c {shlex.quote(shell)}"
    return ["bash", "-c", lines]


def on(machine: str, command: str, within: float = 120.0, user: str = "root") -> subprocess.CompletedProcess[str]:
    return run(typed(machine, command, user), within)


def said(machine: str, command: str, within: float = 120.0, user: str = "root", codes: Sequence[int] = (0,)) -> str:
    """What it prints, both streams. AssertionError for another exit code."""
    done = on(machine, f"{{ {command}; }} 2>&1", within, user)
    assert done.returncode in codes, f"{machine}: {command}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr}"
    return done.stdout


def power(order: str, machine: str) -> None:
    """`boot`, `off` (a power cut) or `halt` a machine."""
    lines = f". {shlex.quote(str(HERE / 'lib.sh'))}; {order} {machine}"
    done = run(["bash", "-c", lines], 240)
    assert done.returncode == 0, done.stderr


def until(condition: Callable[[], object], within: float, what: str) -> float:
    """Seconds until it came true. AssertionError when it does not."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() < begun + within, f"not within {within:.0f} s: {what}"
        time.sleep(0.5)
    return time.monotonic() - begun


# -- the gateway ------------------------------------------------------------------------------------------------------


def http(url: str, body: Mapping[str, Any] | None = None, within: float = 60.0) -> tuple[int, dict[str, str], str]:
    """Status, headers in small letters, text; status 0: nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    asked = Request(url, data=data, headers={"content-type": "application/json"})
    try:
        with urlopen(asked, timeout=within) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read().decode()
    except HTTPError as error:
        return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read().decode()
    except (URLError, OSError) as error:
        return 0, {}, str(error)


def chat(alias: str, url: str = GATEWAY, within: float = 60.0, words: str = "What is 12*17?") -> tuple[int, str]:
    """Status, and the backend that answered."""
    status, headers, _ = http(
        f"{url}/v1/chat/completions", {"model": alias, "messages": [{"role": "user", "content": words}]}, within
    )
    return status, headers.get("x-gateway-backend", "")


def states() -> dict[str, str]:
    """The state of each backend."""
    status, _, text = http(f"{GATEWAY}/status")
    return {name: row["state"] for name, row in json.loads(text)["backends"].items()} if status == 200 else {}


def operation() -> dict[str, Any]:
    """The operation under way, or the last one."""
    found: dict[str, Any] = json.loads(said("gw", "curl -s http://127.0.0.1:4000/admin/operations"))["operation"]
    return found
