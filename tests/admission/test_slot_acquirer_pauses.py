"""How many pauses a request waits through that every backend asks for."""

from __future__ import annotations

import pytest

from tests.raw_client import chat
from tests.scripted import Turn, answer, json_answer, scripted
from tests.support import running_gateway

LIMITED = answer(b'{"error": {"message": "slow down"}}', "429 X", "application/json", "retry-after: 0.05")
MESSAGE = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
ROUTES = """
defaults: {{health: {{every: 1h}}}}
backends: {{a: {{url: "{url}"{keys}}}}}
"""


async def limited(turn: Turn) -> None:
    await turn.send(LIMITED)


async def well(turn: Turn) -> None:
    await turn.send(json_answer({"id": "1", "model": "m", "choices": [MESSAGE]}))


@pytest.mark.parametrize(("keys", "most"), [("", 3), (", queue: {pauses: 0}", 1), (", queue: {pauses: 1}", 2)])
async def test_after_so_many_pauses_the_client_gets_the_429(keys: str, most: int) -> None:
    async with scripted(limited) as a, running_gateway(ROUTES.format(url=a.url, keys=keys)) as gateway:
        await gateway.until_ready("a")
        reply = await gateway.client.post("/v1/chat/completions", json=chat("a"))
        assert reply.status_code == 429
        assert int(reply.headers["retry-after"]) >= 1
        assert len(a.turns) == most


async def test_a_backend_that_answers_after_two_pauses_is_waited_for() -> None:
    async with scripted(limited, limited, well) as a, running_gateway(ROUTES.format(url=a.url, keys="")) as gateway:
        await gateway.until_ready("a")
        reply = await gateway.client.post("/v1/chat/completions", json=chat("a"))
        assert (reply.status_code, len(a.turns)) == (200, 3)
