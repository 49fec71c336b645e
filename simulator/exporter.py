"""A simulated node: the account of its memory, and its Prometheus exporter. The exporter's names are those of
dgx-spark-prometheus, which listens on :9835 of a DGX Spark; the temperature follows the load of the engines."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.base import Sim
from simulator.memory import SYSTEM
from simulator.server import Exchange, SimServer

_IDLE, _WORKING = 44.0, 27.0  # degrees Celsius when idle, and the increase when every slot is busy


class SimExporter:
    """`sims`: the simulated servers on this node; `memory` in bytes. The exporter serves while `server` is open."""

    def __init__(self, sims: Sequence[Sim], memory: int) -> None:
        self.sims = list(dict.fromkeys(sims))
        self.memory = memory
        self.server = SimServer(self)

    @property
    def url(self) -> str:
        return self.server.url + "/metrics"

    def used(self) -> int:
        """Bytes in use: by the system, and by the processes that are there."""
        return min(self.memory, SYSTEM + sum(sim.held_on(self) for sim in self.sims))

    def free(self) -> int:
        """Bytes that a process finds free at its start."""
        return self.memory - self.used()

    async def handle(self, exchange: Exchange) -> None:
        if exchange.path != "/metrics":
            await exchange.send_json(404, {"detail": "Not Found"})
            return
        await exchange.send(200, self.page(), "text/plain; version=0.0.4; charset=utf-8")

    def page(self) -> bytes:
        engines = [engine for sim in self.sims if sim.alive for engine in sim.engines()]
        slots = sum(engine.slots for engine in engines)
        work = min(1.0, sum(len(engine.running) for engine in engines) / slots) if slots else 0.0
        values = {
            "cpu_temperature_celsius": _IDLE + 4.0 + 0.5 * _WORKING * work,
            "gpu_temperature_celsius": _IDLE + _WORKING * work,
            "gpu_utilization_percent": 96.0 if work else 0.0,
            "gpu_power_watts": 12.0 + 70.0 * work,
            "memory_total_bytes": float(self.memory),
            "memory_used_bytes": float(self.used()),
        }
        return "".join(f"# TYPE {name} gauge\n{name} {value!r}\n" for name, value in values.items()).encode()
