"""A backend whose answer is no HTTP, or whose answer makes our own reader fail: that is its failure, at a bounded cost,
and the next candidate is asked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.limits import cpu_within
from tests.mutations import dumped
from tests.scripted import SSE_HEAD, Turn, answer, chunked
from tests.two_backends import (
    CHAT,
    House,
    chunk,
    event,
    failed_inside,
    well_answered,
    whole,
)
from tests.two_backends import built as built
from tests.two_backends import house as house

pytestmark = pytest.mark.asyncio(loop_scope="module")

OK = json.dumps(whole({"role": "assistant", "content": "from-a"})).encode()
LENGTH = b"content-length: %d\r\n" % len(OK)
JSON = b"content-type: application/json\r\n"
HEADS: dict[str, bytes] = {
    "a header of a megabyte": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1_000_000 + b"\r\n" + LENGTH + b"\r\n" + OK,
    "a hundred thousand headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000 + LENGTH + b"\r\n" + OK,
    "a flood of 100": b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000 + b"HTTP/1.1 200 OK\r\n" + LENGTH + b"\r\n" + OK,
    "a long reason": b"HTTP/1.1 200 " + b"O" * 1_000_000 + b"\r\n" + LENGTH + b"\r\n" + OK,
    "101": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "204 with a body": b"HTTP/1.1 204 No Content\r\n" + JSON + LENGTH + b"\r\n" + OK,
    "304 with a body": b"HTTP/1.1 304 Not Modified\r\n" + JSON + LENGTH + b"\r\n" + OK,
    "302": b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    "999": b"HTTP/1.1 999 What\r\n" + JSON + LENGTH + b"\r\n" + OK,
    "600": b"HTTP/1.1 600 What\r\n" + JSON + LENGTH + b"\r\n" + OK,
    "status 0": b"HTTP/1.1 000 What\r\n" + LENGTH + b"\r\n" + OK,
    "a short body": b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: %d\r\n\r\n" % (len(OK) + 9) + OK,
    "two lengths": b"HTTP/1.1 200 OK\r\n" + LENGTH + b"content-length: 3\r\n\r\n" + OK,
    "no chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n" + OK,
    "a chunk without end": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(OK),
    "a huge chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n" + OK,
    "endless trailers": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    + chunked(OK)
    + b"0\r\n"
    + b"x: y\r\n" * 100_000,
    "an endless trailer": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    + chunked(OK)
    + b"0\r\nx: "
    + b"y" * 1_000_000,
    "an endless chunk extension": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;x=" + b"y" * 1_000_000,
    "not HTTP": b"hello " * 1000,
    "an unknown encoding": b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\n" + LENGTH + b"\r\n" + OK,
    "no gzip": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n" + LENGTH + b"\r\n" + OK,
}


@pytest.mark.parametrize("name", HEADS)
async def test_an_answer_that_is_no_http_is_a_failure_of_its_backend(house: House, name: str) -> None:
    async def wrong(turn: Turn) -> None:
        await turn.send(HEADS[name])
        turn.close()

    house.a.play(wrong)
    before = failed_inside(house)
    with cpu_within(3.0):
        well_answered(await house.chat(CHAT, stream=False, tools=False), CHAT, stream=False)
    assert failed_inside(house) == before


async def test_headers_of_a_backend_do_not_reach_the_client(house: House) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nset-cookie: a=b\r\nx-gateway-backend: z\r\n"
    body = dumped(whole({"role": "assistant", "content": "x"}, model="x\r\nset-cookie: c=d"))
    house.a.play(lambda turn: turn.send(head + b"content-length: %d\r\n\r\n" % len(body) + body))
    reply = await house.chat(CHAT, stream=False, tools=False)
    assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "a")
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("value", ["nan", "inf", "-5", "1e400", "9" * 5000, "Thu, 01 Jan 0001 00:00:00 -0000", "x\x80"])
async def test_an_odd_retry_after_is_bounded(house: House, value: str) -> None:
    answered = answer(b"{}", "429 Too Many Requests", "application/json", f"retry-after: {value}")
    for backend in (house.a, house.b):
        backend.play(lambda turn: turn.send(answered))
    try:
        reply = await house.ask(CHAT, messages=[{"role": "user", "content": "hi"}], model="pair")
    finally:
        for state in house.gateway.gateway.fleet.states.values():
            state.cooldown_until = 0.0
    assert reply.status in (429, 503)
    assert 0 < int(reply.headers["retry-after"]) <= 600


async def test_an_answer_that_makes_the_reader_fail_is_left_for_the_next_backend(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect of ours, made for the test: logged with its traceback, counted, and the next candidate is asked."""
    from gateway.inspection.whole import read_whole

    def broken(body: bytes, *more: Any) -> Any:
        if b"from-a" in body:
            raise KeyError("a defect")
        return read_whole(body, *more)

    monkeypatch.setattr("gateway.proxy.attempt.read_whole", broken)
    house.a.play(lambda turn: turn.send(answer(OK)))
    before = house.gateway.metric("gateway_internal_failures_total", part="answer")
    well_answered(await house.chat(CHAT, stream=False, tools=False), CHAT, stream=False)
    assert house.gateway.metric("gateway_internal_failures_total", part="answer") == before + 1
    assert any(record.exc_info and "reading what a answered" in record.getMessage() for record in caplog.records)


async def test_the_same_in_a_stream_after_content(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.inspection.stream_track import StreamTrack

    real = StreamTrack.feed

    def broken(self: StreamTrack, events: Any) -> bytes:
        if any(b"BOOM" in one for one in events):
            raise IndexError("a defect")
        return real(self, events)

    monkeypatch.setattr(StreamTrack, "feed", broken)

    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(event(chunk({"content": "hel"}))))
        await house.gateway.until(lambda: any(r.reply and r.reply.content for r in house.gateway.requests()))
        await turn.send(chunked(event(chunk({"content": "BOOM"}))))
        await turn.until_lost()

    house.a.play(script)
    async with asyncio.timeout(20):
        reply = await house.chat(CHAT, stream=True, tools=False)
    assert b"stream_interrupted" in reply.body
    assert not reply.ended


async def test_a_failure_after_the_answer_leaves_the_answer(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.domain.evidence import Evidence

    real, broken = Evidence.succeeded, iter([True, True])

    def succeeded(self: Evidence) -> None:
        if self is house.gateway.gateway.fleet["b"].evidence and next(broken, False):
            raise KeyError("a defect")
        real(self)

    monkeypatch.setattr(Evidence, "succeeded", succeeded)
    house.a.play(lambda turn: turn.send(HEADS["not HTTP"]))
    before = house.gateway.metric("gateway_internal_failures_total", part="answer")
    for stream in (False, True):
        house.gateway.gateway.fleet["a"].evidence.succeeded()
        well_answered(await house.chat(CHAT, stream=stream, tools=False), CHAT, stream=stream)
    assert house.gateway.metric("gateway_internal_failures_total", part="answer") == before + 2
