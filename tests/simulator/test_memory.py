"""The memory of simulated nodes: what does not fit does not start, and what ends leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gateway.config.snapshot import Backend, Launch, Mode, Node, Snapshot
from gateway.launch.command import parse
from simulator.fleet import SimFleet, start_fleet
from simulator.memory import GIB, SYSTEM, ollama_model_size
from tests.simulator.wire import ask

SPARK = round(119.67 * GIB)


def vllm(name: str, port: int, share: float, *nodes: str, **more: Any) -> Backend:
    launch = Launch(parsed=parse(f"vllm serve {name} --port {port} --gpu-memory-utilization {share}"))
    return Backend(name, url=f"http://192.168.1.11:{port}", nodes=nodes, launch=launch, **more)


def ollama(model: str, **more: Any) -> Backend:
    return Backend(
        model, engine="ollama", url="http://192.168.1.11:11434", model=model, nodes=("spark1",), context=8192, **more
    )


MAIN = vllm("main", 8001, 0.55, "spark1")
OTHER = vllm("other", 8001, 0.80, "spark2")
BOTH = vllm("both", 8000, 0.9, "spark1", "spark2", run="on_demand")
SMALL = ollama("qwen3:8b")
LARGE = ollama("qwen3:32b", run="on_demand")
NODES = {name: Node(name, memory=SPARK, exporter=f"http://{name}:9835/metrics") for name in ("spark1", "spark2")}
MODES = {"daily": Mode("daily", ("main", "other", "qwen3:8b")), "both": Mode("both", ("both",))}


@asynccontextmanager
async def fleet_of(*backends: Backend, **options: Any) -> AsyncIterator[SimFleet]:
    snapshot = Snapshot({b.name: b for b in backends}, {}, nodes=NODES, modes=options.pop("modes", {}))
    async with await start_fleet(snapshot, speedup=1000.0, **options) as fleet:
        yield fleet


def used(fleet: SimFleet) -> list[float]:
    """GiB in use on every node beside the system."""
    return [round((node.used() - SYSTEM) / GIB, 1) for node in fleet.nodes.values()]


async def order(fleet: SimFleet, name: str, action: str, body: bytes = b'{"wait": true}') -> tuple[int, dict[str, Any]]:
    reply = await ask(fleet.control_url, f"/_sim/{name}/{action}", b"" if action == "stop" else body, "POST")
    return reply.status, reply.json


async def test_the_backends_of_the_first_mode_run_at_the_beginning_and_no_others() -> None:
    spare = vllm("spare", 8005, 0.1, "spark1")  # would run always, and is in no mode
    async with fleet_of(MAIN, OTHER, BOTH, SMALL, spare, modes=MODES) as fleet:
        running = [name for name, sim in fleet.sims.items() if sim.listening]
        assert running == ["main", "other", "qwen3:8b"]
    async with fleet_of(MAIN, BOTH, spare) as fleet:
        assert [name for name, sim in fleet.sims.items() if sim.listening] == ["main", "spare"]


async def test_an_engine_that_finds_too_little_memory_free_dies_with_the_words_of_vllm() -> None:
    async with fleet_of(MAIN, BOTH) as fleet:
        status, state = await order(fleet, "both", "start")
        assert status == 409
        assert (state["alive"], state["listening"], state["exit_code"]) == (False, False, 1)
        assert state["output"].startswith(
            "ValueError: Free memory on device (50.25/119.67 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 107.7 GiB)."
        )
        with pytest.raises(ConnectionRefusedError):
            await ask(fleet["both"], "/health")
        assert used(fleet) == [65.8, 0.0], "what died holds nothing"


async def test_a_switch_frees_what_is_stopped_and_an_engine_over_two_nodes_takes_from_both() -> None:
    async with fleet_of(MAIN, OTHER, BOTH, modes=MODES | {"daily": Mode("daily", ("main", "other"))}) as fleet:
        assert used(fleet) == [65.8, 95.7]
        assert (await order(fleet, "main", "stop"))[0] == 200
        status, state = await order(fleet, "both", "start")
        assert status == 409
        assert "(20.33/119.67 GiB)" in state["output"], "the other node is still full"
        await order(fleet, "other", "stop")
        assert used(fleet) == [0.0, 0.0]
        status, state = await order(fleet, "both", "start")
        assert (status, state["listening"], state["output"], state["exit_code"]) == (200, True, "", None)
        assert used(fleet) == [107.7, 107.7]
        assert (await order(fleet, "main", "start"))[0] == 409
        await order(fleet, "both", "stop")
        assert (await order(fleet, "main", "start"))[0] == 200
        assert (await order(fleet, "other", "start"))[0] == 200
        assert used(fleet) == [65.8, 95.7]


async def test_a_killed_engine_leaves_nothing_and_one_that_hangs_after_sigterm_keeps_its_memory() -> None:
    async with fleet_of(MAIN) as fleet:
        await order(fleet, "main", "kill")
        assert used(fleet) == [0.0, 0.0]
        await order(fleet, "main", "revive")
        assert used(fleet) == [65.8, 0.0]
        await fleet.stop_backend("main", how="silent")
        assert used(fleet) == [65.8, 0.0], "the process is still there"
        await order(fleet, "main", "stop")
        assert used(fleet) == [0.0, 0.0]


async def test_a_start_refuses_connections_until_it_has_loaded_and_holds_its_memory_from_the_beginning() -> None:
    async with fleet_of(MAIN) as fleet:
        sim = fleet.sims["main"]
        await order(fleet, "main", "stop")
        sim.speedup = 0.001
        status, state = await order(fleet, "main", "start", b"")
        assert (status, state["alive"], state["loading"], state["listening"]) == (200, True, True, False)
        assert used(fleet) == [65.8, 0.0]
        with pytest.raises(ConnectionRefusedError):
            await ask(fleet["main"], "/health")
        await order(fleet, "main", "stop")
        sim.speedup = 1000.0
        assert (await order(fleet, "main", "start"))[0] == 200
        assert (await ask(fleet["main"], "/health")).status == 200


async def test_a_start_of_what_runs_changes_nothing() -> None:
    async with fleet_of(MAIN) as fleet:
        began = fleet.sims["main"].started_at
        assert (await order(fleet, "main", "start"))[0] == 200
        assert fleet.sims["main"].started_at == began


async def test_a_stop_ends_a_start_that_is_still_loading() -> None:
    async with fleet_of(MAIN) as fleet:
        sim = fleet.sims["main"]
        await order(fleet, "main", "stop")
        sim.speedup = 0.001
        waiting = asyncio.create_task(order(fleet, "main", "start"))
        await sim.wait_for(lambda: sim.loading)
        await fleet.stop_backend("main")
        status, state = await waiting
        assert (status, state["alive"], state["loading"]) == (409, False, False)
        assert used(fleet) == [0.0, 0.0]


async def test_a_closed_port_makes_a_start_that_hangs_until_the_fault_is_off() -> None:
    async with fleet_of(MAIN) as fleet:
        sim = fleet.sims["main"]
        await order(fleet, "main", "stop")
        sim.fault("refuse")
        waiting = asyncio.create_task(order(fleet, "main", "start"))
        await sim.wait_for(lambda: sim.alive and not sim.loading)
        assert not waiting.done()
        sim.clear()
        assert (await waiting)[0] == 200


async def test_a_start_that_dies_when_it_has_loaded_ends_with_the_words_of_vllm_and_holds_nothing() -> None:
    async with fleet_of(MAIN) as fleet:
        sim = fleet.sims["main"]
        await order(fleet, "main", "stop")
        sim.fault("die_loading")
        status, state = await order(fleet, "main", "start")
        assert (status, state["alive"], state["exit_code"]) == (409, False, 1)
        assert state["output"].startswith("RuntimeError: Engine core initialization failed.")
        assert used(fleet) == [0.0, 0.0]
        sim.clear()
        assert (await order(fleet, "main", "start"))[0] == 200


async def test_given_numbers_win_over_the_launch_command() -> None:
    tight = replace(OTHER, name="tight")
    async with fleet_of(MAIN, tight, holdings={"main": {"spark1": 70 * GIB}, "tight": {"spark2": 200 * GIB}}) as fleet:
        assert used(fleet) == [70.0, 0.0]
        assert fleet.sims["tight"].output.startswith("torch.OutOfMemoryError: CUDA out of memory.")


async def test_an_ollama_holds_the_models_that_are_loaded() -> None:
    async with fleet_of(SMALL, LARGE, holdings={"qwen3:32b": {"spark1": 27 * GIB}}) as fleet:
        assert used(fleet) == [0.0, 0.0]
        await ask(fleet["qwen3:8b"], "/api/chat", {"model": "qwen3:8b"})
        small = round(ollama_model_size("qwen3:8b") / GIB, 1)
        assert used(fleet) == [small, 0.0]
        await ask(fleet["qwen3:8b"], "/api/chat", {"model": "qwen3:32b"})
        assert used(fleet) == [round(small + 27.0, 1), 0.0]
        await ask(fleet["qwen3:8b"], "/api/chat", {"model": "qwen3:8b", "keep_alive": 0})
        assert used(fleet) == [27.0, 0.0]


async def test_a_model_that_does_not_fit_pushes_out_an_idle_one_or_is_refused_as_ollama_refuses() -> None:
    holdings = {"qwen3:8b": {"spark1": 20 * GIB}, "qwen3:32b": {"spark1": 45 * GIB}}
    async with fleet_of(MAIN, SMALL, LARGE, holdings=holdings) as fleet:
        await ask(fleet["qwen3:8b"], "/api/chat", {"model": "qwen3:8b"})
        await ask(fleet["qwen3:8b"], "/api/chat", {"model": "qwen3:32b"})
        assert used(fleet) == [round(65.8 + 45.0, 1), 0.0]
    async with fleet_of(BOTH, SMALL, holdings={"qwen3:8b": {"spark1": 10 * GIB}}) as fleet:
        await order(fleet, "both", "start")
        reply = await ask(fleet["qwen3:8b"], "/api/chat", {"model": "qwen3:8b"})
        assert (reply.status, reply.json) == (
            500, {"error": "model requires more system memory (10.0 GiB) than is available (8.4 GiB)"},
        )  # fmt: skip


async def test_an_ollama_ends_with_the_last_of_its_backends_that_was_started() -> None:
    async with fleet_of(SMALL, LARGE) as fleet:
        for model in ("qwen3:8b", "qwen3:32b"):
            await order(fleet, model, "start")
            await ask(fleet[model], "/api/chat", {"model": model})
        await order(fleet, "qwen3:8b", "stop")
        sim = fleet.sims["qwen3:32b"]
        assert (sim.alive, list(sim.state()["loaded"])) == (True, ["qwen3:32b"])
        await order(fleet, "qwen3:32b", "stop")
        assert not sim.alive
        assert used(fleet) == [0.0, 0.0]


async def test_an_edit_adds_backends_to_the_memory_of_a_node_and_takes_removed_ones_out_of_it() -> None:
    async with fleet_of(MAIN) as fleet:
        added = vllm("added", 8005, 0.3, "spark1")
        for backends, holds in (((MAIN, added), 101.7), ((added,), 35.9), ((MAIN, added), 101.7)):
            await fleet.follow(Snapshot({b.name: b for b in backends}, {}, nodes=NODES))
            assert used(fleet) == [holds, 0.0]
        large = vllm("large", 8006, 0.5, "spark1")
        await fleet.follow(Snapshot({b.name: b for b in (MAIN, added, large)}, {}, nodes=NODES))
        assert used(fleet) == [101.7, 0.0]
        assert "(14.35/119.67 GiB)" in fleet.sims["large"].output


async def test_the_exporter_shows_the_memory_in_use() -> None:
    async with fleet_of(MAIN, OTHER) as fleet:
        page = (await ask(fleet.exporters["spark2"].removesuffix("/metrics"), "/metrics")).body.decode()
        assert f"memory_used_bytes {float(SYSTEM + round(0.8 * SPARK))!r}\n" in page
        await order(fleet, "other", "kill")
        page = (await ask(fleet.exporters["spark2"].removesuffix("/metrics"), "/metrics")).body.decode()
        assert f"memory_used_bytes {float(SYSTEM)!r}\n" in page


async def test_the_control_port_says_what_a_start_may_be_sent() -> None:
    async with fleet_of(MAIN) as fleet:
        assert (await order(fleet, "main", "start", b"[]"))[0] == 400
        assert (await order(fleet, "none", "start"))[0] == 404
