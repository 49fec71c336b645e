"""A batch says why its lines wait: nobody serves their alias, and which mode would."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.apps.batches.unserved import why_unserved
from gateway.config.load import load_text
from gateway.config.modes import in_mode
from gateway.routing.serving import all_ready
from simulator import SimVllm
from tests.apps.batches.filed import Filed, filed, jsonl, line
from tests.raw_client import chat
from tests.waiting import until_said


async def told(f: Filed, name: str) -> str | None:
    errors = (await f.client.batches.retrieve(name)).errors
    return str((errors.data or [])[0].message) if errors is not None else None


async def test_a_batch_whose_backend_is_away_says_so_until_it_is_back() -> None:
    sim = SimVllm("a", served=["m"])
    async with filed(sim, slots=1) as f:
        (backend,) = f.gateway.gateway.fleet.states
        await f.gateway.until_ready(backend)
        await f.gateway.client.post(f"/admin/backends/{backend}/drain", headers={"content-type": "application/json"})
        batch = await f.begin(jsonl([line("r1"), line("r2")]))

        async def waits() -> Any:
            return await told(f, batch.id)

        message = await until_said(waits, within=30)
        shown = (await f.gateway.client.get("/status")).json()["batches"][0]
        await f.gateway.client.post(f"/admin/backends/{backend}/resume", headers={"content-type": "application/json"})
        await f.gateway.until_ready(backend)
        after = (await f.gateway.client.get("/status")).json()["batches"][0]
        await f.client.batches.cancel(batch.id)
        await f.ended(batch)
    assert message == f"Nobody serves 'chat' now: {backend} is draining."
    assert shown["waits"] == message
    assert after["waits"] is None


async def test_the_mode_that_has_the_backend_is_named() -> None:

    text = """
backends: {a: {url: "http://10.0.0.1:8001"}, b: {url: "http://10.0.0.2:8001"}}
aliases: {one: [a], judge: [b]}
modes: {day: [a], judges: [b]}
"""
    snapshot = in_mode(load_text(text, "routes.yaml", {}).snapshot, "day")
    states = all_ready(snapshot)
    said = why_unserved(snapshot, states, ["one", "judge", "nope"], 0.0)
    assert said == "Nobody serves 'judge' now: b is parked. Mode judges has it: gateway fleet switch judges."


async def test_a_budget_that_is_spent_is_named() -> None:
    keys = 'clients: {one: {key: "sk-one-0123456789", rpm: 1}}'
    async with filed(SimVllm("a", served=["m"]), top=keys, slots=1) as f:
        one = f.as_client("sk-one-0123456789")
        batch = await f.begin(jsonl([line(f"r{n}") for n in range(5)]), one)

        async def waits() -> Any:
            errors = (await one.batches.retrieve(batch.id)).errors
            return next((e for e in errors.data or [] if e.code == "waiting_for_limit"), None) if errors else None

        why = await until_said(waits, within=30)
        await one.batches.cancel(batch.id)
        done = await f.ended(batch, one)
    assert "rpm" in why.message
    assert done.request_counts is not None
    assert (done.request_counts.failed, done.error_file_id) == (0, None)


async def test_a_batch_that_waits_behind_others_says_so() -> None:
    sim = SimVllm("a", served=["m"])
    async with filed(sim, slots=1) as f:
        sim.fault("hang_before")
        asked = asyncio.create_task(f.gateway.client.post("/v1/chat/completions", json=chat("chat")))
        await sim.wait_inflight(1)
        batch = await f.begin(jsonl([line("r1"), line("r2")]))

        async def waits() -> Any:
            return await told(f, batch.id)

        why = await until_said(waits, within=30)
        sim.clear()
        done = await f.ended(batch)
        assert (await asked).status_code == 200
    assert why == "1 line waits for a free slot: interactive requests go first."
    assert (done.request_counts and done.request_counts.completed, done.errors) == (2, None)


async def test_lines_that_were_cancelled_are_no_failures() -> None:
    """Neither those at a backend, nor those that wait for one, nor those that have not begun."""
    sim = SimVllm("a", served=["m"])
    async with filed(sim, slots=2) as f:
        sim.fault("hang_before")
        batch = await f.begin(jsonl([line(f"r{n}") for n in range(20)]))
        await sim.wait_inflight(2)
        await f.client.batches.cancel(batch.id)
        done = await f.ended(batch)
        counts = done.request_counts
        assert counts is not None
        assert (done.status, counts.completed, counts.failed, counts.total) == ("cancelled", 0, 0, 20)
        assert done.error_file_id is None
        assert f.gateway.metric("gateway_batch_lines_total", result="failed") == 0
        failed = (await f.gateway.client.get("/admin/requests?outcome=failed")).json()["requests"]
        assert failed == []
