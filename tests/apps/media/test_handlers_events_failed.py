"""Servers that fail after they have said 200: the error is an event of the stream."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.apps.media.forms import WAV, House, form, house, part
from tests.scripted import END, SSE_HEAD, Turn, chunked

DELTA = b'data: {"type":"transcript.text.delta","delta":"an \\"error\\" is told"}\n\n'
DONE = b'data: {"type":"transcript.text.done","text":"hi","error":null}\n\n'
VLLM = b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}\n\n'
ENDED = b"data: [DONE]\n\n"
STREAM = form(part("model", b"pair"), part("stream", b"true"), part("file", WAV, "a.wav"))


@pytest.fixture
async def pair() -> AsyncIterator[House]:
    async with house() as found:
        yield found


@pytest.mark.parametrize(
    "sent",
    [
        (VLLM, ENDED),
        (VLLM[:20], VLLM[20:] + ENDED),
        (VLLM.rstrip(),),
        (b"event: error\r\n" + VLLM.replace(b"\n", b"\r\n"),),
        (DELTA + VLLM + ENDED,),
    ],
    ids=["whole", "in pieces", "without an end", "crlf", "behind words that nobody has"],
)
async def test_a_stream_that_begins_with_an_error_leads_to_the_next_backend(
    pair: House, sent: tuple[bytes, ...]
) -> None:
    pair.a.play(lambda turn: turn.stream(*sent))
    pair.b.play(lambda turn: turn.stream(DELTA, DONE))
    reply = await pair.transcribe(STREAM)
    assert (reply.status, reply.body, reply.ended) == (200, DELTA + DONE, True)
    assert reply.headers["x-gateway-backend"] == "b"
    reply = await pair.speak(stream_format="sse")
    assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "b")


async def test_a_stream_that_ends_in_an_error_never_looks_complete(pair: House) -> None:
    async def fails_later(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(DELTA))
        await pair.gateway.until(lambda: any(request.exchange.started for request in pair.gateway.requests()))
        await turn.send(chunked(VLLM, ENDED) + END)

    pair.a.play(fails_later)
    reply = await pair.transcribe(STREAM)
    assert (reply.status, reply.ended) == (200, False)
    assert reply.body.startswith(DELTA + VLLM)
    assert pair.b.turns == []
    labels = {"alias": "pair", "backend": "a", "endpoint": "transcriptions", "code": "stream_interrupted"}
    assert pair.gateway.metric("gateway_requests_total", **labels) == 1


async def test_the_error_of_every_stream_comes_in_the_envelope(pair: House) -> None:
    for backend in (pair.a, pair.b):
        backend.play(lambda turn: turn.stream(VLLM, ENDED))
    reply = await pair.transcribe(STREAM)
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_error")


@pytest.mark.parametrize("begins", [b": ping\n\n", b"data: " + b"x" * 100_000])
async def test_an_event_that_is_no_error_is_passed_on_as_it_is(pair: House, begins: bytes) -> None:
    pair.a.play(lambda turn: turn.stream(begins, DELTA, DONE))
    reply = await pair.transcribe(STREAM)
    assert (reply.body, reply.headers["x-gateway-backend"]) == (begins + DELTA + DONE, "a")
