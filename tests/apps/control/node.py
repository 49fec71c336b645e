"""A node behind a fake `ssh`, with a systemd of files: units that load, serve, die and are found running."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.apps.control.runner import CommandLimits
from gateway.apps.fleet.preflight.node import MARK
from tests.apps.control.machine import Machine, gateway_of, machine
from tests.support import RunningGateway

NODES = "nodes: {spark1: {ssh: ops@spark1, address: 127.0.0.1}, spark2: {ssh: ops@spark2, address: 127.0.0.1}}\n"


class Node:
    """`folder`/units has a file per unit that runs, of its name: the lines that `systemctl show` has for it. A start
    makes it, a stop takes it away. Words of the journal are in `folder`/journal."""

    def __init__(self, folder: Path, there: Machine) -> None:
        self.folder = folder
        self.there = there
        (folder / "units").mkdir()
        (folder / "node").mkdir()
        (folder / "journal").write_text("")
        cases = "\n".join(self._case(name) for name in there.sims)
        self._put("ssh", _SSH.replace("CASES", cases).replace("FOLDER", str(folder)).replace("MARK", MARK))
        self._put("systemctl", _SYSTEMCTL.replace("FOLDER", str(folder)))
        self._put("journalctl", f"cat {folder}/journal")
        self._put("docker", f"cat {folder}/containers 2>/dev/null; true")

    def _case(self, name: str) -> str:
        unit = self.folder / "units" / f"spark-{name}"
        started = f"printf 'ActiveState=active\\nSubState=running\\n' >{unit}"
        return (
            f'  "sudo systemctl start --no-block spark-{name}")\n'
            f"    {started}; exec {self.there.command('start', name)} ;;\n"
            f'  "sudo systemctl stop spark-{name}") rm -f {unit}; exec {self.there.command("stop", name)} ;;'
        )

    def _put(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(stat.S_IRWXU)

    def unit(self, name: str, *lines: str) -> None:
        """The unit is so from now on; without lines it is inactive."""
        path = self.folder / "units" / f"spark-{name}"
        path.unlink(missing_ok=True)
        if lines:
            path.write_text("\n".join(lines) + "\n")

    def says(self, *lines: str) -> None:
        (self.folder / "journal").write_text("\n".join(lines) + "\n")

    @property
    def asked(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def parked(self) -> list[str]:
        """The units that do not load at its next boot."""
        return (self.folder / "node/parked").read_text().splitlines()


_SSH = """\
while [ "$1" != -- ]; do shift; done
target=$2
shift 2
case "$*" in python3*) ;; *) echo "$*" >>FOLDER/asked ;; esac
if [ -e "FOLDER/cut" ]; then
  case "$*" in *"$(cat FOLDER/cut)"*)
    rm FOLDER/cut; echo "Timeout, server $target not responding." >&2; exit 255 ;;
  esac
fi
case "$*" in
  python3*) cat >/dev/null; if [ -e FOLDER/preflight ]; then cat FOLDER/preflight; else echo 'MARK{"checks": []}'; fi ;;
CASES
  *) echo "$*" | sed 's#/var/lib/spark#FOLDER/node#g' | sh ;;
esac"""
_SYSTEMCTL = """\
while [ "$1" != -- ]; do shift; done
shift
for unit; do
  echo "Id=$unit.service"
  cat "FOLDER/units/$unit" 2>/dev/null || printf 'ActiveState=inactive\\nSubState=dead\\n'
  echo
done"""


@asynccontextmanager
async def fleet(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *running: str, away: str = "", modes: str, nodes: dict[str, str]
) -> AsyncIterator[tuple[RunningGateway, Machine, Node]]:
    """Backends that are units of spark1, or of the node in `nodes`."""
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    async with machine(folder, *running, away=away) as there:
        node = Node(folder, there)
        for name in running:
            node.unit(name, "ActiveState=active", "SubState=running")
        there.lines = {f"{verb} {name}": "" for verb in ("start", "stop") for name in there.sims}
        keys = {}
        for name, sim in there.sims.items():
            port = sim.url.rpartition(":")[2]
            launch = f"launch: {{command: vllm serve {name} --port {port}, resident: 1GiB}}"
            keys[name] = f", node: {nodes.get(name, 'spark1')}, {launch}"
        async with gateway_of(there, modes, f"{NODES}server: {{data: {folder}/data}}\n", None, **keys) as gateway:
            gateway.gateway.apps.control.operations.limits = CommandLimits(watch=0.1)
            yield gateway, there, node
