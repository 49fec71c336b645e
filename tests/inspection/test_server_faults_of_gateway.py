"""5xx answers that are no failures: the client gets its mistake as a 4xx, and no backend is held to be unwell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.health_state import State
from simulator import SimVllm
from simulator.faults import Fault
from tests.raw_client import chat
from tests.scripted import raw_post
from tests.support import RunningGateway, from_clients, running_gateway

ERRORS = Path(__file__).parents[1] / "data" / "errors" / "llama-server"
CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"


def fault(name: str, **more: Any) -> Fault:
    kept = json.loads((ERRORS / f"{name}.json").read_text())
    return Fault("status", status=kept["status"], body=json.loads(kept["body"]), **more)


def well(gateway: RunningGateway) -> bool:
    health = gateway.gateway.fleet["a"].health
    return (health.state, health.fails) == (State.READY, 0)


@pytest.mark.parametrize("name", ["cut_arguments", "lone_surrogate", "bad_tool", "embeddings_over_batch"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_mistake_of_the_client_is_told_as_its_own_and_tried_once(name: str, stream: bool) -> None:
    first, second = SimVllm("first"), SimVllm("second")
    async with first.serve() as one, second.serve() as two:
        routes = f"backends: {{a: {{url: '{one}'}}, b: {{url: '{two}'}}}}\naliases: {{chain: [a, b]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            first.faults.add(fault(name))
            for _ in range(4):
                answer = await gateway.client.post(CHAT, json=chat("chain", stream=stream))
                assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
            assert (well(gateway), from_clients(second.requests)) == (True, [])


async def test_a_server_without_embeddings_is_left_out_for_embeddings_only() -> None:
    sim = SimVllm("first")
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        sim.faults.add(fault("no_embeddings", path=EMBEDDINGS))
        for _ in range(2):
            answer = await gateway.client.post(EMBEDDINGS, json={"model": "a", "input": "hi"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "input_unsupported")
        assert len(from_clients(sim.requests)) == 1
        assert (await gateway.client.post(CHAT, json=chat("a"))).status_code == 200
        assert well(gateway)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_full_memory_is_a_pause_and_the_same_server_answers_after_it(stream: bool) -> None:
    sim = SimVllm("first")
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        sim.faults.add(fault("pool_full", count=1))
        answer = await gateway.client.post(CHAT, json=chat("a", stream=stream))
        assert (answer.status_code, len(from_clients(sim.requests))) == (200, 2)
        assert well(gateway)


async def test_a_full_memory_in_the_middle_of_a_stream_breaks_it_and_harms_nobody() -> None:
    sim = SimVllm("first")
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        sim.faults.add(Fault("error_event", after=2, count=1, body="Context size has been exceeded."))
        before = len(sim.requests)
        answer = await raw_post(gateway.url, chat("a", stream=True))
        assert b"stream_interrupted" in answer.body
        assert gateway.gateway.fleet["a"].cooldown_until > 0
        assert well(gateway)
        assert (await gateway.client.post(CHAT, json=chat("a"))).status_code == 200
        assert len(sim.requests) == before + 2  # and no harmless request: nobody is suspected
