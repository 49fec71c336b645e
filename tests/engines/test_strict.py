# ruff: noqa: E501 (tables of requests)
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
from gateway.engines.strict import strict_fields, strict_messages
from simulator import SimRustFrontEnd, SimVllm
from tests.one_backend import one_backend
from tests.raw_client import chat
from tests.support import RunningGateway, from_clients, running_gateway

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
    "thoughts under both names": [USER, {"role": "assistant", "content": "a", "reasoning": None, "reasoning_content": "x"}, USER],
    "a custom call": [USER, {"role": "assistant", "tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "f", "input": "y"}}]}, RESULT],
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


def test_arguments_that_some_readers_cannot_hold_are_kept_as_text() -> None:
    for text in ('{"a": NaN}', '{"a": 1e400}', "[" * 150 + "]" * 150, '{"a": "\\ud800"}'):
        (made,) = strict_messages([called(text)])
        arguments = json.loads(made["tool_calls"][0]["function"]["arguments"])
        assert arguments == {"input": text} or "NaN" not in json.dumps(arguments)
        assert strict_messages([made]) == [made]


def test_nulls_and_second_names_of_a_message_are_left_out() -> None:
    thoughts = {"role": "assistant", "content": "a", "reasoning": None, "reasoning_content": "hm", "name": None}
    assert strict_messages([thoughts]) == [{"role": "assistant", "content": "a", "reasoning_content": "hm"}]
    both = {**thoughts, "reasoning": "first"}
    assert strict_messages([both]) == [{"role": "assistant", "content": "a", "reasoning": "first"}]


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
MISTYPED: list[tuple[str, Any, Any]] = [
    ("max_tokens", "5", 5),
    ("max_tokens", 5.0, 5),
    ("max_tokens", True, 1),
    ("max_tokens", 10**12, 2**31 - 1),
    ("top_k", 1e30, 2**31 - 1),
    ("seed", 2**40, 2**40),
    ("temperature", "0.5", 0.5),
    ("temperature", True, 1),
    ("temperature", "hot", "hot"),
    ("logprobs", 1, True),
    ("add_special_tokens", "no", False),
    ("return_tokens_as_token_ids", 1.0, True),
    ("use_beam_search", "maybe", "maybe"),
    ("stop_token_ids", ["5", 6.0], [5, 6]),
    ("stop_token_ids", ["x"], ["x"]),
    ("logit_bias", {"5": "1"}, {"5": 1}),
    ("tools", [TOOL, TOOL], [TOOL]),
    ("tools", [{"function": TOOL["function"]}], [TOOL]),
    ("tools", [{"type": None, "function": {**NAMED["function"], "parameters": '{"type": "object"}'}}], [TOOL]),
    ("tools", [{**NAMED, "function": {"name": "f", "parameters": []}}], [{**NAMED, "function": {"name": "f", "parameters": {}}}]),
    ("tools", [{**NAMED, "function": {"name": "f", "strict": "true", "description": None}}], [{**NAMED, "function": {"name": "f", "strict": True}}]),
    ("tools", [{"type": "web_search"}, TOOL], [{"type": "web_search"}, TOOL]),
    ("tools", "x", "x"),
    ("tool_choice", {"function": {"name": "f"}}, NAMED),
    ("tool_choice", "auto", "auto"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "read"), MISTYPED)
def test_a_field_is_of_its_own_type(name: str, given: Any, read: Any) -> None:
    fields = {"messages": Raw(b"[]"), name: Raw(msgspec.json.encode(given)), "user": Raw(b"null")}
    strict_fields(fields)
    assert fields.keys() == {"messages", name}
    made = msgspec.json.decode(fields[name])
    assert (made, type(made)) == (read, type(read))


def test_log_probabilities_of_a_text_completion_are_a_number() -> None:
    fields = {"prompt": Raw(b"[1.0, 2.0]"), "logprobs": Raw(b"true")}
    strict_fields(fields)
    assert {name: bytes(value) for name, value in fields.items()} == {"prompt": b"[1,2]", "logprobs": b"1"}


@pytest.mark.parametrize("sim", [SimVllm, SimRustFrontEnd])
@pytest.mark.parametrize("n", ["2", 2.0, 2])
async def test_several_answers_come_however_their_number_is_written(sim: type[SimVllm], n: Any) -> None:
    async with one_backend(sim()) as gateway:
        await gateway.until_ready("a")
        reply = await gateway.client.post(CHAT, json=chat("a", n=n))
        assert len(reply.json()["choices"]) == 2


async def test_a_prompt_is_counted_once_however_many_answers_it_has() -> None:
    async with rust() as (gateway, _):
        one, three = [(await gateway.client.post(CHAT, json=chat("a", n=n))).json()["usage"] for n in (1, 3)]
        assert three["prompt_tokens"] == one["prompt_tokens"]
        assert three["total_tokens"] == three["prompt_tokens"] + three["completion_tokens"]
        body = {"model": "a", "prompt": ["hi", "ho"], "max_tokens": 3}
        usage = [
            (await gateway.client.post("/v1/completions", json={**body, "n": n})).json()["usage"]["prompt_tokens"]
            for n in (1, 2)
        ]
        assert usage[0] == usage[1]


@pytest.mark.parametrize("n", [0, -1, "x", 2.5, []])
async def test_no_number_of_answers_is_refused(n: Any) -> None:
    async with rust() as (gateway, _):
        reply = await gateway.client.post(CHAT, json=chat("a", n=n))
        assert reply.status_code == 400, reply.text


async def test_beams_go_to_a_server_that_searches_them() -> None:
    sim = SimRustFrontEnd()
    async with sim.serve() as one, SimVllm().serve() as two:
        routes = f"backends: {{a: {{url: '{one}'}}, b: {{url: '{two}'}}}}\naliases: {{chain: [a, b]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            for _ in range(2):
                reply = await gateway.client.post(CHAT, json=chat("chain", use_beam_search=True))
                assert (reply.status_code, reply.headers["x-gateway-backend"]) == (200, "b")
            alone = await gateway.client.post(CHAT, json=chat("a", use_beam_search=True))
            assert (alone.status_code, "use_beam_search" in alone.text) == (400, True)
            assert gateway.state("a") is State.READY


async def test_what_the_python_front_end_does_not_read_is_written_as_it_reads_it() -> None:
    async with one_backend(sim := SimVllm()) as gateway:
        await gateway.until_ready("a")
        reply = await gateway.client.post(CHAT, json=chat("a", max_tokens="5", seed="7"))
        assert reply.status_code == 200, reply.text
        assert [from_clients(sim.requests)[-1].json[name] for name in ("max_tokens", "seed")] == [5, 7]


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
    strict_fields(sent)
    assert sent.keys() == {name for name, value in fields.items() if value is not None}
