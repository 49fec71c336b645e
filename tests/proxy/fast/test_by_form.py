"""A stream that goes as one before is followed on the fast lane to its end, however long it takes; where it goes
another way, or something happens to it, the client gets what it gets on the slow lane, each byte once."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from gateway.http.connection import Connection
from gateway.http.fast_service import FastService
from gateway.inspection.plain_stream import PlainStream
from gateway.inspection.stream_track import StreamTrack
from gateway.proxy.fast.stream import FastStream
from tests.proxy.fast.house import END, HEAD, ROLE, House, event, house, pieces, released, well
from tests.proxy.fast.test_handed_over import TOOLS
from tests.scripted import Turn, chunked
from tests.waiting import turns

LAST = b"0\r\n\r\n"
WHOLE = b"[DONE]\n\n\r\n0\r\n\r\n"


def text(word: str) -> bytes:
    return event({"content": word})


def words(answer: bytes) -> list[bytes]:
    """The texts in the order in which the client got them."""
    return [found for found in re.findall(rb'"content":"([^"]*)"', answer) if found]


def unread(h: House) -> bytes:
    """What has come to the client and was not looked at."""
    return bytes(h.client.reader._buffer)  # type: ignore[attr-defined]  # asyncio's


class Steps:
    """A script that sends each part when it is told to."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts
        self._gates = [asyncio.Event() for _ in parts]
        self.lost = asyncio.Event()

    async def __call__(self, turn: Turn) -> None:
        for gate, part in zip(self._gates, self._parts, strict=True):
            await gate.wait()
            await turn.send(part)
        if self._parts[-1].endswith(LAST):
            return
        await turn.until_lost()
        self.lost.set()

    def go(self, number: int) -> None:
        self._gates[number].set()


async def by_form(h: House) -> FastStream:
    """The request under way, once it follows a form."""
    await h.gateway.until(lambda: bool(h.fast))
    (request,) = h.fast
    assert isinstance(request, FastStream)
    return request


async def begun(h: House, steps: Steps) -> tuple[FastStream, bytes]:
    """A request that follows a form, and what its client has with the first text."""
    await h.prepared(steps, stream=True)
    await h.ask(stream=True)
    request = await by_form(h)
    steps.go(0)
    return request, await h.client.until(b"One")


def connection_of(request: FastStream) -> Connection:
    client = request._client
    assert isinstance(client, FastService)
    assert isinstance(client._connection, Connection)
    return client._connection


async def test_a_long_stream_is_followed_by_its_form_to_its_end() -> None:
    steps = Steps(
        pieces(ROLE),
        chunked(text("One")),
        chunked(text(" two"), text(" three")),
        chunked(text(" four")) + chunked(END[0]),
        chunked(*END[1:]) + LAST,
    )
    async with house() as h:
        await h.prepared(steps, stream=True)
        await h.ask(stream=True)
        request = await by_form(h)
        steps.go(0)
        await h.gateway.until(lambda: request._under_way is not None)  # it lasts: it has a timer now
        got = b""
        for number, last in ((1, b"One"), (2, b" three"), (3, b'"stop"')):
            steps.go(number)
            got += await h.client.until(last)
            assert request._plain is not None
            await h.gateway.until(lambda: request.timer.heard == request._heard)
        assert request.timer.budget == request.member.state.backend.timeouts.idle
        steps.go(4)
        got += await h.client.until(WHOLE)
        assert words(got) == [b"One", b" two", b" three", b" four"]
        assert b"usage" not in got
        assert not h.over
        await released(h)
        assert h.count("200", "a") == 4
        assert h.gateway.metric("gateway_inter_token_seconds_count", backend="a") >= 2


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_stream_that_goes_another_way_goes_on_elsewhere(at: int) -> None:
    parts = [pieces(ROLE), chunked(text("One")), chunked(text(" two")), chunked(*END) + LAST]
    steps = Steps(*parts[:at], chunked(b": a comment\n\n"), *parts[at:])
    async with house() as h:
        await h.prepared(steps, stream=True)
        await h.ask(stream=True)
        request = await by_form(h)
        got = b""
        for number in range(len(parts) + 1):
            steps.go(number)
            await turns()
        got = await h.client.until(WHOLE)
        assert words(got) == [b"One", b" two"]
        assert got.count(b'"role"') == 1
        assert got.count(b": a comment") == (at > 1)
        assert request._plain is None
        await released(h)
        assert h.count("200", "a") == 4


async def test_the_head_may_come_alone_and_long_before_the_rest() -> None:
    steps = Steps(HEAD, chunked(ROLE), chunked(text("One")), chunked(*END), LAST)
    async with house() as h:
        await h.prepared(steps, stream=True)
        await h.ask(stream=True)
        request = await by_form(h)
        steps.go(0)
        await h.gateway.until(lambda: request._under_way is not None)
        assert request._plain is not None
        assert request.timer.heard == request.began, "a head alone shows no progress"
        for number in range(1, 5):
            steps.go(number)
        got = await h.client.until(WHOLE)
        assert words(got) == [b"One"]
        assert not h.over
        await released(h)
        assert h.count("200", "a") == 4


@pytest.mark.parametrize("more", [LAST, b"", b"nonsense\r\n"])
async def test_a_head_without_a_stream_is_a_failure(more: bytes) -> None:
    async def head_alone(turn: Turn) -> None:
        await turn.send(HEAD)
        await turns()
        await turn.send(more)
        turn.close()

    async with house() as h:
        await h.prepared(head_alone, stream=True)
        await h.ask(stream=True)
        got = await h.client.until(WHOLE)
        assert b"x-gateway-backend: b\r\n" in got
        await released(h)


async def test_a_chunk_that_is_cut_is_read_by_the_parser() -> None:
    cut = chunked(text(" two"))
    steps = Steps(pieces(ROLE, text("One")), cut[:9], cut[9:], chunked(*END) + LAST)
    async with house() as h:
        await h.prepared(steps, stream=True)
        await h.ask(stream=True)
        await by_form(h)
        steps.go(0)
        got = await h.client.until(b"One")
        for number in (1, 2, 3):
            steps.go(number)
            await turns()
        got += await h.client.until(WHOLE)
        assert words(got) == [b"One", b" two"]
        await released(h)


async def test_a_client_that_leaves_ends_the_stream_at_the_backend() -> None:
    steps = Steps(pieces(ROLE, text("One")))
    async with house() as h:
        await begun(h, steps)
        h.client.close()
        await asyncio.wait_for(steps.lost.wait(), 5)
        await h.gateway.until(h.gateway.idle)
        assert h.count("client_gone", "a") == 1
        assert h.gateway.gateway.memory.used == 0


@pytest.mark.parametrize("lasts", [False, True])
async def test_a_stop_ends_the_stream_with_an_error_event(lasts: bool) -> None:
    steps = Steps(pieces(ROLE, text("One")))
    async with house() as h:
        request, got = await begun(h, steps)
        if lasts:
            await h.gateway.until(lambda: request._under_way is not None)
        h.gateway.gateway.active.interrupt_all()
        got += await h.client.rest()
        assert words(got) == [b"One"]
        assert b'"code":"stream_interrupted"' in got or b'"error"' in got
        assert b"[DONE]" not in got
        await h.gateway.until(h.gateway.idle)
        assert h.gateway.gateway.memory.used == 0


async def test_a_backend_that_falls_silent_after_content_is_noticed() -> None:
    steps = Steps(pieces(ROLE, text("One")))
    async with house("timeouts: {idle: 1500ms}") as h:  # longer than a busy machine freezes
        await h.prepared(steps, stream=True)
        await h.ask(stream=True)
        steps.go(0)
        got = await h.client.rest()
        assert words(got) == [b"One"]
        assert b'"code":"stream_interrupted"' in got
        await asyncio.wait_for(steps.lost.wait(), 5)
        await h.gateway.until(h.gateway.idle)
        assert h.count("stream_timeout", "a") + h.count("stream_interrupted", "a") == 1


async def test_a_client_that_reads_slowly_gets_each_byte_once() -> None:
    steps = Steps(pieces(ROLE, text("One")), chunked(text(" two")), chunked(text(" three"), *END) + LAST)
    async with house() as h:
        request, got = await begun(h, steps)
        flow = connection_of(request).flow
        flow.pause_writing()
        steps.go(1)
        await h.gateway.until(lambda: bool(h.over))
        assert not words(unread(h)), "nothing more is written before it has read"
        flow.resume_writing()
        steps.go(2)
        got += await h.client.until(WHOLE)
        assert words(got) == [b"One", b" two", b" three"]
        await released(h)


@pytest.mark.parametrize("more", [LAST, b"5\r\nnoise\r\n" + LAST, b"5\r\nno", b"nonsense", b""])
@pytest.mark.parametrize("lasts", [False, True])
async def test_whatever_follows_the_end_the_answer_is_whole_and_nothing_is_held(
    monkeypatch: pytest.MonkeyPatch, more: bytes, lasts: bool
) -> None:
    monkeypatch.setattr("gateway.proxy.fast.stream.TAIL", 5.0 if LAST in more else 0.2)
    steps = Steps(pieces(ROLE, text("One")), chunked(*END), more)
    async with house() as h:
        request, got = await begun(h, steps)
        if lasts:
            await h.gateway.until(lambda: request._under_way is not None)
        steps.go(1)
        got += await h.client.until(WHOLE)
        steps.go(2)
        assert words(got) == [b"One"]
        connections = h.a.connections
        await h.gateway.until(h.gateway.idle)
        assert connection_of(request)._on_leave is None
        await released(h)
        assert not h.over
        assert h.count("200", "a") == 4
        await h.ask(stream=True)
        await h.client.until(WHOLE)
        assert (h.a.connections == connections) == (LAST in more), "else it is closed"


@pytest.mark.parametrize("tools", [None, TOOLS])
async def test_content_behind_the_end_reaches_nobody(tools: list[object] | None) -> None:
    more: dict[str, Any] = {"tools": tools} if tools else {}
    steps = Steps(pieces(ROLE, text("One")), chunked(text(" two")), chunked(*END), chunked(text(" three")), LAST)
    async with house() as h:
        await h.prepared(steps, stream=True, **more)
        await h.ask(stream=True, **more)
        got = b""
        for number, last in enumerate((b"One", b" two", WHOLE)):
            steps.go(number)
            got += await h.client.until(last)
            response = h.fast[0]._response
            assert (response is not None) == bool(tools), "by the form no response is made"
            if response is not None:
                assert (response.follower is not None) == (last != WHOLE), "until the end, and not behind it"
        for number in (3, 4):
            steps.go(number)
            await turns()
        await h.gateway.until(h.gateway.idle)
        assert words(got) == [b"One", b" two"]
        assert not words(unread(h))
        assert not h.over
        await released(h)


@pytest.mark.parametrize(("tools", "broken"), [(None, PlainStream), (TOOLS, StreamTrack)])
async def test_a_defect_amid_the_text_ends_the_stream_with_an_error(
    monkeypatch: pytest.MonkeyPatch, tools: list[object] | None, broken: type[PlainStream | StreamTrack]
) -> None:
    passes = broken.pass_event
    failed: list[bytes] = []

    def fails_once(follower: Any, data: bytes) -> bytes | None:
        if not failed:
            failed.append(data)
            raise ZeroDivisionError
        return passes(follower, data)

    more: dict[str, Any] = {"tools": tools} if tools else {}
    steps = Steps(pieces(ROLE, text("One")), chunked(text(" two")), chunked(text(" three")))
    async with house() as h:
        await h.prepared(steps, stream=True, **more)
        await h.ask(stream=True, **more)
        steps.go(0)
        got = await h.client.until(b"One")
        steps.go(1)
        got += await h.client.until(b" two")
        monkeypatch.setattr(broken, "pass_event", fails_once)
        steps.go(2)
        got += await h.client.rest()
        monkeypatch.undo()
        assert words(got) == [b"One", b" two"]
        assert b'"error"' in got
        assert len(h.over) == 1
        await h.gateway.until(h.gateway.idle)
        assert h.gateway.gateway.memory.used == 0


async def test_a_form_is_found_in_a_stream_of_many_reads() -> None:
    steps = Steps(*[pieces(ROLE, text("One")), *[chunked(text(f" {i}")) for i in range(60)], chunked(*END) + LAST])

    async with house() as h:
        h.a.play(well, steps)
        await h.ask(stream=True)
        await h.client.until(WHOLE)
        await h.gateway.until(h.gateway.idle)
        await h.ask(stream=True)
        request = await by_form(h)
        assert request.member.forms.form is None
        steps.go(0)
        await h.client.until(b"One")
        for number in range(60):
            steps.go(number + 1)
            await h.client.until(b'" %d"' % number)
        steps.go(61)
        await h.client.until(WHOLE)
        await h.gateway.until(h.gateway.idle)
        assert request.member.forms.form is not None


async def test_a_client_that_leaves_behind_its_answer_harms_nobody() -> None:
    steps = Steps(pieces(ROLE, text("One")), chunked(*END), LAST)
    async with house() as h:
        await begun(h, steps)
        steps.go(1)
        await h.client.until(WHOLE)
        h.client.close()
        steps.go(2)
        await h.gateway.until(h.gateway.idle)
        assert h.count("200", "a") == 4
        assert h.gateway.gateway.memory.used == 0


async def test_the_first_content_may_come_after_the_first_pulse() -> None:
    computed = asyncio.Event()

    async def late(turn: Turn) -> None:
        await computed.wait()
        await well(turn)

    async with house() as h:
        await h.prepared(late, stream=True)
        await h.ask(stream=True)
        request = await by_form(h)
        await h.gateway.until(lambda: request._under_way is not None)
        computed.set()
        got = await h.client.until(WHOLE)
        assert words(got) == [b"Yes."]
        assert request._plain is not None
        assert not h.over
        await released(h)
