"""llama-server behind the gateway, as a client with the openai SDK sees it, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from gateway.domain.health_state import State
from tests.raw_client import raw_client
from tests.vllm.turns import Client, client_on, turn_of
from tests.waiting import until_said

from .processes import RealServer
from .questions import (
    BOTH,
    BOTH_CALLS,
    COUNT,
    COUNT_SAID,
    NO_THOUGHTS,
    SING,
    THOUGHTS,
    TOOLS,
    WEATHER,
    WEATHER_CALL,
    user,
)

WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}


@asynccontextmanager
async def gateway_on(server: RealServer, more: str = "") -> AsyncIterator[Client]:
    entry = f"engine: llamacpp, url: '{server.url}', health: {{every: 500ms}}{more}"
    async with client_on({"a": entry}, {"front": "[a]"}) as client:
        state = client.gateway.gateway.fleet["a"]
        await client.gateway.until(lambda: state.progress.last is not None)
        yield client


def well(client: Client) -> bool:
    health = client.gateway.gateway.fleet["a"].health
    return (health.state, health.fails) == (State.READY, 0)


async def ask(client: Client, text: str, *, stream: bool, **more: Any) -> Any:
    return await turn_of(client.sdk, "front", user(text), stream=stream, temperature=0, **more)


# -- answers -----------------------------------------------------------------------------------------------------------


@WAYS
async def test_thoughts_come_in_their_own_field(llama: RealServer, stream: bool) -> None:
    async with gateway_on(llama) as client:
        turn = await ask(client, COUNT, stream=stream)
        assert (turn.content, turn.reasoning.strip()) == (COUNT_SAID, THOUGHTS)
        turn = await ask(client, COUNT, stream=stream, extra_body=NO_THOUGHTS)
        assert (turn.content, turn.reasoning) == (COUNT_SAID, "")


@WAYS
async def test_calls_arrive_as_calls(llama: RealServer, stream: bool) -> None:
    async with gateway_on(llama) as client:
        turn = await ask(client, WEATHER, stream=stream, tools=TOOLS)
        assert (turn.calls, turn.finishes) == ([WEATHER_CALL], ["tool_calls"])
        turn = await ask(client, BOTH, stream=stream, tools=TOOLS)
        assert (turn.calls, turn.finishes) == (BOTH_CALLS, ["tool_calls"])
        turn = await ask(client, WEATHER, stream=stream, tools=TOOLS, tool_choice="required", extra_body=NO_THOUGHTS)
        assert turn.calls == [WEATHER_CALL]


@WAYS
async def test_a_named_tool_is_the_one_that_is_called(llama: RealServer, stream: bool) -> None:
    """The model wants to call the other one."""
    async with gateway_on(llama) as client:
        named = {"type": "function", "function": {"name": "get_time"}}
        turn = await ask(
            client, WEATHER, stream=stream, tools=TOOLS, tool_choice=named, max_tokens=200, extra_body=NO_THOUGHTS
        )
        assert [name for name, _ in turn.calls] == ["get_time"]


@WAYS
async def test_a_schema_is_kept_to(llama: RealServer, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    async with gateway_on(llama) as client:
        turn = await ask(client, COUNT, stream=stream, response_format=form, max_tokens=300, extra_body=NO_THOUGHTS)
        assert turn.content.lstrip().startswith('{"a"') or turn.content.lstrip().startswith("{")


@WAYS
async def test_stop_n_logprobs_and_limits(llama: RealServer, stream: bool) -> None:
    async with gateway_on(llama) as client:
        turn = await ask(client, COUNT, stream=stream, stop=["three"], extra_body=NO_THOUGHTS)
        assert (turn.content.strip(), turn.finishes) == ("one two", ["stop"])
        turn = await ask(client, COUNT, stream=stream, max_tokens=2, extra_body=NO_THOUGHTS)
        assert turn.finishes == ["length"]
        turn = await ask(client, COUNT, stream=stream, n=2, extra_body=NO_THOUGHTS)
        assert turn.finishes == ["stop", "stop"]
    async with gateway_on(llama) as client:
        answer = await client.sdk.chat.completions.create(
            model="front", messages=user(COUNT), logprobs=True, top_logprobs=2, max_tokens=2, extra_body=NO_THOUGHTS
        )
        assert answer.choices[0].logprobs is not None


@WAYS
async def test_usage_comes_where_it_was_asked_for(llama: RealServer, stream: bool) -> None:
    async with gateway_on(llama) as client:
        more = {"stream_options": {"include_usage": True}} if stream else {}
        turn = await ask(client, COUNT, stream=stream, extra_body=NO_THOUGHTS, **more)
        assert turn.usage is not None
        assert (turn.usage["prompt_tokens"], turn.usage["completion_tokens"]) == (23, 10)


# -- refusals ----------------------------------------------------------------------------------------------------------

CUT = [
    {"role": "user", "content": "x"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"city": "Os'}}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "x"},
]
MISTAKES: dict[str, Any] = {
    "a picture": {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, PICTURE]}]},
    "sound": {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, SOUND]}]},
    "cut-off arguments": {"messages": CUT, "tools": TOOLS},
    "a tool without a function": {"messages": user("hi"), "tools": [{"type": "function"}]},
    "too many choices": {"messages": user("hi"), "n": 9},
    "a prompt over the window": {"messages": user("la " * 6000)},
}


@WAYS
@pytest.mark.parametrize("body", MISTAKES.values(), ids=MISTAKES)
async def test_a_mistake_is_the_clients_and_harms_no_backend(llama: RealServer, body: Any, stream: bool) -> None:
    async with gateway_on(llama) as client:
        for _ in range(4):
            answer = await client.gateway.client.post(CHAT, json={"model": "front", "stream": stream, **body})
            assert 400 <= answer.status_code < 500, answer.text
            assert answer.json()["error"]["type"] == "invalid_request_error"
        assert well(client)


@WAYS
async def test_half_a_surrogate_pair_is_the_clients(llama: RealServer, stream: bool) -> None:
    async with gateway_on(llama) as client:
        body = b'{"model": "front", "stream": %s, "messages": [{"role": "user", "content": "a \\ud800 b"}]}'
        content = body % (b"true" if stream else b"false")
        headers = {"content-type": "application/json"}
        answer = await client.gateway.client.post(CHAT, content=content, headers=headers)
        assert (answer.status_code, well(client)) == (400, True)


async def test_embeddings_without_the_flag_are_told_to_be_unsupported(llama: RealServer) -> None:
    async with gateway_on(llama) as client:
        for _ in range(2):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.sdk.embeddings.create(model="front", input="hi", encoding_format="float")
            assert raised.value.code == "input_unsupported"
        assert (await ask(client, COUNT, stream=False, extra_body=NO_THOUGHTS)).content == COUNT_SAID
        assert well(client)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_song_ends_when_its_client_leaves(llama: RealServer, http: httpx.AsyncClient, stream: bool) -> None:
    """Also a whole answer, which llama-server itself would compute to its end."""
    async with gateway_on(llama) as client:
        body = {"model": "front", "messages": user(SING), "temperature": 0, "stream": stream, "max_tokens": 3500}
        async with raw_client(client.gateway.url) as raw:
            await raw.post(CHAT, body)

            async def busy() -> int:
                return sum(slot["is_processing"] for slot in (await http.get(llama.url + "/slots")).json())

            async def sings() -> bool:
                return await busy() == 1

            async def is_idle() -> bool:
                return await busy() == 0

            await until_said(sings)
            raw.close()
            await until_said(is_idle, within=2.0)
        assert well(client)
