"""What a machine's Prometheus exporter says of its memory and temperature. Pure.

Exporters have names of their own for the same thing, so the names are data: what is found first in each list counts.
On a DGX Spark the memory is one for CPU and GPU, and `nvidia-smi` does not know it: the machine's own numbers come
first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace

from gateway.domain.metrics_page import at_once, labelled, number, slices

MIB = 1024.0 * 1024.0
PARTS_MOST = 1000  # GPUs, sensors or nodes of which one page tells the same
TEMPERATURE_MOST = 150.0  # some sensors answer nonsense while they sleep

# Metric -> factor to bytes, degrees Celsius, watts or shares.
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
    """What one look at an exporter found; None = it does not say. `memory_*` in bytes, `temperature` (the hottest) in
    degrees Celsius, `power` in watts, `gpu` = share of time in which the GPU works. `at`: Unix seconds; `there` = it
    answered."""

    at: float
    there: bool
    memory_used: float | None = None
    memory_total: float | None = None
    temperature: float | None = None
    power: float | None = None
    gpu: float | None = None

    def gone(self, at: float) -> Machine:
        """The same machine when its exporter answers no longer; its size stays known."""
        return replace(self, at=at, there=False, memory_used=None, temperature=None, power=None, gpu=None)


def read_machine(page: bytes, at: float) -> Machine:
    """A `/metrics` page of any of these exporters; several GPUs are added up, the hottest counts."""
    return at_once(reading_machine(page, at))


def reading_machine(page: bytes, at: float) -> Generator[None, None, Machine]:
    """The same in slices: yields after each."""
    found: dict[str, list[float]] = {}
    for lines in slices(page):
        for line in lines:
            _add(line, found)
        yield
    return _machine(found, at)


def _add(line: bytes, found: dict[str, list[float]]) -> None:
    if not line or line.startswith(b"#"):
        return
    name, _, value = line.partition(b" ") if b"{" not in line else labelled(line)
    known = _KNOWN.get(name)
    if known is None:
        return
    measured = number(value)  # a time may follow
    if measured is not None and len(values := found.setdefault(known, [])) < PARTS_MOST:
        values.append(measured)


def _machine(found: dict[str, list[float]], at: float) -> Machine:
    warm = {name: [t for t in values if 0.0 < t < TEMPERATURE_MOST] for name, values in found.items()}
    total, used = _first(_TOTAL, found, sum), _first(_USED, found, sum)
    free = _first(_FREE, found, sum)
    if total is None and used is not None and free is not None:
        total = used + free
    of_the_machine = "node_memory_MemTotal_bytes" in found and "memory_used_bytes" not in found
    if (used is None or of_the_machine) and total is not None and free is not None:
        used = max(0.0, total - free)  # a GPU's own numbers beside the machine's would be of another memory
    return Machine(
        at, True, used, total,
        temperature=_first(_TEMPERATURE, warm, max),
        power=_first(_POWER, found, sum),
        gpu=_first(_BUSY, found, max),
    )  # fmt: skip


def _first(names: Names, found: Mapping[str, list[float]], together: Callable[[list[float]], float]) -> float | None:
    for name, factor in names.items():
        if values := found.get(name):
            return together(values) * factor
    return None
