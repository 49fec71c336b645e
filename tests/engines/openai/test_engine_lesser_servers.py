"""mlx_lm.server and transformers serve behind the gateway: what they lack is done in their place, so that clients get
what they get of any other server. Whole and streamed, with the openai SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from gateway.config.backends import UNBOUNDED
from gateway.config.load import load_text
from gateway.domain.engine_traits import TRAITS
from gateway.domain.health_state import State
from simulator import SimOther, SimVllm
from tests.vllm.turns import Client, client_on, turn_of

ENTRY = {"mlx": "engine: mlx", "transformers": "engine: openai, server: transformers"}
KINDS = pytest.mark.parametrize("kind", ["mlx", "transformers"])
WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
QUIET: Any = {"chat_template_kwargs": {"enable_thinking": False}}
FAST = "health: {every: 50ms, recover_after: 1}"
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def said(text: str) -> Any:
    """The SDK's argument for an answer with this text."""
    return {**QUIET, "vllm_xargs": {"script": text}}


@asynccontextmanager
async def behind(sim: SimOther, more: str = "context: 8192") -> AsyncIterator[Client]:
    """The gateway in front of it, alias `a`."""
    async with (
        sim.serve() as url,
        client_on({"b": f"url: '{url}', {ENTRY[sim.kind]}, {more}"}, {"a": "[b]"}) as client,
    ):
        yield client


def bodies(sim: SimOther) -> list[Any]:
    return [request.json for request in sim.requests]


# -- stop strings -----------------------------------------------------------------------------------------------------


@KINDS
@WAYS
async def test_an_answer_ends_at_a_stop_string(kind: Any, stream: bool) -> None:
    sim = SimOther(kind)
    async with behind(sim) as client:
        given: Any = {"stop": ["two", "thr"], "extra_body": said("one two three")}
        if stream:
            given["stream_options"] = {"include_usage": True}
        turn = await turn_of(client.sdk, "a", user("count"), stream=stream, **given)
    assert (turn.content, turn.finishes) == ("one ", ["stop"])
    assert "stop" not in bodies(sim)[-1]
    assert turn.usage is not None
    assert turn.usage["estimated"] is True
    assert 2 <= turn.usage["completion_tokens"] <= 4


@KINDS
@WAYS
async def test_a_server_does_not_go_on_after_a_stop_string(kind: Any, stream: bool) -> None:
    sim = SimOther(kind, decode=200)
    async with behind(sim) as client:
        given: Any = {"stop": "kept", "extra_body": QUIET}  # one of the first words of a long text
        turn = await turn_of(client.sdk, "a", user("write 400 words"), stream=stream, **given)
        await sim.wait_for(lambda: not sim.engine.busy)
    assert turn.finishes == ["stop"]
    assert sim.aborted == 1


@KINDS
async def test_an_estimated_usage_teaches_nothing(kind: Any) -> None:
    async with behind(SimOther(kind)) as client:
        ratio = client.gateway.gateway.fleet["b"].ratio
        long = user("count " * 1500)
        await turn_of(client.sdk, "a", long, stream=False, stop="two", extra_body=said("one two"))
        assert ratio.value is None
        await turn_of(client.sdk, "a", long, stream=False, extra_body=QUIET)
        assert ratio.value is not None


# -- a client that leaves ---------------------------------------------------------------------------------------------


@KINDS
@WAYS
async def test_a_server_stops_when_the_client_leaves(kind: Any, stream: bool) -> None:
    sim = SimOther(kind, decode=50)
    async with behind(sim) as client:
        request = asyncio.create_task(
            turn_of(client.sdk, "a", user("write 400 words"), stream=stream, extra_body=QUIET)
        )
        await sim.wait_for(lambda: sim.engine.running and sim.engine.running[0].made)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await sim.wait_for(lambda: not sim.engine.busy)
    assert sim.aborted == 1


# -- tools, limits, several answers -----------------------------------------------------------------------------------


@KINDS
@WAYS
async def test_no_tool_is_called_where_none_may_be(kind: Any, stream: bool) -> None:
    sim = SimOther(kind)
    async with behind(sim) as client:
        given: Any = {"tools": [TOOL], "extra_body": QUIET}
        turn = await turn_of(client.sdk, "a", user("weather in Oslo"), stream=stream, **given)
        assert (turn.calls, turn.finishes) == ([("get_weather", {"city": "Oslo"})], ["tool_calls"])
        turn = await turn_of(client.sdk, "a", user("weather in Oslo"), stream=stream, tool_choice="none", **given)
    assert (turn.calls, turn.finishes) == ([], ["stop"])
    assert "tools" not in bodies(sim)[-1]


@KINDS
@WAYS
async def test_thoughts_calls_and_usage_survive(kind: Any, stream: bool) -> None:
    async with behind(SimOther(kind)) as client:
        given: Any = {"stream_options": {"include_usage": True}} if stream else {}
        turn = await turn_of(client.sdk, "a", user("weather in Oslo"), stream=stream, tools=[TOOL], **given)
    assert turn.reasoning.strip() == "I should call get_weather."
    assert turn.calls == [("get_weather", {"city": "Oslo"})]
    assert turn.usage is not None
    assert turn.usage["completion_tokens"] > 10
    assert "estimated" not in turn.usage


@KINDS
async def test_an_answer_without_a_limit_has_the_rest_of_the_window(kind: Any) -> None:
    sim = SimOther(kind)
    async with behind(sim) as client:
        turn = await turn_of(client.sdk, "a", user("write 2000 words"), stream=False, extra_body=QUIET)
        assert len(turn.content.split()) == 2000
        await turn_of(client.sdk, "a", user("hi"), stream=False, max_tokens=7, extra_body=QUIET)
    first, second = bodies(sim)[-2:]
    assert 8000 < first["max_tokens"] < 8192
    assert second["max_tokens"] == 7


@KINDS
async def test_a_prompt_over_the_context_is_refused_and_not_computed(kind: Any) -> None:
    sim = SimOther(kind)
    async with behind(sim) as client:
        with pytest.raises(openai.BadRequestError, match=r"8,?192"):
            await turn_of(client.sdk, "a", user("word " * 20_000), stream=False)
    assert not sim.requests


@KINDS
def test_the_window_is_asked_for(kind: Any) -> None:
    assert {name for name, traits in TRAITS.items() if traits.computes_beyond} == UNBOUNDED
    backend = f"url: 'http://127.0.0.1:1', {ENTRY[kind]}, model: m"
    asked, given = (
        [str(warning) for warning in load_text(f"backends: {{b: {{{one}}}}}", "routes.yaml", {}).warnings]
        for one in (backend, backend + ", context: 8192")
    )
    assert any("no 'context'" in warning for warning in asked)
    assert not any("no 'context'" in warning for warning in given)


@KINDS
@WAYS
async def test_several_answers_are_asked_for_one_by_one(kind: Any, stream: bool) -> None:
    sim = SimOther(kind)
    async with behind(sim) as client:
        prompts: Any = {"model": "a", "prompt": ["1*2", "3*4"], "n": 2, "max_tokens": 50}
        if stream:
            texts = ["", "", "", ""]
            async for part in await client.sdk.completions.create(stream=True, **prompts):
                for choice in part.choices:
                    texts[choice.index] += choice.text
        else:
            answer = await client.sdk.completions.create(**prompts)
            texts = [choice.text for choice in sorted(answer.choices, key=lambda choice: choice.index)]
            assert answer.usage is not None
            assert answer.usage.completion_tokens >= 4
        chats = await client.sdk.chat.completions.create(model="a", messages=user("5*6"), n=2, extra_body=QUIET)
    assert texts == ["1*2 is 2.", "1*2 is 2.", "3*4 is 12.", "3*4 is 12."]
    assert [choice.message.content for choice in chats.choices] == ["5*6 is 30."] * 2
    assert [body["prompt"] for body in bodies(sim)[:4]] == ["1*2", "1*2", "3*4", "3*4"]
    assert not sim.died


@KINDS
@pytest.mark.parametrize("prompt", [[1, 2], [[1], [2]]])
async def test_token_ids_are_refused_and_never_sent(kind: Any, prompt: Any) -> None:
    sim = SimOther(kind)
    async with behind(sim) as client:
        with pytest.raises(openai.BadRequestError, match="text"):
            await client.sdk.completions.create(model="a", prompt=prompt)
    assert not sim.requests


@KINDS
async def test_what_a_server_ignores_is_not_expected_of_it(kind: Any) -> None:
    sim = SimOther(kind)
    schema: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    async with behind(sim) as client:
        for given in (
            {"tools": [TOOL], "tool_choice": "required"},
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
            {"response_format": schema},
            {"logprobs": True},
        ):
            with pytest.raises(openai.APIStatusError) as refused:
                await turn_of(client.sdk, "a", user("hi"), stream=False, **given)
            assert refused.value.status_code == 400
            assert kind in str(refused.value)
    assert not sim.requests


# -- errors -----------------------------------------------------------------------------------------------------------


async def test_errors_that_are_the_clients_fault_are_the_clients() -> None:
    sim = SimOther("transformers")
    async with behind(sim) as client:
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            await turn_of(client.sdk, "a", user("hi"), stream=False, max_tokens=0)
        turn = await turn_of(client.sdk, "a", user("2*3"), stream=False, logit_bias={"5": 1}, extra_body=QUIET)
    assert turn.content == "2*3 is 6."
    assert sum(fault == 500 for fault in (request.status for request in sim.requests)) == 0


@WAYS
async def test_a_dead_generation_thread_fails_over_and_takes_the_backend_down(stream: bool) -> None:
    sim, other = SimOther("mlx"), SimVllm("other")
    async with (
        sim.serve() as url,
        other.serve() as spare,
        client_on(
            {"b": f"url: '{url}', engine: mlx, context: 8192, {FAST}", "c": f"url: '{spare}'"}, {"a": "[b, c]"}
        ) as client,
    ):
        await turn_of(client.sdk, "a", user("hi"), stream=stream)
        assert len(sim.requests) == 1
        sim.died = True  # its /health says so, but no check has come yet
        turn = await turn_of(client.sdk, "a", user("2*3"), stream=stream)
        assert (turn.backend, turn.content) == ("c", "2*3 is 6.")
        assert client.gateway.state("b") is State.DOWN
        checks = sim.seen["/health"]
        await client.gateway.until(lambda: sim.seen["/health"] >= checks + 3)
        assert client.gateway.state("b") is State.DOWN


async def test_a_dead_generation_thread_is_found_by_its_health_check() -> None:
    sim = SimOther("mlx")
    async with behind(sim, f"context: 8192, {FAST}") as client:
        sim.die()
        await client.gateway.until(lambda: client.gateway.state("b") is State.DOWN)
        await sim.kill()
        await sim.revive()
        await client.gateway.until_ready("b")


# -- models -----------------------------------------------------------------------------------------------------------


async def test_no_model_of_the_cache_is_loaded_but_the_one_it_was_started_with() -> None:
    sim = SimOther("mlx", model="one", cached=["two", "three", "four"])
    async with behind(sim) as client:
        for number in range(5):
            await turn_of(client.sdk, "a", user(f"{number}*2"), stream=False)
    assert {body["model"] for body in bodies(sim)} == {"default_model"}
    assert sim.loaded == "one"


async def test_an_empty_model_list_is_no_failure() -> None:
    sim = SimOther("mlx")
    sim.fault("no_models")
    async with behind(sim) as client:
        turn = await turn_of(client.sdk, "a", user("2*3"), stream=False, extra_body=QUIET)
    assert turn.content == "2*3 is 6."
    assert "model" not in bodies(sim)[-1]
    assert sim.loaded == sim.started_with
