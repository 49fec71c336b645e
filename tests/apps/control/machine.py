"""A machine of simulated engines that real commands start and stop: each command is a process, which asks the machine
over a socket and ends with the exit code that it is told."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from simulator import SimVllm
from tests.support import PATIENCE, RunningGateway, running_gateway

FAST = "defaults: {health: {every: 20ms, recover_after: 1, start_grace: 20s}}\n"
_ASK = """\
import socket, sys
with socket.socket(socket.AF_UNIX) as asking:
    asking.connect(sys.argv[1])
    asking.sendall(" ".join(sys.argv[2:]).encode() + b"\\n")
    code, _, said = asking.makefile().read().partition(" ")
print(said)
sys.exit(int(code))
"""


@dataclass
class Machine:
    """`orders`: what the commands asked for, as `stop a`. `faults`: order -> hang, refuse (exit code 1), or ignore
    (exit code 0, and nothing happens). `lines`: order -> another line for it in routes.yaml, "" = none."""

    folder: Path
    sims: dict[str, SimVllm] = field(default_factory=dict)
    orders: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _going_on: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def socket(self) -> Path:
        return self.folder / "machine"

    def command(self, action: str, name: str) -> str:
        """A line for `start` or `stop` of routes.yaml."""
        return f"{sys.executable} -I -S {self.folder / 'ask.py'} {self.socket} {action} {name}"

    def backend(self, name: str, more: str = "") -> str:
        """Its section in routes.yaml, of one line."""
        lines = {action: self.lines.get(f"{action} {name}", self.command(action, name)) for action in ("start", "stop")}
        commands = "".join(f", {action}: '{line}'" for action, line in lines.items() if line)
        return f"  {name}: {{url: '{self.sims[name].url}'{commands}{more}}}\n"

    async def until_asked(self, order: str) -> None:
        """Until a command has asked for this."""
        async with asyncio.timeout(PATIENCE):
            while order not in self.orders:
                self._asked.clear()
                await self._asked.wait()

    def go_on(self, faults: dict[str, str] | None = None) -> None:
        """Orders that hang are obeyed now, apart from these."""
        self.faults = faults or {}
        self._going_on.set()

    async def obey(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One command."""
        order = (await reader.readline()).decode().strip()
        self.orders.append(order)
        self._asked.set()
        fault = self.faults.get(order)
        if fault == "hang":
            going = asyncio.create_task(self._going_on.wait())
            gone = asyncio.create_task(reader.read())
            await asyncio.wait({going, gone}, return_when=asyncio.FIRST_COMPLETED)
            going.cancel()
            gone.cancel()
            fault = self.faults.get(order)
        action, _, name = order.partition(" ")
        if fault not in ("refuse", "ignore"):
            await (self.sims[name].revive() if action == "start" else self.sims[name].terminate(0.0))
        writer.write(b"1 it cannot be" if fault == "refuse" else f"0 {order}: done".encode())
        writer.close()


@asynccontextmanager
async def machine(folder: Path, *running: str, away: str = "") -> AsyncIterator[Machine]:
    """Engines with these names that run, and with those of `away` (separated by spaces) that do not."""
    found = Machine(folder)
    (folder / "ask.py").write_text(_ASK)
    async with AsyncExitStack() as stack:
        for name in (*running, *away.split()):
            sim = found.sims[name] = SimVllm(name, served=[name])
            await sim.start(running=name in running)
            stack.push_async_callback(sim.stop)
        server = await asyncio.start_unix_server(found.obey, found.socket)
        stack.callback(server.close)
        yield found


@asynccontextmanager
async def gateway_of(
    there: Machine, modes: str, more: str = "", file: Path | None = None, **further: str
) -> AsyncIterator[RunningGateway]:
    """A gateway in front of the machine. `further`: backend -> more keys of it."""
    backends = "".join(there.backend(name, further.get(name, "")) for name in there.sims)
    routes = f"{FAST}{more}backends:\n{backends}modes: {modes}\n"
    async with running_gateway(routes, file=file) as gateway:
        await gateway.until_ready(*(name for name, sim in there.sims.items() if sim.alive))
        yield gateway


async def begin(gateway: RunningGateway, mode: str, **more: object) -> dict[str, Any]:
    """Begin a switch; the answer, which is no refusal."""
    answer = await gateway.client.post("/admin/mode", json={"mode": mode, **more})
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ended(gateway: RunningGateway, operation: dict[str, Any]) -> dict[str, Any]:
    """The operation at its end."""
    known = gateway.gateway.apps.control.operations.get(operation["id"])
    await gateway.until(lambda: known.state != "running" and known.ended is not None)
    found: dict[str, Any] = (await gateway.client.get(f"/admin/operations/{operation['id']}")).json()
    return found


async def switched(gateway: RunningGateway, mode: str, **more: object) -> dict[str, Any]:
    """Begin a switch, and wait for its end."""
    return await ended(gateway, await begin(gateway, mode, **more))


def steps(operation: dict[str, Any], only: Callable[[dict[str, Any]], bool] = lambda _: True) -> list[str]:
    """`stop a: done` for each step."""
    return [f"{step['what']} {step['backend']}: {step['state']}" for step in operation["steps"] if only(step)]


def error(answer: httpx.Response) -> tuple[int, str, str]:
    """(status, code, message)."""
    found = answer.json()["error"]
    return answer.status_code, found["code"], found["message"]
