"""The shortest way through: one backend, one alias, one answer."""

from __future__ import annotations

from simulator import SimVllm
from tests.support import running_gateway


async def test_a_chat_is_answered_under_the_aliass_name() -> None:
    sim = SimVllm(name="a", served=["some/model"], context=32768, tool_parser="hermes")
    async with sim.serve(port=0) as url, running_gateway(f"backends: {{chat: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("chat")
        body = {"model": "chat", "messages": [{"role": "user", "content": "What is 12*17?"}]}
        reply = await gateway.client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200
        assert reply.json()["model"] == "chat"
        assert "204" in reply.json()["choices"][0]["message"]["content"]
        assert sim.requests[-1].json["model"] == "some/model"
