"""How a stream ends when it breaks after content."""

from __future__ import annotations

import pytest

from tests.proxy.streams.stage import DONE, ERROR, HELLO, INTERRUPTED, ROLE, STOP, Stage, event, renamed, says
from tests.scripted import END, SSE_HEAD, Script, Turn, chunked
from tests.waiting import pace

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def close(turn: Turn) -> None:
    turn.close()


async def reset(turn: Turn) -> None:
    turn.reset()


async def silence(turn: Turn) -> None:
    await turn.until_lost()


async def comments_only(turn: Turn) -> None:
    while True:  # until the gateway closes the connection: then sending fails
        await turn.send(chunked(b": keep-alive\n\n"))
        await pace(0.02)


def then(*events: bytes) -> Script:
    async def script(turn: Turn) -> None:
        await turn.send(chunked(*events) + END)

    return script


DEATHS: dict[str, Script] = {
    "closed": close,
    "reset": reset,
    "silent": silence,
    "comments only": comments_only,
    "ended without finish_reason": then(),
    "DONE without finish_reason": then(DONE),
    "error event": then(ERROR, DONE),
    "error event after finish_reason": then(STOP, ERROR, DONE),
    "abort": then(event({}, "abort"), DONE),
    "error as finish_reason": then(event({}, "error"), DONE),
    "half an event": then(b'data: {"id":"up-1","choices":[{"index":0,"del'),
}


@pytest.mark.parametrize("name", DEATHS)
async def test_a_stream_that_breaks_after_content_is_never_ended_as_if_whole(stage: Stage, name: str) -> None:
    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(ROLE, HELLO))
        await stage.gateway.until(lambda: any(r.reply and r.reply.content for r in stage.gateway.requests()))
        await DEATHS[name](turn)

    interrupted = stage.attempts("s", "interrupted")
    stage.s.play(script)
    reply = await stage.ask("pair")
    assert reply.status == 200
    assert not reply.ended
    assert reply.body.startswith(renamed(ROLE, HELLO, model=b"pair"))
    assert reply.body.endswith(INTERRUPTED)
    assert DONE not in reply.body
    assert reply.body.count(b"error") == INTERRUPTED.count(b"error")
    assert stage.t.turns == []
    assert stage.gateway.gateway.fleet["s"].health.fails == 1
    assert stage.attempts("s", "interrupted") == interrupted + 1


async def test_an_error_event_is_the_end_whatever_follows(stage: Stage) -> None:
    stage.s.play(says(ROLE, HELLO, ERROR, HELLO, STOP, DONE))
    reply = await stage.ask()
    assert reply.body == renamed(ROLE, HELLO) + INTERRUPTED
    assert "EngineCore" in stage.gateway.gateway.fleet["s"].health.reason


async def test_a_completion_that_breaks_ends_the_same_way(stage: Stage) -> None:
    text = b'data: {"id":"c","model":"served/model","choices":[{"index":0,"text":"hello","finish_reason":null}]}\n\n'
    stage.s.play(says(text))
    reply = await stage.ask(path="/v1/completions", prompt="x")
    assert reply.body == renamed(text) + INTERRUPTED
    assert not reply.ended


async def test_with_n_2_one_choice_without_end_is_a_break(stage: Stage) -> None:
    stage.s.play(says(ROLE, HELLO, event({"content": "x"}, index=1), STOP, DONE))
    reply = await stage.ask(n=2)
    assert reply.body.endswith(INTERRUPTED)
    assert not reply.ended


async def test_a_server_that_ignores_n_has_given_a_whole_answer(stage: Stage) -> None:
    health = stage.gateway.gateway.fleet["s"].health
    for path, events in (
        ("/v1/chat/completions", [ROLE, HELLO, STOP, DONE]),
        ("/v1/completions", [STOP.replace(b'"delta":{}', b'"text":"hi"'), DONE]),
    ):
        stage.s.play(says(*events))
        for _ in range(4):
            reply = await stage.ask(n=2, path=path, prompt="x")
            assert (reply.body, reply.ended) == (renamed(*events), True)
    assert health.fails == 0


@pytest.mark.parametrize("events", [[ROLE, HELLO, STOP], [ROLE, HELLO, DONE]])
async def test_with_n_2_a_single_choice_needs_both_its_end_and_done(stage: Stage, events: list[bytes]) -> None:
    stage.s.play(says(*events))
    assert (await stage.ask(n=2)).body.endswith(INTERRUPTED)


async def test_with_n_2_every_choice_arrives(stage: Stage) -> None:
    events = [ROLE, HELLO, event({"content": "x"}, index=1), STOP, event({}, "length", index=1), DONE]
    stage.s.play(says(*events))
    reply = await stage.ask(n=2)
    assert reply.body == renamed(*events)
    assert reply.ended
