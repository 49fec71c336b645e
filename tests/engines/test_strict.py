"""What a strict server gets of what a lenient one takes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.domain.health_state import State
from gateway.engines.strict import strict_messages, strict_scalars
from simulator import SimRustFrontEnd
from tests.one_backend import one_backend
from tests.raw_client import chat
from tests.support import RunningGateway, from_clients

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}


def called(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}], **more}


RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
HISTORIES: dict[str, list[Any]] = {
    "arguments that are no JSON": [USER, called("{broken"), RESULT],
    "arguments with a bare word": [USER, called('{"city": Oslo}'), RESULT],
    "arguments as an object": [USER, called({"city": "Oslo"}), RESULT],
    "a turn without content": [USER, {"role": "assistant", "content": None}, USER],
    "a turn without anything": [USER, {"role": "assistant"}, USER],
    "no parts": [{"role": "user", "content": []}],
    "an empty text": [{"role": "user", "content": ""}],
    "null": [{"role": "user", "content": None}],
    "no parts of an answer": [USER, {"role": "assistant", "content": []}, USER],
    "no content": [{"role": "system", "content": None}, USER],
    "a refusal": [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, USER],
    "a refusal in its field": [USER, {"role": "assistant", "content": None, "refusal": "no"}, USER],
    "the role function": [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "sunny"},
    ],
    "a result without an id": [USER, called("{}"), {"role": "tool", "content": "sunny"}],
    "a result without content": [USER, called("{}"), {**RESULT, "content": None}],
    "a call without type and id": [
        USER,
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "x"},
    ],
    "parts of another API": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}, "ho", None]}],
    "a number as content": [{"role": "user", "content": 5}],
}  # fmt: skip
FIELDS: dict[str, Any] = {
    "max_tokens": "5",
    "max_completion_tokens": 5.0,
    "temperature": "0.5",
    "top_p": "1",
    "seed": 1.0,
    "top_k": "20",
}


@asynccontextmanager
async def rust() -> AsyncIterator[tuple[RunningGateway, SimRustFrontEnd]]:
    sim = SimRustFrontEnd()
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        yield gateway, sim


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", HISTORIES)
async def test_a_history_that_lenient_servers_take_is_answered(name: str, stream: bool) -> None:
    async with rust() as (gateway, sim):
        for _ in range(2):  # each such request is sent twice, and the others once
            before = len(from_clients(sim.requests))
            body = {**chat("a", stream=stream), "messages": HISTORIES[name]}
            reply = await gateway.client.post(CHAT, json=body)
            assert reply.status_code == 200, reply.text
            assert len(from_clients(sim.requests)) == before + 2
        state = gateway.gateway.fleet["a"]
        assert (state.health.state, state.health.fails, state.facts.lacks) == (State.READY, 0, {})
        before = len(from_clients(sim.requests))
        assert (await gateway.client.post(CHAT, json=chat("a"))).status_code == 200
        assert len(from_clients(sim.requests)) == before + 1


@pytest.mark.parametrize("name", FIELDS)
async def test_a_number_as_text_is_a_number(name: str) -> None:
    async with rust() as (gateway, sim):
        reply = await gateway.client.post(CHAT, json={**chat("a"), name: FIELDS[name]})
        assert reply.status_code == 200, reply.text
        assert float(from_clients(sim.requests)[-1].json[name]) == float(FIELDS[name])


async def test_a_text_completion_too() -> None:
    async with rust() as (gateway, sim):
        body = {"model": "a", "prompt": "hi", "max_tokens": "5"}
        assert (await gateway.client.post("/v1/completions", json=body)).status_code == 200
        assert from_clients(sim.requests)[-1].json["max_tokens"] == 5


@pytest.mark.parametrize("value", ["hot", "", "1e999", "nan", [], {}])
async def test_what_is_no_number_is_the_clients_error_in_its_first_words(value: Any) -> None:
    async with rust() as (gateway, _):
        reply = await gateway.client.post(CHAT, json={**chat("a"), "temperature": value})
        assert reply.status_code == 400
        assert gateway.gateway.fleet["a"].health.fails == 0


@pytest.mark.parametrize("prompt", [["hi", "ho"], [1, 2, 3], [[1, 2], [3]]])
async def test_prompts_of_every_form_are_answered(prompt: list[Any]) -> None:
    async with rust() as (gateway, _):
        reply = await gateway.client.post("/v1/completions", json={"model": "a", "prompt": prompt, "max_tokens": 3})
        assert reply.status_code == 200
        assert len(reply.json()["choices"]) == (1 if isinstance(prompt[0], int) else 2)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_several_answers_are_several_requests(stream: bool) -> None:
    async with rust() as (gateway, sim):
        reply = await gateway.client.post(CHAT, json=chat("a", n=2, stream=stream))
        assert reply.status_code == 200
        assert ('"index":1' in reply.text, len(from_clients(sim.requests))) == (True, 2)


@pytest.mark.parametrize(("parser", "asks"), [("mistral", True), ("hermes", False)])
async def test_special_tokens_are_asked_for_where_its_parser_does_not(parser: str, asks: bool) -> None:
    sim = SimRustFrontEnd(tool_parser=parser)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    async with one_backend(sim, f"tool_parser: {parser}") as gateway:
        await gateway.until_ready("a")
        for _ in range(3):
            await gateway.client.post(CHAT, json=chat("a", tools=tools))
            await gateway.client.post(CHAT, json=chat("a"))
        sent = [request.json.get("skip_special_tokens") for request in from_clients(sim.requests)]
        assert sent == [False if asks else None, None] * 3


def test_a_call_and_its_result_keep_one_id() -> None:
    made = strict_messages(HISTORIES["the role function"])
    assert made[1]["tool_calls"][0]["id"] == made[2]["tool_call_id"]
    assert [message["role"] for message in made] == ["user", "assistant", "tool"]


def test_arguments_that_cannot_be_mended_are_kept_as_text() -> None:
    (made,) = strict_messages([called("{broken")])
    assert json.loads(made["tool_calls"][0]["function"]["arguments"]) == {"input": "{broken"}


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "tool", "function", "system"]) | ANY,
        **dict.fromkeys(("content", "tool_calls", "function_call", "refusal", "tool_call_id"), ANY),
    },
)


@given(st.lists(MESSAGE, max_size=4), st.dictionaries(st.sampled_from(sorted(FIELDS)), ANY))
def test_anything_can_be_written_and_twice_is_once(messages: list[Any], fields: dict[str, Any]) -> None:
    once = strict_messages(messages)
    assert msgspec.json.decode(msgspec.json.encode(strict_messages(once))) == msgspec.json.decode(
        msgspec.json.encode(once)
    )
    sent = {name: Raw(msgspec.json.encode(value)) for name, value in fields.items()}
    strict_scalars(sent)
    assert sent.keys() == fields.keys()
