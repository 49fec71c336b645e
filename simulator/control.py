"""`/_sim`: shows and controls simulated backends over HTTP, on the backend itself or on one control port for all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from simulator.faults import KINDS
from simulator.server import Exchange


class Controlled(Protocol):
    """A simulated server that `/_sim` can control (`Sim` is one)."""

    def state(self) -> dict[str, Any]: ...

    def fault(self, kind: Any, **options: Any) -> Any: ...

    def clear(self) -> None: ...

    async def kill(self) -> None: ...

    async def revive(self) -> Any: ...

    async def terminate(self, *, how: Any = "abort") -> Any: ...


class Control:
    """The app of a control port: `/_sim` lists all, `/_sim/{name}/...` is one backend's."""

    def __init__(self, sims: Mapping[str, Controlled]) -> None:
        self.sims = sims

    async def handle(self, exchange: Exchange) -> None:
        path = exchange.path.removeprefix("/_sim")
        if path in ("", "/"):
            await exchange.send_json(200, {name: sim.state() for name, sim in self.sims.items()})
            return
        name, _, rest = path.strip("/").partition("/")
        await control(exchange, self.sims, "/" + rest if rest else "", self.sims.get(name))


async def control(exchange: Exchange, sims: Mapping[str, Controlled], path: str, sim: Controlled | None) -> None:
    """GET "" = state; POST /fault, DELETE /fault; POST /kill, /revive (also /start), /terminate (also /stop; how)."""
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
        await exchange.send_json(200, sim.state())
    elif action == ("POST", "/kill"):
        exchange.on_lost.clear()
        await sim.kill()
        await _send_state(exchange, sim)
    elif exchange.method == "POST" and path in ("/stop", "/terminate"):
        await _terminate(exchange, sim)
    else:
        await exchange.send_json(
            404, {"error": "GET /_sim, POST or DELETE /_sim/fault, POST /_sim/kill|revive|terminate"}
        )


async def _terminate(exchange: Exchange, sim: Controlled) -> None:
    exchange.on_lost.clear()
    try:
        options = json.loads(await exchange.read_body() or b"{}")
        if set(options) - {"how"}:
            raise ValueError(f"unknown {', '.join(sorted(set(options) - {'how'}))}")
        await sim.terminate(how=options.get("how", "abort"))
    except (ValueError, TypeError, AttributeError) as problem:
        await exchange.send_json(400, {"error": f'not a way to end ({problem}); send nothing or {{"how": ...}}'})
        return
    await _send_state(exchange, sim)


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
