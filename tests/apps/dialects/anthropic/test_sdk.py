"""The anthropic SDK against the gateway: what its users meet, answers and exceptions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

from simulator import SimVllm
from tests.support import RunningGateway, running_gateway

KEY = "a-client-key"
ASK: Any = {"model": "main", "max_tokens": 200}
QUESTION: Any = [{"role": "user", "content": "What is 12*17?"}]
WEATHER: Any = [
    {
        "name": "get_weather",
        "description": "The weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]
IN_OSLO: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]


@dataclass
class Stage:
    """One chat backend, the gateway, and a client of it with a good key."""

    chat: SimVllm
    gateway: RunningGateway

    def client(self, key: str = KEY) -> AsyncAnthropic:
        http = DefaultAsyncHttpxClient(trust_env=False)
        return AsyncAnthropic(base_url=self.gateway.url, api_key=key, max_retries=0, http_client=http)


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


async def test_a_chat_has_thoughts_and_text(stage: Stage) -> None:
    async with stage.client() as client:
        message = await client.messages.create(messages=QUESTION, **ASK)
    thought, text = message.content
    assert (thought.type, text.type) == ("thinking", "text")
    assert text.type == "text"
    assert text.text.strip() == "12*17 is 204."
    assert (message.model, message.stop_reason) == ("main", "end_turn")
    assert message.usage.input_tokens > 0
    assert message.usage.output_tokens > 0
    assert message._request_id is not None
    assert message.id == "msg_" + message._request_id


async def test_a_stream_says_what_an_answer_in_one_piece_says(stage: Stage) -> None:
    async with stage.client() as client:
        whole = await client.messages.create(messages=QUESTION, **ASK)
        async with client.messages.stream(messages=QUESTION, **ASK) as stream:
            pieces = [text async for text in stream.text_stream]
            streamed = await stream.get_final_message()
    assert len(pieces) > 1
    assert [block.model_dump() for block in streamed.content] == [block.model_dump() for block in whole.content]
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.input_tokens == whole.usage.input_tokens
    assert streamed.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_weather"}])
async def test_a_tool_is_called_and_its_result_is_read(stage: Stage, choice: Any) -> None:
    async with stage.client() as client:
        async with client.messages.stream(messages=IN_OSLO, tools=WEATHER, tool_choice=choice, **ASK) as stream:
            asked = await stream.get_final_message()
        assert asked.stop_reason == "tool_use"
        (call,) = [block for block in asked.content if block.type == "tool_use"]
        assert (call.name, call.input) == ("get_weather", {"city": "Oslo"})
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        told: Any = [*IN_OSLO, {"role": "assistant", "content": asked.content}, {"role": "user", "content": [result]}]
        answer = await client.messages.create(messages=told, tools=WEATHER, **ASK)
    assert answer.content[-1].type == "text"
    assert answer.content[-1].text.strip() == "The tool answered: rain"


async def test_no_tool_is_called_where_none_may_be(stage: Stage) -> None:
    async with stage.client() as client:
        message = await client.messages.create(messages=IN_OSLO, tools=WEATHER, tool_choice={"type": "none"}, **ASK)
    assert "tool_use" not in {block.type for block in message.content}


async def test_thinking_can_be_switched_off(stage: Stage) -> None:
    async with stage.client() as client:
        message = await client.messages.create(messages=QUESTION, thinking={"type": "disabled"}, **ASK)
    assert [block.type for block in message.content] == ["text"]


async def test_a_short_limit_ends_the_answer_and_says_so(stage: Stage) -> None:
    async with stage.client() as client:
        message = await client.messages.create(model="main", max_tokens=3, messages=QUESTION)
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 3


async def test_a_stop_sequence_is_named(stage: Stage) -> None:
    question: Any = [{"role": "user", "content": "Say 20 words"}]
    async with stage.client() as client:
        message = await client.messages.create(messages=question, stop_sequences=["light"], **ASK)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "light")


async def test_an_answer_keeps_to_a_schema(stage: Stage) -> None:
    schema: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    config: Any = {"format": {"type": "json_schema", "schema": schema}}
    async with stage.client() as client:
        message = await client.messages.create(messages=IN_OSLO, output_config=config, **ASK)
    assert message.content[-1].type == "text"
    assert message.content[-1].text.strip() == '{"city": "Oslo"}'


async def test_tokens_are_counted_as_the_answer_counts_them(stage: Stage) -> None:
    async with stage.client() as client:
        counted = await client.messages.count_tokens(model="main", messages=IN_OSLO, tools=WEATHER)
        message = await client.messages.create(messages=IN_OSLO, tools=WEATHER, **ASK)
    assert counted.input_tokens == message.usage.input_tokens


@pytest.mark.parametrize(
    ("key", "asked", "error", "words"),
    [
        (KEY, {"model": "nobody"}, anthropic.NotFoundError, "The model 'nobody' does not exist"),
        (KEY, {"model": "secret"}, anthropic.PermissionDeniedError, "may not use 'secret'"),
        ("wrong", {}, anthropic.AuthenticationError, "not one of the gateway's `clients`"),
        (KEY, {"messages": []} | {"system": 7}, anthropic.BadRequestError, "`system` must be a string"),
        (KEY, {"messages": [{"role": "user", "content": "word " * 200_000}]}, anthropic.BadRequestError, "too long: "),
    ],
    ids=["model", "alias", "key", "body", "too long"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_error_is_the_exception_that_the_sdk_has_for_it(
    stage: Stage, key: str, asked: dict[str, Any], error: type[anthropic.APIStatusError], words: str, stream: bool
) -> None:
    async with stage.client(key) as client:
        with pytest.raises(error) as raised:
            await client.messages.create(**({"messages": QUESTION, **ASK} | asked), stream=stream)
    assert words in raised.value.message
    assert raised.value.request_id is not None


async def test_a_stream_that_breaks_is_an_exception(stage: Stage) -> None:
    stage.chat.fault("die_mid", after=4)
    silent: Any = {"type": "disabled"}
    with pytest.raises(anthropic.APIStatusError, match="upstream connect error"):
        async with (
            stage.client() as client,
            client.messages.stream(messages=QUESTION, thinking=silent, **ASK) as stream,
        ):
            await stream.until_done()
