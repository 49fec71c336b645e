"""An answer in which nothing is said is tried on one other backend."""

from __future__ import annotations

import json

import pytest

from tests.proxy.streams.stage import DONE, HELLO, ROLE, STOP, THOUGHT, Stage, event, renamed, says
from tests.scripted import Turn
from tests.scripted import answer as http_answer

pytestmark = pytest.mark.asyncio(loop_scope="module")


WHOLE_EMPTY = {"model": "served/model", "choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}
WHOLE_GOOD = {"model": "served/model", "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}


async def empty(turn: Turn) -> None:
    if turn.json["stream"]:
        await turn.stream(ROLE, STOP, DONE)
    else:
        await turn.send(http_answer(json.dumps(WHOLE_EMPTY).encode()))


async def good(turn: Turn) -> None:
    if turn.json["stream"]:
        await turn.stream(ROLE, HELLO, STOP, DONE)
    else:
        await turn.send(http_answer(json.dumps(WHOLE_GOOD).encode()))


async def broken(turn: Turn) -> None:
    turn.reset()


both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@both_ways
async def test_an_empty_answer_is_tried_on_one_other_backend(stage: Stage, stream: bool) -> None:
    stage.s.play(empty)
    stage.t.play(good)
    reply = await stage.ask("pair", stream=stream)
    assert (reply.headers["x-gateway-backend"], reply.headers["x-gateway-attempts"]) == ("t", "2")
    assert b"hello" in reply.body
    assert stage.gateway.gateway.fleet["s"].health.fails == 0


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
ENDS = {
    "apart": (ROLE, THOUGHT, STOP, DONE),
    "beside the last thought": (ROLE, event({"reasoning": "hm"}, "stop"), DONE),
    "all in one": (event({"role": "assistant", "reasoning": "hm"}, "stop"), DONE),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_turn_of_thoughts_alone_is_tried_on_another_wherever_its_end_stands(stage: Stage, end: str) -> None:
    """Engines that draft tokens write several in one event, the last of them with the finish_reason."""
    stage.s.play(says(*ENDS[end]))
    stage.t.play(good)
    reply = await stage.ask("pair", tools=TOOLS)
    assert (reply.status, reply.ended, reply.body.count(b'"stop"')) == (200, True, 1)
    assert reply.body.index(b'"hm"') < reply.body.index(b'"hello"') < reply.body.index(b'"stop"')


@pytest.mark.parametrize("end", ENDS)
async def test_a_turn_of_thoughts_alone_keeps_its_end_where_nobody_else_can_be_asked(stage: Stage, end: str) -> None:
    stage.s.play(says(*ENDS[end]), to_all=True)
    reply = await stage.ask(tools=TOOLS)
    assert (reply.status, reply.ended, reply.body.count(b'"stop"')) == (200, True, 1)
    assert reply.body.index(b'"hm"') < reply.body.index(b'"stop"')


@both_ways
async def test_when_the_other_is_no_better_the_empty_answer_is_delivered(stage: Stage, stream: bool) -> None:
    stage.s.play(empty)
    stage.t.play(empty)
    reply = await stage.ask("pair", stream=stream)
    assert (reply.status, reply.ended) == (200, True)
    if stream:
        assert reply.body == renamed(ROLE, STOP, DONE, model=b"pair")
    else:
        assert reply.json == {**WHOLE_EMPTY, "model": "pair"}
    assert stage.u.turns == []


@both_ways
async def test_when_all_others_fail_the_empty_answer_is_delivered(stage: Stage, stream: bool) -> None:
    stage.s.play(empty)
    stage.t.play(broken, to_all=True)
    stage.u.play(broken, to_all=True)
    reply = await stage.ask("pair", stream=stream)
    assert (reply.status, reply.ended, reply.headers["x-gateway-backend"]) == (200, True, "s")
    assert b"hello" not in reply.body


@both_ways
async def test_the_only_backends_empty_answer_is_delivered(stage: Stage, stream: bool) -> None:
    stage.s.play(empty)
    reply = await stage.ask(stream=stream)
    assert (reply.status, reply.ended) == (200, True)
    assert len(stage.s.turns) == 1


@both_ways
async def test_an_answer_cut_to_nothing_by_its_limit_is_not_an_empty_one(stage: Stage, stream: bool) -> None:
    """`max_tokens: 1` may well leave nothing to show; another backend would do no better."""
    cut = STOP.replace(b'"stop"', b'"length"')
    assert cut != STOP

    async def limited(turn: Turn) -> None:
        if turn.json["stream"]:
            await turn.stream(ROLE, cut, DONE)
        else:
            text = json.dumps(WHOLE_EMPTY).replace('"stop"', '"length"')
            await turn.send(http_answer(text.encode()))

    stage.s.play(limited)
    stage.t.play(good)
    reply = await stage.ask("pair", stream=stream)
    assert (reply.status, reply.headers["x-gateway-backend"], reply.headers["x-gateway-attempts"]) == (200, "s", "1")
    assert b'"length"' in reply.body
