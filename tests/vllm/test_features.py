"""What clients use of vLLM, through the gateway, with the openai SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from tests.support import RunningGateway, running_gateway

from .asks import CALL, WEATHER, script
from .servers import VllmServer

HI: Any = [{"role": "user", "content": "hi"}]
THOUGHT = "<think>hm</think>Hello there"


@pytest.fixture
async def gateway(tools: VllmServer) -> AsyncIterator[RunningGateway]:
    async with running_gateway(f"backends: {{{tools.routes('a')}}}\naliases: {{front: [a]}}") as running:
        await running.until_ready("a")
        yield running


@pytest.fixture
async def sdk(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def extra(text: str, **further: Any) -> dict[str, Any]:
    return {**script(text), **further}


async def test_window_and_version_are_read_from_it(
    gateway: RunningGateway, sdk: openai.AsyncOpenAI, tools: VllmServer, http: httpx.AsyncClient
) -> None:
    cards = {card.id: card.model_dump() async for card in sdk.models.list()}
    assert cards["front"]["max_model_len"] == cards["front"]["context_length"] == 2048
    state = gateway.gateway.fleet["a"]
    told = (await http.get(f"{tools.url}/version")).json()["version"]
    assert told.startswith("0.")
    assert (state.reported.version, state.model) == (told, "tiny")


async def test_thoughts_are_in_their_own_field(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model="front", messages=HI, extra_body=extra(THOUGHT))
    message = answer.choices[0].message
    assert (message.content, message.to_dict()["reasoning"]) == ("Hello there", "hm")
    assert answer.model == "front"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 5


async def test_streamed_thoughts_are_in_their_own_field(sdk: openai.AsyncOpenAI) -> None:
    content = reasoning = ""
    stream = await sdk.chat.completions.create(model="front", messages=HI, stream=True, extra_body=extra(THOUGHT))
    async for chunk in stream:
        assert chunk.model == "front"
        assert chunk.usage is None
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += str(choice.delta.to_dict().get("reasoning") or "")
    assert (content, reasoning) == ("Hello there", "hm")


async def test_the_usage_of_a_stream_comes_when_asked_for(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model="front", messages=HI, stream=True, stream_options={"include_usage": True}, extra_body=extra(THOUGHT)
    )
    last = [chunk async for chunk in stream][-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 5


async def test_a_clients_request_id_becomes_the_answers_id(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.with_raw_response.create(
        model="front", messages=HI, extra_headers={"x-request-id": "mine-7"}, extra_body=extra(THOUGHT)
    )
    assert answer.headers["x-request-id"] == "mine-7"
    assert answer.parse().id == "chatcmpl-mine-7"


async def test_several_choices_and_log_probabilities_come_through(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model="front", messages=HI, n=2, logprobs=True, top_logprobs=1, extra_body=extra(THOUGHT)
    )
    assert [c.message.content for c in answer.choices] == ["Hello there"] * 2
    assert all(c.logprobs is not None and c.logprobs.content for c in answer.choices)


async def test_completions_with_log_probabilities(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model="front", prompt="hi", logprobs=1, extra_body=extra("Hello there"))
    assert answer.choices[0].text == "Hello there"
    assert answer.choices[0].logprobs is not None
    stream = await sdk.completions.create(model="front", prompt="hi", stream=True, extra_body=extra("Hello there"))
    assert "".join([c.choices[0].text async for c in stream]) == "Hello there"


async def test_token_ids_come_when_asked_for(sdk: openai.AsyncOpenAI) -> None:
    body = extra(THOUGHT, return_token_ids=True)
    answer = await sdk.chat.completions.create(model="front", messages=HI, extra_body=body)
    assert answer.to_dict()["prompt_token_ids"]
    assert answer.choices[0].to_dict()["token_ids"]


async def test_chat_template_kwargs_reach_the_template(gateway: RunningGateway, sdk: openai.AsyncOpenAI) -> None:
    """Without thinking the parser takes all text for the answer; the Rust front end's takes text without tags for it
    always."""
    body = extra("Hello there", chat_template_kwargs={"enable_thinking": False})
    answer = await sdk.chat.completions.create(model="front", messages=HI, extra_body=body)
    assert answer.choices[0].message.content == "Hello there"
    answer = await sdk.chat.completions.create(model="front", messages=HI, extra_body=extra("Hello there"))
    rust = gateway.gateway.fleet["a"].reported.front_end == "rust"
    assert answer.choices[0].message.to_dict().get("content" if rust else "reasoning") == "Hello there"


async def test_structured_outputs_and_sampling_fields_are_obeyed(sdk: openai.AsyncOpenAI) -> None:
    body = {"chat_template_kwargs": {"enable_thinking": False}, "structured_outputs": {"choice": ["red", "blue"]}}
    answer = await sdk.chat.completions.create(model="front", messages=HI, extra_body=body)
    assert answer.choices[0].message.content in ("red", "blue")
    greedy = {"top_k": 1, "max_tokens": 8, "chat_template_kwargs": {"enable_thinking": False}}
    said = [await sdk.chat.completions.create(model="front", messages=HI, extra_body=greedy) for _ in range(3)]
    assert len({answer.choices[0].message.content for answer in said}) == 1
    with pytest.raises(openai.BadRequestError, match="top_k"):
        await sdk.chat.completions.create(model="front", messages=HI, extra_body={"top_k": -7})


async def test_calls_arrive_where_the_choice_is_null(sdk: openai.AsyncOpenAI) -> None:
    body = {**extra("<think>hm</think>" + CALL % "Oslo"), "tool_choice": None}
    answer = await sdk.chat.completions.create(model="front", messages=HI, tools=[WEATHER], extra_body=body)
    assert answer.choices[0].message.tool_calls is not None


@pytest.mark.parametrize("cities", [["Oslo"], ["Oslo", "Rome"]], ids=["one call", "parallel calls"])
async def test_tool_calls_arrive_as_tool_calls(sdk: openai.AsyncOpenAI, cities: list[str]) -> None:
    body = extra("<think>hm</think>" + "\n".join(CALL % city for city in cities))
    wanted = [("get_weather", f'{{"city": "{city}"}}') for city in cities]

    answer = await sdk.chat.completions.create(model="front", messages=HI, tools=[WEATHER], extra_body=body)
    choice: Any = answer.choices[0]
    assert [(c.function.name, c.function.arguments) for c in choice.message.tool_calls] == wanted
    assert (choice.finish_reason, choice.message.to_dict()["reasoning"]) == ("tool_calls", "hm")

    calls: dict[int, list[str]] = {}
    ends = set()
    async for chunk in await sdk.chat.completions.create(
        model="front", messages=HI, tools=[WEATHER], stream=True, extra_body=body
    ):
        for streamed in chunk.choices:
            ends.add(streamed.finish_reason)
            for call in streamed.delta.tool_calls or []:
                name, arguments = calls.setdefault(call.index, ["", ""])
                assert call.function is not None
                calls[call.index] = [name + (call.function.name or ""), arguments + (call.function.arguments or "")]
    assert [tuple(call) for call in calls.values()] == wanted
    assert ends == {None, "tool_calls"}


async def test_a_tool_result_goes_back_into_the_conversation(sdk: openai.AsyncOpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    history: Any = [
        *HI,
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees"},
    ]
    answer = await sdk.chat.completions.create(
        model="front", messages=history, tools=[WEATHER], extra_body=extra("<think>ok</think>It is cold.")
    )
    assert answer.choices[0].message.content == "It is cold."
