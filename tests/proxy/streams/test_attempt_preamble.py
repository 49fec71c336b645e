"""What a backend sends before it says anything, and how much of it: comments, role chunks, compressed or not."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib

import pytest

from gateway.domain.endpoints import CHAT
from gateway.domain.request import parse
from gateway.inspection import stream_track as streaming
from gateway.inspection.rewrite import ReplyIdentity
from gateway.inspection.stream_track import StreamTrack
from gateway.transport.sse import Framer
from tests.proxy.streams.stage import DONE, HELLO, ROLE, STOP, Stage, says
from tests.scripted import END, SSE_HEAD, Turn, chunked
from tests.scripted import answer as http_answer
from tests.waiting import turns

pytestmark = pytest.mark.asyncio(loop_scope="module")

PACKED = SSE_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
MIB = 1024 * 1024


def track() -> StreamTrack:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}'
    return StreamTrack(parse(CHAT, body), ReplyIdentity())


@pytest.mark.parametrize("event", [b":\n\n", b": x\r\n\r\n", b"\n\n", b"data:\n\n", b"data: {}\n\n", ROLE])
async def test_a_stream_that_never_comes_to_the_point_is_broken(event: bytes) -> None:
    framer, followed = Framer(), track()
    block = event * (64 * 1024 // len(event))
    for _ in range(2 * streaming.PREAMBLE_MOST // len(block)):
        followed.feed(framer.feed(block))
        if followed.failure is not None:
            break
    assert followed.failure == "sent too much before it said anything"
    assert sum(map(len, followed.held)) <= streaming.PREAMBLE_MOST + len(event)


async def test_comments_while_a_request_waits_are_no_burden(stage: Stage) -> None:
    stage.s.play(says(*[b": still here\n\n"] * 5000, ROLE, HELLO, STOP, DONE))
    reply = await stage.ask()
    assert (reply.status, reply.ended) == (200, True)
    assert b"still here" not in reply.body


async def test_a_flood_of_packed_comments_fails_its_attempt_alone(stage: Stage) -> None:
    flood = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b": x\n\n" * (MIB // 5)
    packed = b"".join(flood.compress(block) for _ in range(100)) + flood.flush()

    async def script(turn: Turn) -> None:
        await turn.send(PACKED + chunked(packed) + END)

    stage.s.play(script)
    stage.t.play(says(ROLE, HELLO, STOP, DONE))
    longest = 0.0
    asked = asyncio.create_task(stage.ask("pair"))
    while not asked.done():
        before = time.process_time()
        await turns()
        longest = max(longest, time.process_time() - before)
    reply = await asked
    assert (reply.status, reply.ended) == (200, True)
    assert reply.headers["x-gateway-backend"] == "t"
    assert longest < 0.5


async def test_a_whole_answer_that_inflates_beyond_the_bound_fails_its_attempt_alone(stage: Stage) -> None:
    bomb = gzip.compress(bytes(300 * MIB), 9)

    async def script(turn: Turn) -> None:
        await turn.send(http_answer(bomb, "200 OK", "application/json", "content-encoding: gzip"))

    async def fine(turn: Turn) -> None:
        await turn.send(
            http_answer(b'{"id":"x","choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}]}')
        )

    stage.s.play(script)
    stage.t.play(fine)
    reply = await stage.ask("pair", stream=False)
    assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "t")
