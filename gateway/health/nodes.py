"""The machines (nodes) that backends run on: the memory and temperature that their Prometheus exporters report, and
which machine is down. Pure.

Each exporter has its own metric names, so the names are data: the first name of a list that a page contains is used. On
a DGX Spark CPU and GPU share one memory, which `nvidia-smi` does not report, so the machine's own metrics come first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.transport.prometheus_text import number, slices, split_sample

MIB = 1024.0 * 1024.0
PARTS_MOST = 1000  # values of one metric that are read from a page (one value per GPU or sensor)
TEMPERATURE_MOST = 150.0  # degrees Celsius; sleeping sensors may report impossible values

# Metric -> factor that converts it to bytes, degrees Celsius, watts or a share (0 to 1).
Names = Mapping[str, float]
_TOTAL: Names = {
    "memory_total_bytes": 1.0,  # dgx-spark-prometheus
    "node_memory_MemTotal_bytes": 1.0,  # node_exporter
    "nvidia_smi_memory_total_bytes": 1.0,  # nvidia_gpu_exporter
    "DCGM_FI_DEV_FB_TOTAL": MIB,  # dcgm-exporter
}
_USED: Names = {"memory_used_bytes": 1.0, "nvidia_smi_memory_used_bytes": 1.0, "DCGM_FI_DEV_FB_USED": MIB}
_FREE: Names = {"node_memory_MemAvailable_bytes": 1.0, "DCGM_FI_DEV_FB_FREE": MIB}
_TEMPERATURE: Names = {
    "gpu_temperature_celsius": 1.0,
    "DCGM_FI_DEV_GPU_TEMP": 1.0,
    "nvidia_smi_temperature_gpu": 1.0,
    "node_hwmon_temp_celsius": 1.0,
    "node_thermal_zone_temp": 1.0,
    "cpu_temperature_celsius": 1.0,
}
_POWER: Names = {"gpu_power_watts": 1.0, "DCGM_FI_DEV_POWER_USAGE": 1.0, "nvidia_smi_power_draw_watts": 1.0}
_BUSY: Names = {
    "gpu_utilization_percent": 0.01,
    "DCGM_FI_DEV_GPU_UTIL": 0.01,
    "nvidia_smi_utilization_gpu_ratio": 1.0,
}
_KNOWN = {name.encode(): name for names in (_TOTAL, _USED, _FREE, _TEMPERATURE, _POWER, _BUSY) for name in names}


@dataclass(frozen=True, slots=True)
class Machine:
    """The last report of a machine's exporter; None if not reported. `memory_*` in bytes, `temperature` (of the hottest
    sensor) in degrees Celsius, `power` in watts, `gpu` = share of time in which the GPU is busy. `at`: Unix seconds;
    `there` = the exporter answered."""

    at: float
    there: bool
    memory_used: float | None = None
    memory_total: float | None = None
    temperature: float | None = None
    power: float | None = None
    gpu: float | None = None

    def gone(self, at: float) -> Machine:
        """The same machine once its exporter no longer answers: only the memory's size is kept."""
        return replace(self, at=at, there=False, memory_used=None, temperature=None, power=None, gpu=None)


def read_machine(page: bytes, at: float) -> Generator[None, None, Machine]:
    """Read a page of any of these exporters. Memory and power of several GPUs are added up; of temperatures and
    utilizations the highest is used. `at`: Unix seconds. Yields after each slice of the page."""
    found: dict[str, list[float]] = {}
    for lines in slices(page):
        for line in lines:
            _add(line, found)
        yield
    return _machine(found, at)


def _add(line: bytes, found: dict[str, list[float]]) -> None:
    if not line or line.startswith(b"#"):
        return
    name, _, value = line.partition(b" ") if b"{" not in line else split_sample(line)
    known = _KNOWN.get(name)
    if known is None:
        return
    measured = number(value)  # ignores the timestamp that may follow the value
    if measured is not None and len(values := found.setdefault(known, [])) < PARTS_MOST:
        values.append(measured)


def _machine(found: dict[str, list[float]], at: float) -> Machine:
    plausible = {name: [t for t in values if 0.0 < t < TEMPERATURE_MOST] for name, values in found.items()}
    total, used = _first(_TOTAL, found, sum), _first(_USED, found, sum)
    free = _first(_FREE, found, sum)
    if total is None and used is not None and free is not None:
        total = used + free
    total_of_machine = "node_memory_MemTotal_bytes" in found and "memory_used_bytes" not in found
    if (used is None or total_of_machine) and total is not None and free is not None:
        used = max(0.0, total - free)  # not the GPU's used memory: the total is that of the machine
    return Machine(
        at, True, used, total,
        temperature=_first(_TEMPERATURE, plausible, max),
        power=_first(_POWER, found, sum),
        gpu=_first(_BUSY, found, max),
    )  # fmt: skip


def _first(names: Names, found: Mapping[str, list[float]], combine: Callable[[list[float]], float]) -> float | None:
    """The combined values of the first of the metrics `names` that the page has, if any."""
    for name, factor in names.items():
        if values := found.get(name):
            return combine(values) * factor
    return None


# -- which machine is down ---------------------------------------------------------------------------------------------


class NodeHealth:
    """Which machines are down, for engines that run on several: such an engine may answer `/health` on its first
    machine after the second has failed. The evidence is what else runs on a machine: its exporter, and the backends
    that run on this machine alone. A machine counts as down only when none of them is reachable and one was
    reachable before."""

    def __init__(self) -> None:
        self._backends: dict[str, dict[str, bool]] = {}  # node -> backend -> does its port accept connections?
        self._exporters: dict[str, bool] = {}  # node -> did its exporter answer?
        self._seen_up: set[str] = set()
        self._excused: dict[str, set[str]] = {}  # backend -> nodes that seem down, but it works

    def record_backend(self, node: str, backend: str, *, reachable: bool) -> None:
        """A backend that runs on this node alone was checked. `reachable`: its port accepts connections."""
        self._backends.setdefault(node, {})[backend] = reachable
        self._record_up(node)

    def record_exporter(self, node: str, *, reachable: bool) -> None:
        """Record whether the node's exporter answered."""
        self._exporters[node] = reachable
        self._record_up(node)

    def keep_only(self, backends: Mapping[str, str], exporters: Collection[str]) -> None:
        """Drop the evidence of all others. `backends`: with their one node; `exporters`: nodes that have one."""
        for node, recorded in self._backends.items():
            self._backends[node] = {name: up for name, up in recorded.items() if backends.get(name) == node}
        self._exporters = {node: up for node, up in self._exporters.items() if node in exporters}

    def is_down(self, node: str) -> bool:
        """Is nothing on this node reachable? Always False for a node that was never seen up: it may be switched off on
        purpose, or routes.yaml may have a wrong address."""
        if node not in self._seen_up:
            return False
        return bool(self._backends.get(node) or node in self._exporters) and not self._is_up(node)

    def down_node_of(self, backend: str, nodes: Sequence[str]) -> str | None:
        """The first of the backend's `nodes` that is down and not excused, if any."""
        excused = self._excused.get(backend, set())
        return next((node for node in nodes if node not in excused and self.is_down(node)), None)

    def excuse(self, backend: str, nodes: Sequence[str]) -> None:
        """The backend works: those of its nodes that seem down are ignored for it until they are seen up again."""
        down = {node for node in nodes if self.is_down(node)}
        if down:
            self._excused.setdefault(backend, set()).update(down)

    def _is_up(self, node: str) -> bool:
        return self._exporters.get(node, False) or any(self._backends.get(node, {}).values())

    def _record_up(self, node: str) -> None:
        if self._is_up(node):
            self._seen_up.add(node)
            for excused in self._excused.values():
                excused.discard(node)
