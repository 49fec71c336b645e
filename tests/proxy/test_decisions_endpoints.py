"""A request to another path is what it is, however often it comes with the same head."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.endpoints import CHAT, ENDPOINTS, MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE, Endpoint
from tests.proxy.house import House, house
from tests.raw_client import raw_client

# A body that each of them could read.
BODY = {
    "model": "chain",
    "messages": [{"role": "user", "content": "hi"}],
    "input": "hi",
    "prompt": "hi",
    "query": "hi",
    "documents": ["hi"],
    "max_tokens": 64,
    "stream": False,
}
OTHERS = [endpoint for endpoint in ENDPOINTS if endpoint is not CHAT]


async def asked(h: House, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    raw = json.dumps(body, separators=(",", ":")).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
    await h.client.send(head.encode() + b"content-length: %d\r\n\r\n" % len(raw) + raw)
    status, answer = await h.client.answer()
    return status, json.loads(answer)


@pytest.mark.parametrize("endpoint", OTHERS, ids=lambda endpoint: endpoint.name)
@pytest.mark.parametrize("anew", [False, True], ids=["one connection", "a new one for each"])
async def test_every_endpoint_answers_alike_however_often_it_is_asked(endpoint: Endpoint, anew: bool) -> None:
    async with house() as h:
        seen = set()
        for _ in range(6):
            if anew:
                async with raw_client(h.gateway.url) as h.client:
                    status, answer = await asked(h, f"/v1{endpoint.path}", BODY)
            else:
                status, answer = await asked(h, f"/v1{endpoint.path}", BODY)
            seen.add((status, tuple(answer), answer.get("type"), answer.get("object")))
        assert len(seen) == 1
        assert bool(h.kept) == (endpoint in (MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE)), "which is a chat for its backend"


@pytest.mark.parametrize(
    ("path", "more", "kind"),
    [
        ("/v1/messages", {}, "message"),
        ("/v1/responses", {"input": "hi"}, "response"),
    ],
)
async def test_messages_and_chats_in_turns_get_each_their_own_answers(
    path: str, more: dict[str, Any], kind: str
) -> None:
    async with house() as h:
        for _ in range(5):
            status, answer = await asked(
                h, path, {"model": "chain", "max_tokens": 64, **(more or {"messages": BODY["messages"]})}
            )
            assert (status, answer.get("type") or answer.get("object")) == (200, kind)
            await h.ask()
            assert (await h.client.answer())[0] == 200
            await h.gateway.until(h.gateway.idle)
        assert h.kept, "the chats"
