"""The openai SDK's `responses` against the gateway: what its users meet, answers and exceptions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import openai
import pydantic
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from simulator import SimVllm
from tests.support import RunningGateway, running_gateway

KEY = "a-client-key"
QUESTION = "What is 12*17?"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
IN_OSLO: Any = {"role": "user", "content": "What is the weather in Oslo?"}


@dataclass
class Stage:
    """One chat backend, the gateway, and a client of it with a good key."""

    chat: SimVllm
    gateway: RunningGateway

    def client(self, key: str = KEY) -> AsyncOpenAI:
        http = DefaultAsyncHttpxClient(trust_env=False)
        return AsyncOpenAI(base_url=f"{self.gateway.url}/v1", api_key=key, max_retries=0, http_client=http)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    chat = SimVllm(
        name="chat",
        served=["some/model"],
        context=32768,
        tool_parser="hermes",
        reasoning_parser="qwen3",
        prefill=1e7,
        decode=1e4,
    )
    async with chat.serve(port=0) as url:
        routes = f"""
backends: {{chat: {{url: "{url}", tool_parser: hermes, reasoning_parser: qwen3}}}}
aliases: {{main: [chat], secret: [chat]}}
clients: {{agent: {{key: "{KEY}", aliases: [main]}}}}
"""
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("chat")
            yield Stage(chat, gateway)


async def test_a_response_has_thoughts_and_text(stage: Stage) -> None:
    async with stage.client() as client:
        response = await client.responses.create(model="main", input=QUESTION, instructions="Be short.")
    thought, message = response.output
    assert (thought.type, message.type) == ("reasoning", "message")
    assert response.output_text.strip() == "12*17 is 204."
    assert (response.model, response.status, response.instructions) == ("main", "completed", "Be short.")
    assert response._request_id is not None
    assert response.id == "resp_" + response._request_id
    assert response.usage is not None
    assert response.usage.input_tokens > 0
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


async def test_a_stream_says_what_an_answer_in_one_piece_says(stage: Stage) -> None:
    ask: Any = {"model": "main", "input": QUESTION, "reasoning": {"summary": "auto"}}
    async with stage.client() as client:
        whole = await client.responses.create(**ask)
        async with client.responses.stream(**ask) as stream:
            events = [event async for event in stream]
            streamed = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events].count("response.output_text.delta") > 1
    assert streamed.output_text == whole.output_text
    assert [item.type for item in streamed.output] == [item.type for item in whole.output] == ["reasoning", "message"]
    assert streamed.usage == whole.usage
    assert streamed.status == "completed"
    assert whole.output[0].type == "reasoning"
    assert whole.output[0].summary[0].text


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "name": "get_weather"}])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_tool_is_called_and_its_result_is_read(stage: Stage, choice: Any, streamed: bool) -> None:
    ask: Any = {"model": "main", "tools": [WEATHER], "store": False, "include": ["reasoning.encrypted_content"]}
    async with stage.client() as client:
        if streamed:
            async with client.responses.stream(input=[IN_OSLO], tool_choice=choice, **ask) as stream:
                asked: Any = await stream.get_final_response()
        else:
            asked = await client.responses.create(input=[IN_OSLO], tool_choice=choice, **ask)
        (call,) = [item for item in asked.output if item.type == "function_call"]
        assert (call.name, call.arguments.replace(" ", "")) == ("get_weather", '{"city":"Oslo"}')
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        told = [IN_OSLO, *(item.to_dict() for item in asked.output), result]
        answer = await client.responses.create(input=told, **ask)
    assert answer.output_text.strip() == "The tool answered: rain"


class Sum(pydantic.BaseModel):
    result: int


async def test_an_answer_has_the_form_that_was_asked_for(stage: Stage) -> None:
    async with stage.client() as client:
        response = await client.responses.parse(model="main", input=QUESTION, text_format=Sum)
    assert isinstance(response.output_parsed, Sum)


async def test_a_short_limit_ends_the_answer_and_says_so(stage: Stage) -> None:
    async with stage.client() as client:
        response = await client.responses.create(model="main", input=QUESTION, max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


async def test_thinking_can_be_switched_off(stage: Stage) -> None:
    async with stage.client() as client:
        response = await client.responses.create(model="main", input=QUESTION, reasoning={"effort": "none"})
    assert response.status == "completed"


async def test_refusals_are_the_exceptions_of_the_sdk(stage: Stage) -> None:
    async with stage.client() as client:
        with pytest.raises(openai.BadRequestError) as kept:
            await client.responses.create(model="main", input=QUESTION, previous_response_id="resp_1")
        search: Any = {"type": "web_search"}
        with pytest.raises(openai.BadRequestError) as foreign:
            await client.responses.create(model="main", input=QUESTION, tools=[search], tool_choice=search)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="nobody", input=QUESTION)
        with pytest.raises(openai.PermissionDeniedError):
            await client.responses.create(model="secret", input=QUESTION)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_1")
    assert (kept.value.code, kept.value.param) == ("input_unsupported", "previous_response_id")
    assert "'web_search'" in foreign.value.message
    async with stage.client("wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.responses.create(model="main", input=QUESTION)


async def read(answer: AsyncIterator[Any], types: list[str]) -> None:
    async for event in answer:
        types.append(event.type)


async def test_a_broken_stream_never_looks_complete(stage: Stage) -> None:
    stage.chat.fault("die_mid", after=4)
    types: list[str] = []
    silent = {"chat_template_kwargs": {"enable_thinking": False}}
    async with stage.client() as client:
        answer = await client.responses.create(model="main", input=QUESTION, stream=True, extra_body=silent)
        with pytest.raises(openai.APIError, match="backend reset"):
            await read(answer, types)
    assert types[0] == "response.created"
    assert not {"response.completed", "response.incomplete"} & set(types)
