"""A simulated Prometheus exporter of a machine: memory follows the running engines, temperature their load. The names
are those of dgx-spark-prometheus, which listens on :9835 of a DGX Spark."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.base import Sim
from simulator.server import Exchange, SimServer

_GIB = 1024**3
_SYSTEM = 9 * _GIB  # memory that the system itself uses
_SHARE = 0.36  # of the machine's memory for each engine that runs
_IDLE, _WORKING = 44.0, 27.0  # degrees Celsius when idle, and the increase when every slot is busy


class SimExporter:
    """`sims`: the simulated servers on this machine; `memory` in bytes."""

    def __init__(self, sims: Sequence[Sim], memory: int) -> None:
        self.sims = list(dict.fromkeys(sims))
        self.memory = memory
        self.server = SimServer(self)

    @property
    def url(self) -> str:
        return self.server.url + "/metrics"

    async def handle(self, exchange: Exchange) -> None:
        if exchange.path != "/metrics":
            await exchange.send_json(404, {"detail": "Not Found"})
            return
        await exchange.send(200, self.page(), "text/plain; version=0.0.4; charset=utf-8")

    def page(self) -> bytes:
        engines = [engine for sim in self.sims if sim.alive for engine in sim.engines()]
        used = min(0.97 * self.memory, _SYSTEM + len(engines) * _SHARE * self.memory)
        slots = sum(engine.slots for engine in engines)
        work = min(1.0, sum(len(engine.running) for engine in engines) / slots) if slots else 0.0
        values = {
            "cpu_temperature_celsius": _IDLE + 4.0 + 0.5 * _WORKING * work,
            "gpu_temperature_celsius": _IDLE + _WORKING * work,
            "gpu_utilization_percent": 96.0 if work else 0.0,
            "gpu_power_watts": 12.0 + 70.0 * work,
            "memory_total_bytes": float(self.memory),
            "memory_used_bytes": used,
        }
        return "".join(f"# TYPE {name} gauge\n{name} {value!r}\n" for name, value in values.items()).encode()
