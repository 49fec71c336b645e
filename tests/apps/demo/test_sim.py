"""The commands that start and stop simulated backends, and the demo that gives them to the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from click.testing import CliRunner, Result

from bench.ports import free_ports
from gateway.apps.control.memory.model_catalog import shipped_models
from gateway.apps.control.memory.plan import plan
from gateway.apps.demo.demo import memory_held, sim_command, simulated, with_start_commands
from gateway.apps.demo.sim import command
from gateway.config.load import load, load_text
from gateway.config.snapshot import Backend, Launch, Snapshot
from gateway.launch.command import parse
from gateway.launch.words import split
from simulator.fleet import start_fleet
from simulator.memory import GIB, SYSTEM, Node
from tests.demo_process import ROOT
from tests.simulator.wire import ask

SHIPPED = load(ROOT / "routes.yaml", {}).snapshot
HELD = memory_held(SHIPPED)


async def ordered(order: str, backend: str, control: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, command, [order, backend, "--control", control])


def one_backend(share: float) -> Snapshot:
    launch = Launch(parsed=parse(f"vllm serve m --gpu-memory-utilization {share}"))
    return Snapshot({"a": Backend("a", url="http://192.168.1.11:8000", nodes=("n",), launch=launch)}, {}, nodes=NODES)


NODES = load_text("nodes: {n: {memory: 100GiB}}\nbackends: {a: {url: 'http://10.0.0.1'}}", "", {}).snapshot.nodes


async def test_a_backend_is_stopped_and_started_by_command_and_the_command_waits() -> None:
    async with await start_fleet(one_backend(0.5), speedup=1000.0) as fleet:
        stopped = await ordered("stop", "a", fleet.control_url)
        assert (stopped.exit_code, stopped.output) == (0, "a has stopped\n")
        assert fleet.nodes["n"].used() == SYSTEM
        started = await ordered("start", "a", fleet.control_url)
        assert (started.exit_code, started.output) == (0, f"a serves at {fleet['a']}\n")
        assert (await ask(fleet["a"], "/health")).status == 200


async def test_a_start_in_vain_prints_the_last_words_of_the_engine_and_exits_1() -> None:
    async with await start_fleet(one_backend(0.99), speedup=1000.0) as fleet:
        failed = await ordered("start", "a", fleet.control_url)
    assert failed.exit_code == 1
    assert failed.stderr.startswith("ValueError: Free memory on device (96.4/100.0 GiB) on startup is less than")


async def test_an_engine_that_is_killed_while_it_loads_is_a_start_in_vain() -> None:
    async with await start_fleet(one_backend(0.5), speedup=1000.0) as fleet:
        sim = fleet.sims["a"]
        await fleet.stop_backend("a")
        sim.speedup = 0.001
        waiting = asyncio.create_task(ordered("start", "a", fleet.control_url))
        await sim.wait_for(lambda: sim.loading)
        await sim.kill()
        failed = await waiting
    assert (failed.exit_code, failed.stderr) == (1, "a ended with exit code 137 before it served\n")


async def test_a_backend_or_a_demo_that_is_not_there_is_said_plainly() -> None:
    async with await start_fleet(one_backend(0.5), speedup=1000.0) as fleet:
        unknown = await ordered("start", "b", fleet.control_url)
        elsewhere = await ordered("stop", "b", fleet["a"])
    assert (unknown.exit_code, unknown.stderr) == (1, "no such backend; there are: a\n")
    nobody = await ordered("stop", "a", f"http://127.0.0.1:{free_ports(1)}")
    for result in (elsewhere, nobody):
        assert result.exit_code == 1
        assert "see what `gateway demo` prints" in result.stderr or "GET /_sim" in result.stderr


async def test_the_command_line_of_the_demo_is_a_command_that_works(tmp_path: Path) -> None:
    async with await start_fleet(one_backend(0.5), speedup=1000.0) as fleet:
        for order, said in (("stop", "a has stopped"), ("start", f"a serves at {fleet['a']}")):
            argv = split(sim_command(order, "a", fleet.control_url)).words
            process = await asyncio.create_subprocess_exec(*argv, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
            out, _ = await process.communicate()
            assert (process.returncode, out.decode().strip()) == (0, said)


# -- the demo ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ordered(Backend):
    """A backend that has commands of its own."""

    start: str | None = None
    stop: str | None = None

    __hash__ = Backend.__hash__


def test_every_simulated_backend_gets_commands_that_reach_the_control_port() -> None:
    backends = {name: Ordered(name, url=f"http://10.0.0.1/{name}", start="ssh far") for name in ("a", "-b")}
    snapshot = with_start_commands(Snapshot(dict(backends), {}), "http://127.0.0.1:5")
    for name, backend in snapshot.backends.items():
        assert isinstance(backend, Ordered)
        for order, line in (("start", backend.start), ("stop", backend.stop)):
            assert split(line or "").words[1:] == (
                "-m",
                "gateway",
                "sim",
                order,
                "--control",
                "http://127.0.0.1:5",
                "--",
                name,
            )
        assert backend.url == backends[name].url


def test_no_machine_is_reached_by_ssh_from_the_demo() -> None:
    assert any(node.ssh for node in SHIPPED.nodes.values())
    adapted = simulated(SHIPPED, dict.fromkeys(SHIPPED.backends, "http://127.0.0.1:5"))
    assert [node.ssh for node in adapted.nodes.values()] == [None, None]


def test_the_demo_takes_what_a_backend_holds_from_the_memory_plan() -> None:
    planned = plan(SHIPPED, "ds4", shipped_models()).nodes["spark2"].demands["ds4"]
    assert planned.held is not None
    assert HELD["ds4"] == dict.fromkeys(("spark1", "spark2"), round(planned.held * GIB))
    assert "parakeet" not in HELD, "what is not known is not made up"
    odd = replace(SHIPPED, own_catalog="none.yaml")
    assert memory_held(odd) == HELD, "a catalogue that cannot be read is left out"


async def test_the_shipped_fleet_switches_from_daily_to_ds4_and_back_as_its_plan_says() -> None:
    daily, ds4 = (
        [name for name in mode.backends if SHIPPED.backends[name].nodes] for mode in list(SHIPPED.modes.values())[:2]
    )
    async with await start_fleet(SHIPPED, speedup=1000.0, holdings=HELD) as fleet:
        await ask(fleet["qwen8b"], "/api/chat", {"model": "qwen3:8b"})
        assert _free(fleet.nodes) == _planned_free("daily")
        refused = await ordered("start", "ds4", fleet.control_url)
        assert refused.exit_code == 1
        assert "(0.9, 107.7 GiB)" in refused.stderr
        for leaving, coming, mode in ((daily, ds4, "ds4"), (ds4, daily, "daily")):
            for name in leaving:
                await fleet.stop_backend(name)
            assert {node.used() for node in fleet.nodes.values()} == {SYSTEM}
            for name in coming:
                assert (await ordered("start", name, fleet.control_url)).exit_code == 0
            if mode == "daily":
                await ask(fleet["qwen8b"], "/api/chat", {"model": "qwen3:8b"})
            assert _free(fleet.nodes) == _planned_free(mode)


def _free(nodes: Mapping[str, Node]) -> dict[str, float]:
    return {name: round(node.free() / GIB, 1) for name, node in nodes.items()}


def _planned_free(mode: str) -> dict[str, float]:
    nodes = plan(SHIPPED, mode, shipped_models()).nodes
    return {name: round(node.free, 1) for name, node in nodes.items() if node.free is not None}
