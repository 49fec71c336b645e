"""`timeouts.first_byte: none`: a request waits for its first content as long as it takes; a canary does not."""

from __future__ import annotations

import asyncio
from math import inf, isfinite

from gateway.health import probes as canary
from tests.scripted import Turn, json_answer, scripted
from tests.support import running_gateway

ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}


async def test_without_a_limit_the_first_content_may_take_for_ever() -> None:
    go = asyncio.Event()

    async def late(turn: Turn) -> None:
        await go.wait()
        await turn.send(json_answer(ANSWER))

    async with scripted(late) as backend:
        routes = f"backends: {{a: {{url: '{backend.url}', timeouts: {{first_byte: none}}}}}}"
        async with running_gateway(routes) as gateway:
            body = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
            asked = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=body))
            await gateway.until(lambda: bool(backend.turns))
            (request,) = gateway.gateway.active
            assert request.timer.budget == inf
            assert isfinite(canary.answer_budget(gateway.gateway.fleet["a"], {"max_tokens": 10}))
            go.set()
            assert (await asked).status_code == 200
