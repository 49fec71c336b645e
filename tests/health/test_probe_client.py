"""How backends are asked by the control plane."""

from __future__ import annotations

import asyncio
from random import Random

from gateway.config.load import load_text
from gateway.health.probe_client import NoAnswer, ProbeClient
from simulator import SimVllm
from tests.waiting import pace


async def test_probes_that_are_given_up_leave_room_for_others() -> None:
    random, sim, client = Random(1), SimVllm("a"), ProbeClient()
    async with sim.serve() as url:
        backend = load_text(f"backends: {{a: {{url: '{url}'}}}}", "routes.yaml", {}).snapshot.backends["a"]
        for _ in range(400):  # anywhere in their life
            asked = [asyncio.create_task(client.get(backend, path)) for path in ("/health", "/metrics")]
            await pace(random.random() * 0.004)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        answer = await client.get(backend, "/health")
        await client.close()
    assert not isinstance(answer, NoAnswer), answer.reason
    assert answer.status == 200
