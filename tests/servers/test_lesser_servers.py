"""mlx_lm.server and transformers serve behind the gateway, with the openai SDK, whole and streamed: each thing in which
they differ from others, and what a client gets all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.vllm.turns import Client, client_on, turn_of
from tests.waiting import standing, until

from .processes import HF_NAME, RealServer
from .questions import (
    BOTH,
    BOTH_CALLS,
    COUNT,
    COUNT_SAID,
    HELLO,
    HELLO_SAID,
    NO_THOUGHTS,
    PRODUCT,
    PRODUCT_SAID,
    SING,
    THOUGHTS,
    TOOLS,
    WEATHER,
    WEATHER_CALL,
    user,
)

WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
QUIET: Any = {"temperature": 0, "extra_body": NO_THOUGHTS}
ENTRY = {"mlx": "engine: mlx", "transformers": f"engine: openai, server: transformers, model: {HF_NAME}"}
SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


@pytest.fixture(params=["mlx", "transformers"])
def server(request: pytest.FixtureRequest) -> RealServer:
    found: RealServer = request.getfixturevalue(request.param)
    return found


@asynccontextmanager
async def behind(server: RealServer, context: int = 8192) -> AsyncIterator[Client]:
    """The gateway in front of it, alias `a`."""
    entry = f"url: '{server.url}', {ENTRY[server.kind]}, context: {context}"
    async with client_on({"b": entry}, {"a": "[b]"}) as client:
        yield client


# -- answers ----------------------------------------------------------------------------------------------------------


@WAYS
async def test_an_answer_its_thoughts_and_its_usage(server: RealServer, stream: bool) -> None:
    async with behind(server) as client:
        given: Any = {"stream_options": {"include_usage": True}} if stream else {}
        turn = await turn_of(client.sdk, "a", user(COUNT), stream=stream, temperature=0, **given)
        assert turn.said == (COUNT_SAID, [], ["stop"])
        assert turn.reasoning.strip() == THOUGHTS
        assert turn.usage is not None
        assert (turn.usage["prompt_tokens"], turn.usage["completion_tokens"]) > (10, 10)
        assert "estimated" not in turn.usage
        turn = await turn_of(client.sdk, "a", user(PRODUCT), stream=stream, **QUIET)
        assert turn.said == (PRODUCT_SAID, [], ["stop"])
        assert turn.reasoning.strip() == ""


@WAYS
async def test_tools_are_called_one_and_two_at_once(server: RealServer, stream: bool) -> None:
    async with behind(server) as client:
        turn = await turn_of(client.sdk, "a", user(WEATHER), stream=stream, tools=TOOLS, temperature=0)
        assert (turn.calls, turn.finishes) == ([WEATHER_CALL], ["tool_calls"])
        turn = await turn_of(client.sdk, "a", user(BOTH), stream=stream, tools=TOOLS, **QUIET)
        assert turn.calls == BOTH_CALLS


@WAYS
async def test_no_tool_is_called_where_none_may_be(server: RealServer, stream: bool) -> None:
    async with behind(server) as client:
        given: Any = {"tools": TOOLS, "tool_choice": "none", "max_tokens": 40}
        turn = await turn_of(client.sdk, "a", user(WEATHER), stream=stream, **given, **QUIET)
    assert turn.calls == []


@pytest.mark.parametrize(
    "given",
    [{"tools": TOOLS, "tool_choice": "required"}, {"response_format": SCHEMA}, {"logprobs": True}],
    ids=["required", "schema", "logprobs"],
)
@WAYS
async def test_what_it_ignores_is_not_expected_of_it(server: RealServer, stream: bool, given: Any) -> None:
    async with behind(server) as client:
        with pytest.raises(openai.BadRequestError):
            await turn_of(client.sdk, "a", user(WEATHER), stream=stream, **given)


@WAYS
async def test_it_ends_at_a_stop_string(server: RealServer, stream: bool) -> None:
    async with behind(server) as client:
        given: Any = {"stop": ["ree fo", "nothing"], **QUIET}
        if stream:
            given["stream_options"] = {"include_usage": True}
        turn = await turn_of(client.sdk, "a", user(COUNT), stream=stream, **given)
        assert turn.said == ("one two th", [], ["stop"])
        assert turn.usage is not None
        assert turn.usage["estimated"] is True
        turn = await turn_of(client.sdk, "a", user(COUNT), stream=stream, stop="never said", **QUIET)
        assert turn.content.strip() == COUNT_SAID


@WAYS
async def test_an_answer_without_a_limit_has_the_rest_of_the_window(server: RealServer, stream: bool) -> None:
    async with behind(server, context=1500) as client:
        given: Any = {"stream_options": {"include_usage": True}} if stream else {}
        turn = await turn_of(client.sdk, "a", user(SING), stream=stream, **given, **QUIET)
    assert turn.finishes == ["length"]
    assert turn.usage is not None
    assert 1024 < turn.usage["completion_tokens"] < 1500


async def test_a_prompt_over_the_context_is_refused(server: RealServer) -> None:
    async with behind(server, context=1000) as client:
        with pytest.raises(openai.BadRequestError, match=r"1,?000"):
            await turn_of(client.sdk, "a", user("word " * 4000), stream=False)


@WAYS
async def test_several_answers(server: RealServer, stream: bool) -> None:
    async with behind(server) as client:
        create: Any = client.sdk.chat.completions.create
        if stream:
            texts = ["", ""]
            async for part in await create(model="a", messages=user(HELLO), n=2, stream=True, **QUIET):
                for choice in part.choices:
                    texts[choice.index] += choice.delta.content or ""
        else:
            answer = await create(model="a", messages=user(HELLO), n=2, **QUIET)
            texts = [choice.message.content for choice in answer.choices]
            assert answer.usage.completion_tokens > 20
    assert [text.strip() for text in texts] == [HELLO_SAID] * 2


@WAYS
async def test_a_list_of_prompts_is_split_and_harms_nobody(server: RealServer, stream: bool) -> None:
    async with behind(server) as client:
        create: Any = client.sdk.completions.create
        asked = {"model": "a", "prompt": ["Count", "Say"], "max_tokens": 5, "temperature": 0}
        if stream:
            indexes = {choice.index async for part in await create(**asked, stream=True) for choice in part.choices}
        else:
            indexes = {choice.index for choice in (await create(**asked)).choices}
        assert indexes == {0, 1}
        with pytest.raises(openai.BadRequestError, match="text"):
            await create(**{**asked, "prompt": [1, 2]})
        turn = await turn_of(client.sdk, "a", user(HELLO), stream=stream, **QUIET)
    assert turn.content.strip() == HELLO_SAID


async def test_errors_of_the_client_are_the_clients(server: RealServer) -> None:
    async with behind(server) as client:
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            await turn_of(client.sdk, "a", user(HELLO), stream=False, max_tokens=0)
        turn = await turn_of(client.sdk, "a", user(HELLO), stream=False, logit_bias={"5": 1}, **QUIET)
        assert turn.content.strip() == HELLO_SAID


async def test_one_request_after_the_other_and_several_at_a_time(server: RealServer) -> None:
    async with behind(server) as client:
        for _ in range(5):
            assert (await turn_of(client.sdk, "a", user(HELLO), stream=False, **QUIET)).content.strip() == HELLO_SAID
        turns = await asyncio.gather(
            *(turn_of(client.sdk, "a", user(COUNT), stream=number % 2 == 0, **QUIET) for number in range(6))
        )
    assert {turn.content.strip() for turn in turns} == {COUNT_SAID}


# -- a client that leaves ---------------------------------------------------------------------------------------------


def ticks(server: RealServer) -> int:
    """What the server has computed, in hundredths of a second."""
    assert server.process is not None
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@WAYS
async def test_it_stops_computing_when_the_client_leaves(server: RealServer, stream: bool) -> None:
    async with behind(server, context=100_000) as client:
        before = ticks(server)
        request = asyncio.create_task(turn_of(client.sdk, "a", user(SING), stream=stream, **QUIET))
        await until(lambda: ticks(server) > before + 30)
        assert not request.done()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await standing(lambda: ticks(server) // 3)
