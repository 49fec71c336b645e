"""The routers written in Rust beside which the gateway is measured: wheels that go into a virtual environment of their
own.

`ROUTERS=DIR` names an environment that holds them already and is left as it is; otherwise `.venv-routers` is made, and
what is missing there is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.processes import ROOT

INSTALL_SECONDS = 600.0


@dataclass(frozen=True)
class Router:
    """A wheel, the version that is measured, and the words between its command and its options."""

    name: str
    version: str
    subcommand: Sequence[str] = ()

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


YARDSTICK = Router("vllm-router", "0.1.17")
ROUTERS = (YARDSTICK, Router("sglang-router", "0.3.2", ("launch",)))
BY_NAME = {router.name: router for router in ROUTERS}


class NotInstallable(Exception):
    """Why a router cannot be measured here."""


def executable(router: Router, environ: Mapping[str, str] = os.environ) -> Path:
    """The router's command, installed first where that is ours to do. Raises NotInstallable."""
    if "ROUTERS" in environ:
        found = Path(environ["ROUTERS"]).absolute() / "bin" / router.name
        if not found.exists():
            raise NotInstallable(f"ROUTERS holds no {found}")
        return found
    folder = ROOT / ".venv-routers"
    found = folder / "bin" / router.name
    if not _installed(folder, router):
        _install(folder, router)
    return found


def _installed(folder: Path, router: Router) -> bool:
    """By what an installation of this very version leaves behind."""
    mark = f"{router.name.replace('-', '_')}-{router.version}.dist-info"
    return any(folder.glob(f"lib/python3*/site-packages/{mark}"))


def _install(folder: Path, router: Router) -> None:
    print(f"bench: installing {router.requirement} into {folder}", file=sys.stderr)
    if not (folder / "bin" / "pip").exists():
        _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    _run([*pip, router.requirement])


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstallable(str(error)) from error
    if done.returncode != 0:
        raise NotInstallable((done.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1])


def command(binary: Path, router: Router, port: int, metrics_port: int, upstreams: Sequence[int]) -> list[str]:
    """The command that serves both upstreams in turns, the cheapest policy; all else is the router's default."""
    return [
        *(str(binary), *router.subcommand, "--host", "127.0.0.1", "--port", str(port)),
        *("--worker-urls", *(f"http://127.0.0.1:{upstream}" for upstream in upstreams), "--policy", "round_robin"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
    ]
