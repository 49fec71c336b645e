"""`/v1/responses` of a simulated vLLM, and through the gateway, with the openai SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from simulator import SimVllm
from tests.apps.dialects.responses.test_sdk import IN_OSLO, QUESTION, WEATHER
from tests.support import RunningGateway, running_gateway

ROUTES = """
backends:
  first: {{url: "{first}", tool_parser: hermes, reasoning_parser: qwen3}}
  second: {{url: "{second}", tool_parser: hermes, reasoning_parser: qwen3, responses: chat}}
aliases: {{main: [first, second]}}
"""


@dataclass
class Stage:
    """`first` has `/v1/responses`, `second` is asked as a chat."""

    first: SimVllm
    second: SimVllm
    gateway: RunningGateway
    direct: AsyncOpenAI
    client: AsyncOpenAI


def sdk(url: str) -> AsyncOpenAI:
    http = DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, http_client=http)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        sims = [
            SimVllm(name, served=["model"], tool_parser="hermes", reasoning_parser="qwen3", responds=name == "first")
            for name in ("first", "second")
        ]
        first, second = [await stack.enter_async_context(sim.serve(port=0)) for sim in sims]
        gateway = await stack.enter_async_context(running_gateway(ROUTES.format(first=first, second=second)))
        await gateway.until_ready("first", "second")
        clients = [await stack.enter_async_context(sdk(url)) for url in (first, gateway.url)]
        yield Stage(sims[0], sims[1], gateway, *clients)


def paths(sim: SimVllm) -> Iterator[str]:
    return (record.path for record in sim.requests if record.method == "POST")


async def final(client: AsyncOpenAI, *, stream: bool, **asked: Any) -> Any:
    if not stream:
        return await client.responses.create(**asked)
    events = [event async for event in await client.responses.create(stream=True, **asked)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text
    return events[-1].response


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_gateway_passes_on_what_the_server_says(stage: Stage, stream: bool) -> None:
    own = await final(stage.direct, stream=stream, model="model", input=QUESTION)
    passed = await final(stage.client, stream=stream, model="main", input=QUESTION)
    assert passed.output_text == own.output_text
    assert [item.type for item in passed.output] == [item.type for item in own.output] == ["reasoning", "message"]
    assert passed.usage == own.usage
    assert passed.output[1].id.startswith("msg_chatcmpl-tool-")
    assert set(paths(stage.first)) == {"/v1/responses"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_tool_loop(stage: Stage, stream: bool) -> None:
    asked: Any = {"model": "main", "tools": [WEATHER], "stream": stream}
    made = await final(stage.client, **asked, input=[IN_OSLO])
    call = next(item for item in made.output if item.type == "function_call")
    assert (call.name, call.status) == ("get_weather", "completed")
    items = [item.model_dump(exclude_none=True) for item in made.output]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain, 9 degrees."}
    ended = await final(stage.client, **asked, input=[IN_OSLO, *items, result])
    assert "Rain" in ended.output_text
    assert set(paths(stage.first)) == {"/v1/responses"}


async def test_a_server_that_dies_before_it_says_anything_is_followed_by_the_next(stage: Stage) -> None:
    stage.first.fault("die_mid", after=0)
    response = await final(stage.client, stream=True, model="main", input=QUESTION)
    assert response.output_text.strip() == "12*17 is 204."
    assert set(paths(stage.second)) == {"/v1/chat/completions"}


async def test_a_leaked_call_is_mended(stage: Stage) -> None:
    stage.first.fault("leak_tools")
    response = await final(stage.client, stream=True, model="main", input=[IN_OSLO], tools=[WEATHER])
    assert [item.type for item in response.output if item.type != "reasoning"] == ["function_call"]
