"""`make bench-agents`: what the published rows are made of, made small."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from bench import virtual_time
from bench.agents.measure import Figures, one_run
from bench.agents.scenarios import SCENARIOS
from bench.routers import NotInstallable


def test_time_passes_only_while_nothing_is_done() -> None:
    async def sleeps() -> float:
        began = asyncio.get_running_loop().time()
        assert abs(time.monotonic() - began) < 1e-6
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time() - began

    real = time.perf_counter()
    assert virtual_time.run(sleeps()) == pytest.approx(3600)
    assert time.perf_counter() - real < 60
    assert time.monotonic() < 1e9


def measured(scenario: str, row: str, agents: int = 16, turns: int = 5) -> Figures:
    return virtual_time.run(one_run(SCENARIOS[scenario], row, 1, agents, turns))


def test_equal_replicas_keep_their_agents() -> None:
    ours, hashed, turns = (measured("equal-2", row) for row in ("ours", "hash", "turns"))
    assert ours.broken == ours.moved == 0
    assert len(ours.first) == 16 * 5
    assert ours.computed <= 1.02 * hashed.computed < 0.9 * turns.computed
    assert ours.quantile(0.95) <= hashed.quantile(0.95) < turns.quantile(0.95)


@pytest.mark.parametrize("scenario", ["skewed-2", "no-ids-2"])
def test_agents_that_a_hash_piles_up_are_spread(scenario: str) -> None:
    ours, hashed = measured(scenario, "ours"), measured(scenario, "hash")
    assert ours.computed <= 1.1 * hashed.computed
    assert ours.quantile(0.95) < 0.8 * hashed.quantile(0.95)


ROUTER = """\
import asyncio, sys
port, worker = sys.argv[sys.argv.index("--port") + 1], sys.argv[sys.argv.index("--worker-urls") + 1]
assert sys.argv[sys.argv.index("--policy") + 1] == "cache_aware"

async def pump(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()

async def connected(reader, writer):
    there, back = await asyncio.open_connection("127.0.0.1", int(worker.rsplit(":", 1)[1]))
    await asyncio.gather(pump(reader, back), pump(there, writer))

async def main():
    async with await asyncio.start_server(connected, "127.0.0.1", int(port)) as server:
        await server.serve_forever()

asyncio.run(main())
"""


def test_a_router_in_another_process_is_measured_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "bin" / "vllm-router"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\n{ROUTER}")
    command.chmod(0o755)
    monkeypatch.setenv("ROUTERS", str(tmp_path))
    found = virtual_time.run(one_run(SCENARIOS["equal-2"], "router", 1, 4, 2), 0.005)
    assert (len(found.first), found.broken) == (8, 0)
    assert 0 < found.quantile(0.5) < 5


def test_a_router_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTERS", str(tmp_path))
    with pytest.raises(NotInstallable):
        virtual_time.run(one_run(SCENARIOS["equal-2"], "router", 1, 4, 2))
