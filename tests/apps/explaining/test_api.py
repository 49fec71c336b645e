"""`POST /admin/explain`: the plan of the running gateway, to whom it concerns."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from simulator import SimVllm
from tests.support import RunningGateway, running_gateway

OPS, HERMES = "ops-key-1", "hermes-key-2"
CLIENTS = f"""
clients:
  ops: {{key: '{OPS}', admin: true}}
  hermes: {{key: '{HERMES}', local_only: true, on_unsupported: strip}}
"""
TOOLS = [{"type": "function", "function": {"name": "f"}}]


async def ask(gateway: RunningGateway, body: Any = None, **headers: str) -> httpx.Response:
    return await gateway.client.post("/admin/explain", json=body or {"alias": "chat"}, headers=headers)


def refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_what_is_up_and_what_was_learned_is_known_there() -> None:
    sim = SimVllm(name="a", served=["Qwen3.6-35B"], tool_parser=None)
    async with sim.serve() as url:
        down = 'b: {url: "http://127.0.0.1:9", tool_parser: hermes}'
        text = f"backends:\n  a: {{url: '{url}'}}\n  {down}\naliases: {{chat: [a, b]}}"
        async with running_gateway("defaults: {queue: {max_wait: 100ms}}\n" + text) as gateway:
            await gateway.until_ready("a")
            before = (await ask(gateway, {"alias": "chat", "tools": True})).json()
            assert before["order"] == ["a"]
            body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
            assert (await gateway.client.post("/v1/chat/completions", json=body)).status_code == 429
            after = (await ask(gateway, {"alias": "chat", "request": body})).json()
    assert (after["served"], after["order"], after["error"]["code"]) == (False, [], "backend_warming")
    a, b = (step["backends"][0] for step in after["steps"])
    assert (a["verdict"], a["kind"], a["family"]) == ("skip", "incapable", "Qwen3.6")
    assert "--tool-call-parser qwen3_xml" in a["reasons"][0]
    assert a["capabilities"]["tools"] == {"value": False, "from": "learned"}
    assert (b["verdict"], b["kind"]) == ("skip", "warming")
    assert after["request"]["tools"] == "auto"
    assert [request.path for request in sim.requests].count("/v1/chat/completions") == 1, "explaining asks no backend"


TEXT = """
backends:
  a: {url: "http://127.0.0.1:9", context: 4096, tool_parser: none}
  cloud: {engine: openai, url: "https://api.example.com", cloud: true, model: x, api_key: k}
aliases: {chat: {use: [a, cloud], also: [more]}}
"""


async def test_it_is_told_by_the_rules_of_a_client() -> None:
    async with running_gateway(TEXT + CLIENTS) as gateway:
        key = {"x-api-key": OPS}
        nobody = (await ask(gateway, {"alias": "more"}, **key)).json()
        hermes = (await ask(gateway, {"alias": "more", "client": "hermes"}, **key)).json()
    assert (nobody["alias"], nobody["order"]) == ("chat", ["cloud"])
    assert hermes["order"] == []
    assert hermes["steps"][1]["backends"][0]["kind"] == "local_only"


async def test_only_an_admin_is_told() -> None:
    async with running_gateway(TEXT + CLIENTS) as gateway:
        assert refused(await ask(gateway)) == (401, "invalid_api_key")
        assert refused(await ask(gateway, authorization=f"Bearer {HERMES}")) == (403, "admin_only")
        assert refused(await ask(gateway, authorization=f"Bearer {OPS}", origin="http://evil.example")) == (
            *(403, "foreign_origin"),
        )
        assert (await ask(gateway, authorization=f"Bearer {OPS}")).status_code == 200


async def test_without_clients_this_machine_alone_is_told() -> None:
    async with running_gateway(TEXT) as gateway:
        assert (await ask(gateway)).status_code == 200
        assert refused(await ask(gateway, host="gateway.example")) == (403, "admin_only")
        assert refused(await ask(gateway, origin="http://evil.example")) == (403, "foreign_origin")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"alias": "nope"}, "model_not_found", "model"),
        ({"tools": True}, "invalid_request_body", "alias"),
        ({"alias": "chat", "tokens": -1}, "invalid_request_body", "tokens"),
        ({"alias": "chat", "tokens": "many"}, "invalid_request_body", "tokens"),
        ({"alias": "chat", "client": "nobody"}, "invalid_request_body", "client"),
        ({"alias": "chat", "request": [1]}, "invalid_request_body", "request"),
        ([1], "invalid_request_body", None),
    ],
)
async def test_a_wrong_question_is_told_what_is_wrong(body: Any, code: str, param: str | None) -> None:
    async with running_gateway(TEXT) as gateway:
        error = (await ask(gateway, body)).json()["error"]
    assert (error["code"], error["param"]) == (code, param)


async def test_a_request_of_anthropics_api_is_read_as_such() -> None:
    async with running_gateway(TEXT) as gateway:
        tools = [{"name": "f", "input_schema": {"type": "object"}}]
        message = {"messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": {"type": "any"}}
        told = (await ask(gateway, {"alias": "chat", "request": message})).json()
        assert told["request"]["tools"] == "required"
        system = {"messages": message["messages"], "system": "Be brief.", "output_config": {"effort": "high"}}
        wish = (await ask(gateway, {"alias": "chat", "request": system})).json()
        assert (wish["request"]["thinking"], wish["request"]["thinking_is_a_wish"]) == ("on", True)
        broken = await ask(gateway, {"alias": "chat", "request": message | {"tool_choice": {"type": "some"}}})
        assert refused(broken) == (400, "invalid_request_body")
