"""Spoken answers: passed on as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest_asyncio

from simulator.audio import silence
from tests.apps.media.forms import House, fails, house
from tests.scripted import END, Turn, answer, chunked, json_answer, request_bytes

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[House]:
    async with house() as built:
        yield built


async def test_audio_is_passed_on_while_it_is_made(pair: House) -> None:
    heard = asyncio.Event()

    async def slowly(turn: Turn) -> None:
        await turn.send(HEAD + chunked(b"first"))
        await heard.wait()
        await turn.send(chunked(b"second") + END)

    pair.a.play(slowly)
    client = openai.AsyncOpenAI(base_url=pair.gateway.url + "/v1", api_key="none", max_retries=0)
    asked = client.audio.speech.with_streaming_response.create(model="pair", voice="alloy", input="hello")
    async with client, asked as reply:
        pieces = reply.iter_bytes()
        assert await anext(pieces) == b"first"
        heard.set()
        assert b"".join([piece async for piece in pieces]) == b"second"
        assert reply.headers["content-type"] == "audio/mpeg"
        assert reply.headers["x-gateway-backend"] == "a"
    assert pair.a.turns[0].json == {"model": "own-name", "voice": "alloy", "input": "hello"}


async def test_the_length_of_a_wav_is_counted(pair: House) -> None:
    pair.a.play(lambda turn: turn.send(answer(silence(1.5), content_type="audio/wav")))
    reply = await pair.speak()
    assert (reply.status, reply.body, reply.ended) == (200, silence(1.5), True)
    assert pair.seconds("speech") == 1.5


async def test_another_backend_speaks_when_the_first_one_fails_before_its_first_sound(pair: House) -> None:
    async def silent_end(turn: Turn) -> None:
        await turn.send(HEAD)
        turn.reset()

    no = json_answer({"error": "no"})
    for script in (
        fails,
        silent_end,
        lambda turn: turn.send(no),
        lambda turn: turn.send(no.replace(b"application/json", b"Application/JSON")),
    ):
        pair.a.play(script)
        pair.b.play(lambda turn: turn.send(answer(b"from b", content_type="audio/wav")))
        reply = await pair.speak()
        assert (reply.status, reply.body, reply.headers["x-gateway-backend"]) == (200, b"from b", "b")


async def test_audio_that_breaks_off_never_looks_complete(pair: House) -> None:
    async def breaks(turn: Turn) -> None:
        await turn.send(HEAD + chunked(b"begun"))
        turn.reset()

    async def cut_short(turn: Turn) -> None:
        await turn.send(b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: 900\r\n\r\n" + b"begun")
        turn.close()

    for script in (breaks, cut_short):
        pair.a.play(script)
        reply = await pair.speak()
        assert (reply.status, reply.body, reply.ended) == (200, b"begun", False)
    assert pair.b.turns == []
    labels = {"alias": "pair", "backend": "a", "endpoint": "speech", "code": "stream_interrupted"}
    assert pair.gateway.metric("gateway_requests_total", **labels) == 2


async def test_an_error_of_every_server_comes_in_the_envelope(pair: House) -> None:
    pair.a.play(fails)
    pair.b.play(fails)
    reply = await pair.speak()
    assert (reply.status, reply.json["error"]["code"]) == (500, "upstream_error")
    assert "out of memory" in reply.json["error"]["message"]


async def test_a_client_that_leaves_ends_what_is_spoken(pair: House) -> None:
    lost: list[bool] = []

    async def speaks(turn: Turn) -> None:
        await turn.send(HEAD + chunked(b"begun"))
        await turn.until_lost()
        lost.append(True)

    pair.a.play(speaks)
    host, port = pair.gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request_bytes(pair.gateway.url, {"model": "pair", "input": "hello"}, "/audio/speech"))
    await reader.readuntil(b"begun")
    writer.close()
    await pair.gateway.until(lambda: bool(lost) and pair.gateway.idle())


async def test_a_chat_and_speech_do_not_take_each_others_aliases(pair: House) -> None:
    chat = await pair.gateway.client.post("/v1/chat/completions", json={"model": "pair", "messages": []})
    assert (chat.status_code, chat.json()["error"]["code"]) == (400, "input_unsupported")
    assert pair.a.turns == []


async def test_params_of_the_alias_fill_in_what_the_client_did_not_say() -> None:
    async with house("  spoken: {use: [a], params: {voice: emily, response_format: wav, speed: 1.2}}") as pair:
        pair.a.play(lambda turn: turn.send(answer(b"sound", content_type="audio/wav")))
        asked = {"model": "spoken", "input": "hello", "response_format": "mp3"}
        assert (await pair.gateway.client.post("/v1/audio/speech", json=asked)).content == b"sound"
        sent = {"model": "own-name", "input": "hello", "voice": "emily", "response_format": "mp3", "speed": 1.2}
        assert pair.a.turns[0].json == sent
