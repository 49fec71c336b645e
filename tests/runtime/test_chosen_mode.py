"""Modes of a running gateway: what is parked, what is told and loaded, and what a change of the mode does."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.domain.health_state import State
from simulator import SimOllama, SimVllm
from tests.apps.alerts.hook import Hook, hooked
from tests.apps.alerts.test_app import reopened
from tests.editing import edited
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

FAST = "defaults: {health: {every: 50ms, fail_after: 2, recover_after: 2}}\n"
QWEN8B = "qwen3:8b"


@dataclass
class Sparks:
    """Two Sparks: the daily models on one each, an Ollama beside the first, and DS4 over both."""

    gateway: RunningGateway
    hook: Hook
    sims: dict[str, SimVllm]
    ollama: SimOllama

    async def status(self) -> dict[str, object]:
        return dict((await self.gateway.client.get("/status")).json())

    async def switch(self, mode: str) -> None:
        await self.gateway.gateway.put_mode_in_force(mode)

    async def rounds(self, count: int = 8) -> None:
        """So many health checks of DS4, and as many looks of the standby."""
        checks = self.sims["ds4"].seen["/health"]
        for _ in range(count):
            await self.gateway.gateway.apps.standby.look(0.0)
            await self.gateway.gateway.apps.alerts.check()
        await self.gateway.until(lambda: self.sims["ds4"].seen["/health"] >= checks + count)


MODES = "modes: {daily: [qwen36, gemma4, qwen8b], ds4: [ds4]}\n"
ALIASES = """\
aliases:
  spark: [qwen36, qwen8b]
  writer: [gemma4, qwen8b]
  reviewer: [qwen36, ds4, qwen8b]
  small: [qwen8b]
  large: [ds4, qwen36]
"""


@asynccontextmanager
async def sparks(modes: str = MODES, file: Path | None = None, data: Path | None = None) -> AsyncIterator[Sparks]:
    async with AsyncExitStack() as stack:
        hook = await stack.enter_async_context(hooked())
        sims = {name: SimVllm(name) for name in ("qwen36", "gemma4", "ds4")}
        urls = {name: await stack.enter_async_context(sim.serve()) for name, sim in sims.items()}
        ollama = SimOllama("qwen8b", models=[QWEN8B])
        url = await stack.enter_async_context(ollama.serve())
        routes = (
            f"{FAST}{f'server: {{data: {data}}}' if data else ''}\nbackends:\n"
            f"  qwen36: {{url: '{urls['qwen36']}', node: n1}}\n"
            f"  gemma4: {{url: '{urls['gemma4']}', node: n2}}\n"
            f"  qwen8b: {{engine: ollama, url: '{url}', node: n1, model: '{QWEN8B}', context: 8192, slots: 1}}\n"
            f"  ds4: {{url: '{urls['ds4']}', node: [n1, n2]}}\n"
            f"{ALIASES}{modes}alerts: {{webhook: '{hook.url}/hook'}}\n"
        )
        gateway = await stack.enter_async_context(running_gateway(routes, file=file))
        await reopened(gateway)
        yield Sparks(gateway, hook, sims, ollama)


async def ask(gateway: RunningGateway, model: str) -> tuple[int, str, str | None]:
    reply = await gateway.client.post("/v1/chat/completions", json=chat(model))
    served = reply.headers.get("x-gateway-backend") or reply.json()["error"]["code"]
    return reply.status_code, served, reply.headers.get("x-gateway-fallback")


def of_modes(gateway: RunningGateway) -> list[tuple[str, str, str]]:
    return [(e.before, e.after, e.reason) for e in gateway.gateway.events if e.kind == "mode"]


# -- the fleet of two Sparks ------------------------------------------------------------------------------------------


async def test_with_ds4_up_and_the_daily_models_stopped_nothing_is_told_and_nothing_is_loaded() -> None:
    async with sparks() as s:
        await s.gateway.until_ready("qwen36", "gemma4", "qwen8b")
        await s.switch("ds4")
        for name in ("qwen36", "gemma4"):
            await s.sims[name].kill()
        await s.gateway.until_ready("ds4")
        await s.rounds()
        status = (await s.gateway.client.get("/status")).json()
        assert status["mode"] == "ds4"
        assert {n: b["state"] for n, b in status["backends"].items()} == {
            "qwen36": "parked", "gemma4": "parked", "qwen8b": "parked", "ds4": "ready"
        }  # fmt: skip
        assert status["backends"]["qwen36"]["reason"] == "outside mode 'ds4'"
        named = {name: alias for name, alias in status["aliases"].items() if not alias["implicit"]}
        assert {name: (a["course"], a["on_fallback"], a["since"]) for name, a in named.items()} == {
            "spark": ("parked", False, None),
            "writer": ("parked", False, None),
            "reviewer": ("home", False, None),
            "small": ("parked", False, None),
            "large": ("home", False, None),
        }
        assert {name: node["state"] for name, node in status["nodes"].items()} == {"n1": "up", "n2": "up"}
        assert s.hook.told() == []
        assert not s.ollama.loaded, "DS4 needs that memory"
        assert await ask(s.gateway, "reviewer") == (200, "ds4", None)
        assert await ask(s.gateway, "spark") == (503, "no_backend_available", None)
        assert s.gateway.state("ds4") is State.READY, "its nodes are not down because the daily models are"


async def test_without_modes_the_same_fleet_is_on_fallbacks() -> None:
    """What modes are for."""
    async with sparks(modes="") as s:
        await s.gateway.until_ready("qwen36", "gemma4", "qwen8b", "ds4")
        assert (await s.status())["mode"] is None
        await s.sims["gemma4"].kill()
        await s.gateway.until(lambda: s.gateway.state("gemma4") is State.DOWN)
        await s.hook.until(lambda: ("alias_fallback", "writer") in s.hook.told())
        await s.gateway.until(lambda: QWEN8B in s.ollama.loaded)


async def test_in_the_mode_itself_trouble_is_told_but_nothing_is_loaded_beside_what_the_mode_needs() -> None:
    async with sparks() as s:
        await s.gateway.until_ready("qwen36", "gemma4", "qwen8b")
        await s.sims["gemma4"].kill()
        await s.hook.until(lambda: ("alias_fallback", "writer") in s.hook.told())
        await s.rounds()
        assert not s.ollama.loaded, "qwen36 is of the mode, and on the same node"
        assert (await ask(s.gateway, "writer"))[:2] == (200, "qwen8b")


async def test_what_was_loaded_ahead_for_the_other_mode_is_unloaded() -> None:
    async with sparks("modes: {daily: [gemma4, qwen8b], ds4: [ds4]}\n") as s:
        await s.gateway.until_ready("gemma4", "qwen8b")
        await s.sims["gemma4"].kill()
        await s.gateway.until(lambda: QWEN8B in s.ollama.loaded)
        await s.switch("ds4")
        await s.gateway.until(lambda: not s.ollama.loaded)


async def test_a_parked_backend_is_checked_and_gets_no_request_of_ours() -> None:
    async with sparks() as s:
        checks = s.sims["ds4"].seen["/health"]
        await s.gateway.until(lambda: s.sims["ds4"].seen["/health"] > checks + 4)
        assert (s.gateway.state("ds4"), s.sims["ds4"].requests) == (State.PARKED, [])
        assert await ask(s.gateway, "large") == (200, "qwen36", None)
        assert await ask(s.gateway, "ds4") == (503, "no_backend_available", None)
        await s.switch("ds4")
        report = (await s.gateway.client.post("/admin/backends/qwen8b/probe", json={})).json()
        assert {seen["result"] for seen in report["checks"].values()} == {"untested"}
        assert (report["problems"], s.ollama.loaded) == ([], {})


async def test_a_failed_request_of_a_parked_ollama_is_not_followed_by_one_that_loads_its_model() -> None:
    async with sparks() as s:
        await s.switch("ds4")
        found = await s.gateway.gateway.prober.suspicion.probe(s.gateway.gateway.fleet["qwen8b"])
        assert (found.lives, s.ollama.loaded, s.ollama.requests) == (None, {}, [])


# -- a change of the mode ---------------------------------------------------------------------------------------------


async def test_requests_under_way_end_by_themselves_and_those_that_wait_go_on() -> None:
    slow = SimVllm("a", slots=1, decode=50)
    async with slow.serve() as first, SimVllm("b").serve() as second:
        routes = (
            f"{FAST}backends:\n  a: {{url: '{first}', slots: 1}}\n  b: {{url: '{second}'}}\n"
            "aliases: {x: [a, b], y: [a]}\nmodes: {one: [a], two: [b]}\n"
        )
        async with running_gateway(routes) as gateway, AsyncExitStack() as stack:
            await gateway.until_ready("a")
            streaming = await stack.enter_async_context(
                gateway.client.stream("POST", "/v1/chat/completions", json=chat("y", stream=True, max_tokens=150))
            )
            lines = streaming.aiter_lines()
            assert (await anext(lines)).startswith("data:")
            tasks = [asyncio.create_task(ask(gateway, model)) for model in ("x", "y")]
            await gateway.until(lambda: gateway.gateway.admission.queue_depth().get("a", 0) == 2)
            await gateway.gateway.put_mode_in_force("two")
            assert [await task for task in tasks] == [(200, "b", None), (503, "no_backend_available", None)]
            assert gateway.state("a") is State.PARKED
            assert slow.inflight == 1
            rest = [line async for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert gateway.state("a") is State.PARKED, "an answered request does not bring it back"


async def test_a_change_is_an_event_a_log_line_and_a_metric(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway")
    async with sparks() as s:
        assert (s.gateway.metric("gateway_mode", mode="daily"), s.gateway.metric("gateway_mode", mode="ds4")) == (1, 0)
        await s.switch("ds4")
        await s.switch("ds4")
        assert (s.gateway.metric("gateway_mode", mode="daily"), s.gateway.metric("gateway_mode", mode="ds4")) == (0, 1)
        assert of_modes(s.gateway) == [("daily", "ds4", "chosen")]
        events = (await s.gateway.client.get("/status")).json()["events"]
        shown = [event for event in events if event["kind"] == "mode"]
        assert [sorted(event) for event in shown] == [["after", "at", "before", "kind", "reason"]]
    assert "mode 'daily' is in force" in caplog.messages
    assert "mode 'ds4' is in force instead of 'daily': chosen" in caplog.messages


async def test_a_mode_that_the_file_does_not_have_cannot_be_chosen() -> None:
    async with sparks() as s:
        with pytest.raises(KeyError):
            await s.switch("dsv4")
        assert (await s.status())["mode"] == "daily"


async def test_what_is_in_both_modes_keeps_everything() -> None:
    async with sparks("modes: {daily: [qwen36, gemma4], half: [qwen36]}\n") as s:
        await s.gateway.until_ready("qwen36", "gemma4")
        state = s.gateway.gateway.fleet["qwen36"]
        health, client = state.health, state.client
        await s.switch("half")
        after = s.gateway.gateway.fleet["qwen36"]
        assert (after, after.health, after.client, after.health.state) == (state, health, client, State.READY)


async def test_ready_and_models_follow_the_mode() -> None:
    async with sparks() as s:
        await s.gateway.until_ready("qwen36", "gemma4", "qwen8b")
        await s.switch("ds4")
        await s.gateway.until_ready("ds4")
        assert set((await s.gateway.client.get("/ready")).json()["aliases"]) == {"reviewer", "large", "ds4"}
        model = (await s.gateway.client.get("/v1/models/reviewer")).json()
        assert model["x_gateway"]["states"] == {"qwen36": "parked", "ds4": "ready", "qwen8b": "parked"}
        assert model["x_gateway"]["serving"] == ["ds4"]
        assert model["max_model_len"] == s.gateway.gateway.fleet["ds4"].window(0.0)


async def test_a_profile_changes_the_window_and_the_slots_while_its_mode_is_in_force() -> None:
    async with SimVllm("big", served=["big"], context=262144).serve() as url:
        port, host = url.rsplit(":", 1)[1], "127.0.0.1"
        routes = (
            f"{FAST}nodes: {{n1: {{address: {host}}}}}\nbackends:\n  big:\n    node: n1\n    launch:\n"
            f"      command: vllm serve org/big --served-model-name big --port {port} --max-model-len 131072"
            " --max-num-seqs 8\n    profiles: {latency: {max-model-len: 200000, max-num-seqs: 4}}\n"
            "modes:\n  ds4: [big]\n  ds4-long: {backends: [big], profiles: {big: latency}}\n"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("big")
            state = gateway.gateway.fleet["big"]
            for mode, window, slots in (("ds4-long", 200000, 4), ("ds4", 131072, 8)):
                await gateway.gateway.put_mode_in_force(mode)
                told = (await gateway.client.get("/status")).json()["backends"]["big"]
                assert (told["window"], told["slots"], told["state"]) == (window, slots, "ready")
                assert gateway.gateway.fleet["big"] is state
                assert (await gateway.client.get("/v1/models/big")).json()["max_model_len"] == window


# -- kept over a restart ----------------------------------------------------------------------------------------------


async def test_the_mode_in_force_survives_a_restart(tmp_path: Path) -> None:
    async with sparks(data=tmp_path) as s:
        await s.switch("ds4")
    async with sparks(data=tmp_path) as s:
        assert ((await s.status())["mode"], s.gateway.state("qwen36")) == ("ds4", State.PARKED)
    assert kept_in(tmp_path) == ["mode.json"], "written whole, or not at all"


def kept_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("mode*"))


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (b"{", "mode.json cannot be read ("),
        (b'{"mode": 7, "at": 1}', "mode.json cannot be read ("),
        (b'{"mode": "", "at": 1}', "mode.json is not valid"),
        (b"\x00" * 70_000, "mode.json cannot be read ("),
        (json.dumps({"mode": "old", "at": 1}).encode(), "has no mode 'old': the first one, 'daily', is in force"),
    ],
    ids=["cut", "another type", "no name", "too long", "a mode that is gone"],
)
async def test_a_bad_or_old_choice_leaves_the_first_mode_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: bytes, said: str
) -> None:
    (tmp_path / "mode.json").write_bytes(kept)
    async with sparks(data=tmp_path) as s:
        assert (await s.status())["mode"] == "daily"
        await s.switch("ds4")
    assert any(said in record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert json.loads((tmp_path / "mode.json").read_bytes())["mode"] == "ds4"


async def test_a_folder_that_cannot_be_written_does_not_stop_the_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sparks(data=tmp_path) as s:
        (tmp_path / "mode.json").mkdir()  # cannot be replaced by a file
        await s.switch("ds4")
        assert (await s.status())["mode"] == "ds4"
    assert "mode.json cannot be written" in caplog.text


# -- edits ------------------------------------------------------------------------------------------------------------


async def test_edits_of_the_mode_in_force_take_effect(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    async with sparks(file=file) as s, edited(s.gateway, file) as e:
        await s.gateway.until_ready("qwen36")
        await s.switch("ds4")
        added = await e.edit("ds4: [ds4]", "ds4: [ds4, qwen8b]")
        assert "~ modes.ds4" in added.reason
        await s.gateway.until_ready("qwen8b", "ds4")
        assert of_modes(s.gateway) == [("daily", "ds4", "chosen")], "the same mode"

        await e.edit("ds4: [ds4, qwen8b]", "large: [ds4, qwen8b]")
        assert of_modes(s.gateway)[1:] == [("ds4", "large", "routes.yaml was edited")]
        assert s.gateway.state("ds4") is State.READY, "a new name changes nothing else"

        await e.edit(", large: [ds4, qwen8b]", "")
        assert of_modes(s.gateway)[2:] == [
            ("large", "daily", f"{file} has no mode 'large': the first one, 'daily', is in force")
        ]
        assert s.gateway.state("ds4") is State.PARKED
        await s.gateway.until_ready("qwen36")

        await e.edit("qwen8b]}", "qwen8b], large: [ds4]}")
        assert of_modes(s.gateway)[3:] == [("daily", "large", "routes.yaml was edited")]

        await e.save(e.text.replace("modes: {daily: [qwen36, gemma4, qwen8b], large: [ds4]}\n", ""))
        assert (await s.status())["mode"] is None
        await s.gateway.until_ready("qwen36", "gemma4", "qwen8b", "ds4")


async def test_a_drain_holds_through_a_mode_that_does_not_contain_the_backend() -> None:
    async with sparks() as s:
        await s.gateway.until_ready("qwen36", "gemma4")
        await s.gateway.client.post("/admin/backends/qwen36/drain")
        await s.switch("ds4")
        assert s.gateway.state("qwen36") is State.PARKED
        await s.gateway.client.post("/admin/backends/gemma4/drain")
        await s.switch("daily")
        assert (s.gateway.state("qwen36"), s.gateway.state("gemma4")) == (State.DRAINING, State.DRAINING)
        for name in ("qwen36", "gemma4"):
            await s.gateway.client.post(f"/admin/backends/{name}/resume")
        await s.gateway.until_ready("qwen36", "gemma4")
