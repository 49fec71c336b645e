"""What machines' exporters say, by the names of the four that are used."""

from __future__ import annotations

import math
from dataclasses import asdict, astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.health.nodes import Machine, read_machine
from simulator import SimVllm
from simulator.exporter import SimExporter
from tests.sliced import whole
from tests.support import running_gateway

GIB = 1024.0**3
SPARK = b"""# HELP memory_total_bytes Total RAM in bytes
# TYPE memory_total_bytes gauge
memory_total_bytes 1.28494682112e+11
memory_used_bytes 9.6e+10
cpu_temperature_celsius 58.2
gpu_temperature_celsius 61
gpu_utilization_percent 96
gpu_power_watts 41.5
network_receive_bytes_total{interface="enP7s7"} 1.2e+12
"""
NODE = b"""node_memory_MemTotal_bytes 1.28494682112e+11
node_memory_MemFree_bytes 1e+09
node_memory_MemAvailable_bytes 2.8494682112e+10
node_hwmon_temp_celsius{chip="thermal_thermal_zone0",sensor="temp0"} 55.6
node_hwmon_temp_celsius{chip="thermal_thermal_zone0",sensor="temp3"} 58.4
node_hwmon_temp_celsius{chip="nvme_nvme0",sensor="temp2"} 65261.85
node_thermal_zone_temp{type="acpitz",zone="0"} 99
"""
DCGM = b"""# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA A100"} 47
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-2",device="nvidia1",modelName="NVIDIA A100"} 52
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1"} 70.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-2"} 80
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1"} 30
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2"} 90
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-1"} 1024
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-2"} 2048
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1"} 1024
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-2"} 4096
"""
SMI = b"""nvidia_smi_temperature_gpu{uuid="df6e7a7c"} 44
nvidia_smi_power_draw_watts{uuid="df6e7a7c"} 29.07
nvidia_smi_utilization_gpu_ratio{uuid="df6e7a7c"} 0.33
nvidia_smi_memory_total_bytes{uuid="df6e7a7c"} 1.2884901888e+10
nvidia_smi_memory_used_bytes{uuid="df6e7a7c"} 4.294967296e+09
"""


@pytest.mark.parametrize(
    ("page", "machine"),
    [
        (SPARK, Machine(1.0, True, 9.6e10, 1.28494682112e11, 61.0, 41.5, 0.96)),
        (NODE, Machine(1.0, True, 1e11, 1.28494682112e11, 58.4)),
        (DCGM, Machine(1.0, True, 5 * GIB, 8 * GIB, 52.0, 150.5, 0.9)),
        (SMI, Machine(1.0, True, 4 * GIB, 12 * GIB, 44.0, 29.07, 0.33)),
        (NODE + DCGM, Machine(1.0, True, 1e11, 1.28494682112e11, 52.0, 150.5, 0.9)),
        (b"", Machine(1.0, True)),
        (b"memory_used_bytes NaN\ngpu_temperature_celsius\ngpu_power_watts x\n", Machine(1.0, True)),
        (b"memory_total_bytes -1\n", Machine(1.0, True)),
        (b"gpu_temperature_celsius 50 1795222286000\n", Machine(1.0, True, temperature=50.0)),
    ],
    ids=["spark", "node", "dcgm", "smi", "node+dcgm", "nothing", "nonsense", "negative", "with a time"],
)  # fmt: skip
def test_memory_and_temperature_are_read(page: bytes, machine: Machine) -> None:
    assert asdict(whole(read_machine(page, 1.0))) == pytest.approx(asdict(machine))


@given(st.binary(max_size=400))
def test_any_page_is_survived(page: bytes) -> None:
    for text in (page, SPARK + page, b"gpu_temperature_celsius{" + page, b"memory_used_bytes " + page):
        machine = whole(read_machine(text, 1.0))
        numbers = [number for number in astuple(machine)[2:] if number is not None]
        assert all(0.0 <= number < math.inf for number in numbers), machine


async def test_an_exporter_that_ends_and_returns_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.health.prober.EXPORTER_EVERY", 0.02)
    sim = SimVllm("a")
    exporter = SimExporter([sim], 120 * 1024**3)
    async with sim.serve() as url, exporter.server:
        routes = f"nodes: {{n: {{exporter: '{exporter.url}'}}}}\nbackends: {{a: {{url: '{url}', node: n}}}}\n"
        async with running_gateway(routes) as gateway:
            machines = gateway.gateway.prober.machines
            await gateway.until(lambda: "n" in machines and machines["n"].there)
            assert machines["n"].temperature == 44.0
            await exporter.server.refuse()
            await gateway.until(lambda: not machines["n"].there)
            assert machines["n"].memory_total == 120 * GIB
            told = (await gateway.client.get("/status")).json()["nodes"]["n"]
            assert (told["temperature"], told["memory_used"]) == (None, None)
            assert (told["state"], told["exporter"]) == ("up", False)
            assert told["why"].endswith("its exporter does not")
            exporter.server.open()
            await gateway.until(lambda: machines["n"].there)
