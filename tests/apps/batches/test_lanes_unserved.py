"""A batch says why its lines wait: nobody serves their alias, and which mode would."""

from __future__ import annotations

from typing import Any

from gateway.apps.batches.lanes import why_unserved
from gateway.config.load import load_text
from gateway.config.modes import in_mode
from gateway.routing.serving import all_ready
from simulator import SimVllm
from tests.apps.batches.filed import Filed, filed, jsonl, line
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
