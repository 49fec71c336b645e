"""`/_sim`: shows and controls simulated backends over HTTP, on the backend itself or on one control port for all."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

from simulator.faults import KINDS
from simulator.server import Exchange

_LONGEST_START = 3600.0  # seconds


class Controlled(Protocol):
    """A simulated server that `/_sim` can control (`Sim` is one)."""

    @property
    def alive(self) -> bool: ...

    @property
    def listening(self) -> bool: ...

    def changed(self) -> None: ...

    async def wait_for(self, condition: Callable[[], bool], timeout: float = 5.0) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def fault(self, kind: Any, **options: Any) -> Any: ...

    def clear(self) -> None: ...

    def sleep(self, level: int = 1) -> None: ...

    def wake_up(self) -> None: ...

    async def kill(self) -> None: ...

    async def revive(self) -> Any: ...

    async def terminate(self, *, how: Any = "abort") -> Any: ...


class Startable(Protocol):
    """A fleet whose backends are started and stopped by name (`SimFleet` is one)."""

    async def start_backend(self, name: str) -> None: ...

    async def stop_backend(self, name: str, *, how: Any = "abort") -> None: ...


class Control:
    """The app of a control port: `/_sim` lists all, `/_sim/{name}/...` is one backend's. With a `fleet`, start and stop
    are those of the fleet."""

    def __init__(self, sims: Mapping[str, Controlled], fleet: Startable | None = None) -> None:
        self.sims, self.fleet = sims, fleet

    async def handle(self, exchange: Exchange) -> None:
        path = exchange.path.removeprefix("/_sim")
        if path in ("", "/"):
            await exchange.send_json(200, {name: sim.state() for name, sim in self.sims.items()})
            return
        name, _, rest = path.strip("/").partition("/")
        sim = self.sims.get(name)
        if sim is not None and self.fleet is not None and (exchange.method, rest) == ("POST", "start"):
            await _start(exchange, sim, partial(self.fleet.start_backend, name))
        elif sim is not None and self.fleet is not None and (exchange.method, rest) == ("POST", "stop"):
            await _terminate(exchange, sim, partial(self.fleet.stop_backend, name))
        else:
            await control(exchange, self.sims, "/" + rest if rest else "", sim)


async def control(exchange: Exchange, sims: Mapping[str, Controlled], path: str, sim: Controlled | None) -> None:
    """GET "" = state; POST /fault, DELETE /fault; POST /kill, /revive (also /start), /terminate (also /stop; how),
    /sleep (level), /wake_up."""
    if sim is None:
        await exchange.send_json(404, {"error": f"no such backend; there are: {', '.join(sims)}"})
        return
    action = (exchange.method, path.rstrip("/"))
    if action == ("GET", ""):
        await exchange.send_json(200, sim.state())
    elif action == ("POST", "/fault"):
        await _add_fault(exchange, sim)
    elif action == ("DELETE", "/fault"):
        sim.clear()
        await exchange.send_json(200, sim.state())
    elif exchange.method == "POST" and path in ("/start", "/revive"):
        await sim.revive()
        await _send_started(exchange, sim)
    elif action == ("POST", "/kill"):
        exchange.on_lost.clear()
        await sim.kill()
        await _send_state(exchange, sim)
    elif exchange.method == "POST" and path in ("/sleep", "/wake_up"):
        await _set_sleep(exchange, sim, path)
    elif exchange.method == "POST" and path in ("/stop", "/terminate"):
        await _terminate(exchange, sim, sim.terminate)
    else:
        await exchange.send_json(
            404, {"error": "GET /_sim, POST or DELETE /_sim/fault, POST /_sim/kill|revive|terminate|sleep|wake_up"}
        )


async def _start(exchange: Exchange, sim: Controlled, begin: Callable[[], Awaitable[None]]) -> None:
    """Start it; with `{"wait": true}` the answer comes when it serves, or has ended."""
    try:
        wait = json.loads(await exchange.read_body() or b"{}").get("wait", False)
    except (ValueError, AttributeError):
        await exchange.send_json(400, {"error": 'send nothing or {"wait": true}'})
        return
    await begin()
    if wait:
        exchange.on_lost.append(sim.changed)
        await sim.wait_for(lambda: exchange.gone or sim.listening or not sim.alive, _LONGEST_START)
    await _send_started(exchange, sim)


async def _terminate(exchange: Exchange, sim: Controlled, end: Callable[..., Awaitable[None]]) -> None:
    exchange.on_lost.clear()
    try:
        options = json.loads(await exchange.read_body() or b"{}")
        if set(options) - {"how"}:
            raise ValueError(f"unknown {', '.join(sorted(set(options) - {'how'}))}")
        await end(how=options.get("how", "abort"))
    except (ValueError, TypeError, AttributeError) as problem:
        await exchange.send_json(400, {"error": f'not a way to end ({problem}); send nothing or {{"how": ...}}'})
        return
    await _send_state(exchange, sim)


async def _set_sleep(exchange: Exchange, sim: Controlled, path: str) -> None:
    try:
        if path == "/wake_up":
            sim.wake_up()
        else:
            sim.sleep(**json.loads(await exchange.read_body() or b"{}"))
    except (ValueError, TypeError) as problem:
        await exchange.send_json(400, {"error": f'it cannot sleep ({problem}); send nothing or {{"level": 1}}'})
        return
    await _send_state(exchange, sim)


async def _send_started(exchange: Exchange, sim: Controlled) -> None:
    """409 with what the process wrote, where its start was in vain."""
    await exchange.send_json(200 if sim.alive else 409, sim.state())


async def _send_state(exchange: Exchange, sim: Controlled) -> None:
    if not exchange.gone:  # the request came to the control port, not to the backend that has ended
        await exchange.send_json(200, sim.state())


async def _add_fault(exchange: Exchange, sim: Controlled) -> None:
    try:
        options = json.loads(await exchange.read_body())
        sim.fault(options.pop("kind"), **options)
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        known = ", ".join(KINDS)
        await exchange.send_json(400, {"error": f'not a fault ({problem}); send {{"kind": ...}} with one of: {known}'})
        return
    await _send_state(exchange, sim)
