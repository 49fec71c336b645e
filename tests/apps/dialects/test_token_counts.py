"""`/v1/responses/input_tokens`: what a response would be billed for, by the tokenizer of a backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from simulator import SimVllm
from tests.scripted import RawReply, raw_post
from tests.support import RunningGateway, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH, KEY = "/v1/responses/input_tokens", "a-key"
TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ROUTES = """
server: {{keep_responses: 1h, data: "{data}"}}
backends:
  a: {{url: "{a}"}}
  plain: {{url: "{plain}", engine: openai, model: m}}
aliases: {{one: [a], estimated: [plain]}}
clients: {{agent: {{key: {key}}}, narrow: {{key: narrow-key, aliases: [one]}}}}
"""


@dataclass
class Stage:
    gateway: RunningGateway
    sim: SimVllm

    async def ask(self, path: str = PATH, key: str = KEY, **body: Any) -> RawReply:
        headers = [f"authorization: Bearer {key}"]
        return await raw_post(self.gateway.url, {"model": "one", **body}, path, headers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    data: Path = tmp_path_factory.mktemp("data")
    sims = SimVllm("a", served=["m"]), SimVllm("plain", served=["m"], generic=True)
    async with AsyncExitStack() as stack:
        a, plain = [await stack.enter_async_context(sim.serve()) for sim in sims]
        routes = ROUTES.format(a=a, plain=plain, key=KEY, data=data)
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("a", "plain")
        yield Stage(gateway, sims[0])


@pytest.mark.parametrize(
    "asked",
    [{"input": "hi"}, {"input": "hi", "instructions": "Be brief. " * 20}, {"input": "hi", "tools": [TOOL]}],
    ids=["a word", "instructions", "tools"],
)
async def test_it_is_what_a_response_is_billed_for(stage: Stage, asked: dict[str, Any]) -> None:
    counted = await stage.ask(**asked)
    assert counted.json.keys() == {"object", "input_tokens"}
    assert (counted.json["object"], counted.headers["x-gateway-backend"]) == ("response.input_tokens", "a")
    response = await stage.ask("/v1/responses", **asked)
    assert counted.json["input_tokens"] == response.json["usage"]["input_tokens"]
    assert (await stage.ask("/responses/input_tokens", **asked)).json == counted.json


async def test_what_was_said_before_counts(stage: Stage) -> None:
    first = (await stage.ask("/v1/responses", input="Tell me a long story.")).json
    more = {"input": "Go on.", "previous_response_id": first["id"]}
    counted = (await stage.ask(**more)).json["input_tokens"]
    assert counted > (await stage.ask(input="Go on.")).json["input_tokens"]
    assert counted == (await stage.ask("/v1/responses", **more)).json["usage"]["input_tokens"]


async def test_the_sdk_reads_it(stage: Stage) -> None:
    http = DefaultAsyncHttpxClient(trust_env=False)
    async with AsyncOpenAI(base_url=stage.gateway.url + "/v1", api_key=KEY, max_retries=0, http_client=http) as sdk:
        counted = await sdk.responses.input_tokens.count(model="one", input="hi")
        assert counted.model_dump() == (await stage.ask(input="hi")).json


async def test_where_nobody_can_count_it_is_estimated(stage: Stage) -> None:
    reply = await stage.ask(model="estimated", input="word " * 1000)
    assert "x-gateway-backend" not in reply.headers
    assert 500 < reply.json["input_tokens"] < 3000


@pytest.mark.parametrize(
    ("body", "key", "status", "code"),
    [
        ({"input": "hi"}, "wrong", 401, "invalid_api_key"),
        ({"input": "hi", "model": "estimated"}, "narrow-key", 403, "model_not_allowed"),
        ({"input": "hi", "model": "nobody"}, KEY, 404, "model_not_found"),
        ({"input": 7}, KEY, 400, "invalid_request_body"),
        ({"input": "hi", "previous_response_id": "resp_none"}, KEY, 404, "not_found"),
        ({"input": "hi", "tools": [{"type": "web_search"}], "tool_choice": "required"}, KEY, 400, "input_unsupported"),
    ],
)
async def test_what_cannot_be_counted_is_refused(
    stage: Stage, body: dict[str, Any], key: str, status: int, code: str
) -> None:
    reply = await stage.ask(key=key, **body)
    assert (reply.status, reply.json["error"]["code"]) == (status, code)
    labels = {"alias": "", "backend": "", "endpoint": "input_tokens", "code": code}
    assert stage.gateway.metric("gateway_requests_total", **labels) >= 1
    assert stage.gateway.gateway.memory.used == 0
