"""A request that runs on what was decided before, whatever happens to it: to the client it is one request, and
everything that it held is released."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

import gateway.proxy.reply as gateway_reply
from gateway.accounting.record import RequestLine
from gateway.domain.upstream import SilenceFailure
from gateway.proxy.exchange import PIECE
from tests.proxy.house import END, ROLE, event, house, pieces, released, said, well
from tests.scripted import Turn, answer, chunked, json_answer
from tests.waiting import turns

CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def broken(*_: object) -> object:
    raise ZeroDivisionError


async def held(turn: Turn) -> None:
    """Answer nothing, until the gateway gives it up."""
    await turn.until_lost()


async def fails(turn: Turn) -> None:
    await turn.send(json_answer({"error": {"message": "CUDA error"}}, "500 Internal Server Error"))


async def closes(turn: Turn) -> None:
    turn.close()


async def resets(turn: Turn) -> None:
    turn.reset()


async def breaks_off(turn: Turn) -> None:
    await turn.send(json_answer(said("Yes."))[:-9])
    turn.close()


async def no_http(turn: Turn) -> None:
    await turn.send(b"nonsense\r\n\r\n")


async def no_json(turn: Turn) -> None:
    await turn.send(answer(b"{nonsense"))


async def says_nothing(turn: Turn) -> None:
    await turn.send(json_answer(said(None)))


async def error_as_answer(turn: Turn) -> None:
    await turn.send(json_answer({"error": {"message": "EngineCore died"}}))


async def stream_without_events(turn: Turn) -> None:
    await turn.send(answer(b"<html>Yes.</html>", content_type="text/html"))


async def error_event(turn: Turn) -> None:
    await turn.send(pieces(ROLE, b'data: {"error": {"message": "EngineCore died"}}\n\n'))


async def breaks_off_before_content(turn: Turn) -> None:
    await turn.send(pieces(ROLE))
    turn.close()


async def ends_before_content(turn: Turn) -> None:
    await turn.stream(ROLE)


WHOLE = (fails, closes, resets, breaks_off, no_http, no_json, error_as_answer)
STREAMED = (fails, closes, no_http, stream_without_events, error_event, breaks_off_before_content, ends_before_content)


@pytest.mark.parametrize("script", WHOLE)
async def test_a_failed_answer_is_had_from_the_next_backend(script: Callable[[Turn], Awaitable[None]]) -> None:
    async with house() as h:
        await h.prepared(script)
        await h.ask()
        status, body = await h.client.answer()
        assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "Yes.")
        assert len(h.kept) == 1
        assert len(h.b.turns) == 1
        await released(h)
        assert h.count("200", "b") == 1


@pytest.mark.parametrize("script", STREAMED)
async def test_a_failed_stream_is_had_from_the_next_backend(script: Callable[[Turn], Awaitable[None]]) -> None:
    async with house() as h:
        await h.prepared(script, stream=True)
        await h.ask(stream=True)
        answered = await h.client.until(b"[DONE]\n\n\r\n0\r\n\r\n")
        assert b"x-gateway-backend: b\r\n" in answered
        assert b"x-gateway-attempts: 2\r\n" in answered
        assert answered.count(b'"content":"Yes."') == 1
        assert len(h.kept) == 1
        await released(h)
        assert h.count("200", "b") == 1


async def test_a_stale_connection_is_replaced_and_the_same_backend_answers() -> None:
    async def answers_and_closes(turn: Turn) -> None:
        await well(turn)
        turn.close()

    async with house() as h:
        await h.prepared(closes, well)
        await h.ask()
        status, _ = await h.client.answer()
        assert status == 200
        assert [turn.json for turn in h.a.turns] == [h.a.turns[0].json] * 2
        assert not h.b.turns
        await released(h)


async def test_a_refusal_is_passed_on_as_it_is() -> None:
    async def refuses(turn: Turn) -> None:
        await turn.send(json_answer({"error": {"message": "temperature is too high"}}, "400 Bad Request"))

    async with house() as h:
        await h.prepared(refuses)
        await h.ask()
        status, body = await h.client.answer()
        assert (status, json.loads(body)["error"]["message"]) == (400, "temperature is too high")
        await released(h)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_leaked_call_is_mended(stream: bool) -> None:
    async def leaks(turn: Turn) -> None:
        if stream:
            await turn.stream(ROLE, event({"content": CALL[:20]}), event({"content": CALL[20:]}), *END)
        else:
            await turn.send(json_answer(said(CALL)))

    async with house() as h:
        await h.prepared(leaks, stream=stream, tools=TOOLS)
        await h.ask(stream=stream, tools=TOOLS)
        got = await h.client.until(b"[DONE]\n\n\r\n0\r\n\r\n") if stream else (await h.client.answer())[1]
        assert len(h.kept) == 1
        assert b'"tool_calls"' in got
        assert b"<tool_call>" not in got
        assert h.gateway.metric("gateway_mended_total", backend="a", kind="tool_calls") == 1
        await released(h)


async def test_a_long_answer_and_one_in_parts_come_whole() -> None:
    text = "So. " * (PIECE // 4 + 100)

    async def long(turn: Turn) -> None:
        await turn.send(json_answer(said(text)))

    async def in_parts(turn: Turn) -> None:
        data = json_answer(said("In parts."))
        for at in range(0, len(data), 50):
            await turn.send(data[at : at + 50])
            await turns()

    async with house() as h:
        await h.prepared(long, in_parts)
        for expected in (text, "In parts."):
            await h.ask()
            status, body = await h.client.answer()
            assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, expected)
        assert len(h.kept) == 2
        await released(h)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_silent_backend_is_left(stream: bool) -> None:
    async with house("timeouts: {first_byte: 1500ms}") as h:  # longer than a busy machine freezes
        await h.prepared(held, stream=stream)
        await h.ask(stream=stream)
        got = await h.client.until(b"[DONE]\n\n\r\n0\r\n\r\n") if stream else (await h.client.answer())[1]
        assert b"Yes." in got
        assert h.count("200", "b") == 1
        assert h.gateway.state("a").value == "suspect"
        await h.gateway.until(h.gateway.idle)


async def test_a_client_that_leaves_ends_its_request() -> None:
    lost = asyncio.Event()

    async def held(turn: Turn) -> None:
        await turn.until_lost()
        lost.set()

    async with house() as h:
        await h.prepared(held)
        await h.ask()
        await h.gateway.until(lambda: len(h.a.turns) == 1)
        h.client.close()
        await asyncio.wait_for(lost.wait(), 5)
        await h.gateway.until(h.gateway.idle)
        assert h.count("client_gone", "a") == 1
        assert h.gateway.gateway.memory.used == 0


async def test_an_interruption_ends_it_before_its_first_pulse() -> None:
    async with house() as h:
        await h.prepared(held)
        await h.ask()
        await h.gateway.until(lambda: len(h.a.turns) == 1)
        h.gateway.gateway.active.interrupt_all()
        status, body = await h.client.answer()
        assert (status, json.loads(body)["error"]["code"]) == (503, "no_backend_available")
        await h.gateway.until(h.gateway.idle)
        assert h.gateway.gateway.memory.used == 0


async def test_two_reasons_at_once_end_it_once() -> None:
    async with house() as h:
        await h.prepared(held)
        await h.ask()
        await h.gateway.until(lambda: len(h.a.turns) == 1)
        lines: list[RequestLine] = []
        h.gateway.gateway.services.line_observers.append(lines.append)
        (request,) = h.gateway.gateway.active
        request.timer.interrupt(SilenceFailure("silent"))
        request.timer.interrupt(SilenceFailure("silent still"))
        h.client.close()
        await h.gateway.until(h.gateway.idle)
        assert len(lines) == 1
        assert h.gateway.gateway.memory.used == 0


@pytest.mark.parametrize("before", [(), (ROLE,)])
async def test_a_stream_that_waits_gets_its_status_and_heartbeats(
    monkeypatch: pytest.MonkeyPatch, before: tuple[bytes, ...]
) -> None:
    monkeypatch.setattr(gateway_reply, "HEARTBEAT", 0.05)
    go = asyncio.Event()

    async def late(turn: Turn) -> None:
        await turn.send(pieces(*before))
        await go.wait()
        await turn.send(chunked(event({"content": "Yes."}), *END), b"0\r\n\r\n")

    async with house("timeouts: {hold: 100ms}") as h:
        await h.prepared(late, stream=True)
        await h.ask(stream=True)
        head = await h.client.until(b'"delta":{}')
        assert b"x-gateway-committed: early" in head
        await h.client.until(b'"delta":{}')
        go.set()
        rest = await h.client.until(b"[DONE]\n\n\r\n0\r\n\r\n")
        assert rest.count(b'"content":"Yes."') == 1
        await released(h)


async def test_a_stream_that_breaks_after_content_ends_with_an_error_event() -> None:
    async def breaks(turn: Turn) -> None:
        await turn.send(pieces(ROLE, event({"content": "Ye"})))
        turn.close()

    async with house() as h:
        await h.prepared(breaks, stream=True)
        await h.ask(stream=True)
        got = await h.client.rest()
        assert got.count(b'"content":"Ye"') == 1
        assert b'"code":"stream_interrupted"' in got
        assert b"[DONE]" not in got
        await h.gateway.until(h.gateway.idle)
        assert h.gateway.gateway.memory.used == 0
        assert h.count("stream_interrupted", "a") == 1


@pytest.mark.parametrize("reader", ["whole", "relay"])
async def test_a_defect_of_our_own_is_told_and_holds_nothing(monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    stream = reader != "whole"
    async with house() as h:
        await h.prepared(well, stream=stream)
        if stream:
            monkeypatch.setattr("gateway.inspection.stream_track.StreamTrack.feed", broken)
        else:
            monkeypatch.setattr("gateway.inspection.whole.WholeAnswer.read", broken)
        await h.ask(stream=stream)
        assert (await h.client.answer())[0] == 502
        assert len(h.kept) == 1
        monkeypatch.undo()
        await h.gateway.until(h.gateway.idle)
        assert h.gateway.gateway.memory.used == 0


async def test_what_fails_behind_the_answer_harms_neither_client_nor_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    async with house() as h:
        await h.prepared(well)
        monkeypatch.setattr(h.gateway.gateway.services.settler, "settle", broken)
        lines: list[RequestLine] = []
        h.gateway.gateway.services.line_observers.append(lines.append)
        await h.ask()
        assert (await h.client.answer())[0] == 200
        monkeypatch.undo()
        assert h.gateway.metric("gateway_internal_failures_total", part="settle") == 1
        assert [(line.outcome, line.backend) for line in lines] == [("200", "a")]
        await released(h)


async def test_a_gateway_that_stops_closes_the_connection_behind_the_answer() -> None:
    go = asyncio.Event()

    async def held(turn: Turn) -> None:
        await go.wait()
        await well(turn)

    async with house() as h:
        await h.prepared(held)
        await h.ask()
        await h.gateway.until(lambda: len(h.a.turns) == 1)
        for connection in list(h.gateway.server.server_state.connections):
            connection.shutdown()
        go.set()
        got = await h.client.rest()
        assert b"connection: close\r\n" in got
        assert b"Yes." in got
