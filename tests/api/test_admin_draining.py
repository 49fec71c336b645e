"""A drain by an operator."""

from __future__ import annotations

import asyncio

import pytest

from gateway.domain.health_state import State
from tests.support import running_gateway
from tests.warming import FAST, ask, sim_of


async def test_a_drain_ends_what_runs_and_takes_nothing_new_until_it_is_resumed() -> None:
    sim, other = sim_of(), sim_of("b")
    async with sim.serve() as first, other.serve() as second:
        routes = (
            f"{FAST.replace('1h', 'none')}backends: {{a: {{url: '{first}'}}, b: {{url: '{second}'}}}}\n"
            "aliases: {chain: [a, b]}\n"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            sim.fault("hang_before_content", count=1)
            running = asyncio.create_task(ask(gateway, "chain"))
            await sim.wait_inflight(1)
            drained = (await gateway.client.post("/admin/backends/a/drain")).json()
            assert drained == {
                "backend": "a", "state": "draining", "reason": "drained by an operator", "inflight": 1
            }  # fmt: skip
            spilled = await ask(gateway, "chain")
            assert (spilled.headers["x-gateway-backend"], spilled.headers["x-gateway-fallback"]) == ("b", "draining")
            refused = (await ask(gateway, "a")).json()["error"]
            assert refused["code"] == "no_backend_available"
            assert "a is draining" in refused["message"]
            sim.clear()
            assert (await running).headers["x-gateway-backend"] == "a", "what ran there has ended there"
            assert gateway.state("a") is State.DRAINING
            assert gateway.metric("gateway_backend_state", backend="a", state="draining") == 1
            resumed = (await gateway.client.post("/admin/backends/a/resume")).json()
            assert (resumed["state"], resumed["inflight"]) == ("ready", 0)
            assert (await ask(gateway, "chain")).headers["x-gateway-backend"] == "a"


@pytest.mark.parametrize("action", ["drain", "resume"])
async def test_draining_is_for_those_who_may_probe(action: str) -> None:
    sim = sim_of()
    async with sim.serve() as url:
        keys = "clients: {ops: {key: ops-key-1, admin: true}, agent: {key: agent-key-2}}"
        async with running_gateway(f"backends: {{a: {{url: '{url}'}}}}\n{keys}") as gateway:
            path = f"/admin/backends/a/{action}"
            found = []
            for key in ("nobody", "agent-key-2", "ops-key-1"):
                reply = await gateway.client.post(path, headers={"authorization": f"Bearer {key}"})
                found.append(reply.status_code)
            assert found == [401, 403, 200]
            missing = await gateway.client.post(
                f"/admin/backends/b/{action}", headers={"authorization": "Bearer ops-key-1"}
            )
            assert missing.status_code == 404
