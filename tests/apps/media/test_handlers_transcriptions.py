"""Forms with a file: what a backend gets of them, and what becomes of odd ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from unittest.mock import patch

import openai
import pytest
import pytest_asyncio

from gateway.apps.media.handlers import UploadHandler
from gateway.proxy.handler import RequestHandler
from simulator.audio import silence
from tests.apps.media.forms import (
    LARGE,
    ROUTES,
    SPEECH,
    TYPE,
    WAV,
    House,
    fails,
    form,
    heard,
    house,
    part,
    received,
    usual,
)
from tests.listening import later, limit
from tests.raw_client import raw_client
from tests.scripted import Turn, answer, json_answer
from tests.waiting import until_said


def size_of(request: RequestHandler) -> int:
    """Bytes of its file that have come."""
    return request.upload.size if isinstance(request, UploadHandler) and request.upload is not None else 0


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[House]:
    async with house() as built:
        yield built


@pytest.mark.parametrize("file", [WAV, LARGE], ids=["in memory", "on the disk"])
async def test_the_form_reaches_the_backend_with_its_own_model_and_every_other_field(pair: House, file: bytes) -> None:
    listed = "timestamp_granularities[]"
    sent = form(
        part("model", b"pair"),
        part("language", "de–AT".encode()),
        part(listed, b"word"),
        part("file", file, 'a "b".wav', "content-type: audio/wav\r\n"),
        part(listed, b"segment"),
    )
    reply = await pair.transcribe(sent)
    assert (reply.status, reply.json["text"]) == (200, f"{len(file)} bytes")
    assert reply.headers["x-gateway-backend"] == "a"
    turn = pair.a.turns[0]
    found = received(turn)
    assert found["model"] == b"own-name"
    assert found["language"] == "de–AT".encode()
    assert found["file"] == file
    assert turn.body.count(f'name="{listed}"'.encode()) == 2
    assert b'filename="a %22b%22.wav"\r\ncontent-type: audio/wav\r\n' in turn.body


async def test_a_backend_without_a_model_name_gets_none(pair: House) -> None:
    pair.a.play(fails)
    assert (await pair.transcribe(usual())).headers["x-gateway-backend"] == "b"
    assert "model" not in received(pair.b.turns[0])


@pytest.mark.parametrize("file", [WAV, LARGE], ids=["in memory", "on the disk"])
async def test_another_backend_gets_the_whole_file_when_the_first_one_fails(pair: House, file: bytes) -> None:
    async def dies(turn: Turn) -> None:
        turn.reset()

    pair.a.play(dies)
    reply = await pair.transcribe(usual(file))
    assert (reply.status, reply.json["text"]) == (200, f"{len(file)} bytes")
    assert reply.headers["x-gateway-attempts"] == "2"
    assert received(pair.b.turns[0])["file"] == file


async def test_an_answer_that_breaks_off_is_asked_of_another_backend(pair: House) -> None:
    async def half(turn: Turn) -> None:
        await turn.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n" + b'{"te')
        turn.close()

    pair.a.play(half)
    reply = await pair.transcribe(usual())
    assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "b")


async def test_an_empty_model_is_refused_where_several_aliases_would_do() -> None:
    async with house("  other: [b]") as several:
        reply = await several.transcribe(usual(model=b""))
        assert reply.status == 400
        assert reply.json["error"]["message"] == "`model` is missing or empty; name one of: pair, other."


async def test_a_client_that_leaves_within_its_upload_leaves_nothing_behind(pair: House) -> None:
    async with raw_client(pair.gateway.url) as client:
        head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: gateway\r\n{TYPE}\r\ncontent-length: 2000000\r\n\r\n"
        await client.send(head.encode() + usual(LARGE)[:900_000])
        await pair.gateway.until(lambda: [size_of(one) > 800_000 for one in pair.gateway.requests()] == [True])
        client.reset()
    await pair.gateway.until(lambda: pair.memory() == 0 and pair.gateway.idle())
    labels = {"alias": "", "backend": "", "endpoint": "transcriptions", "code": "client_gone"}
    assert pair.gateway.metric("gateway_requests_total", **labels) == 1


async def test_a_client_that_leaves_while_it_is_transcribed_ends_the_attempt(pair: House) -> None:
    lost: list[bool] = []

    async def waits(turn: Turn) -> None:
        await turn.until_lost()
        lost.append(True)

    pair.a.play(waits)
    async with raw_client(pair.gateway.url) as client:
        body = usual()
        head = (
            f"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: gateway\r\n{TYPE}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        await client.send(head.encode() + body)
        await pair.gateway.until(lambda: bool(pair.a.turns))
        client.close()
    await pair.gateway.until(lambda: bool(lost) and pair.gateway.idle() and pair.memory() == 0)


def a_form(body: bytes) -> bytes:
    head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: gateway\r\n{TYPE}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_those_who_leave_a_large_upload_behind_keep_neither_the_slot_nor_a_place_in_the_queue() -> None:
    routes = (
        ROUTES.replace("first_byte: 10s", "first_byte: 10m")
        .replace("max_wait: 0s", "max_wait: 5m")
        .replace("model: own-name", "slots: 1")
    )
    async with house(routes=routes.replace("pair: [a, b]", "pair: [a]")) as pair:
        lost: list[bool] = []

        async def waits(turn: Turn) -> None:
            await turn.until_lost()
            lost.append(True)

        pair.a.play(waits, heard)
        async with AsyncExitStack() as stack:
            leaving = [await stack.enter_async_context(raw_client(pair.gateway.url)) for _ in range(12)]
            sent, last = a_form(usual(LARGE))[:-90_000], a_form(usual(LARGE))[-90_000:]
            for client in leaving:
                await client.send(sent)
            much = [True] * len(leaving)
            await pair.gateway.until(lambda: [size_of(one) > 1_189_000 for one in pair.gateway.requests()] == much)
            for client in leaving:
                await client.send(last)  # in one read
            await pair.gateway.until(
                lambda: bool(pair.a.turns) and pair.gateway.gateway.admission.queue_depth()["a"] == 11
            )
            for client in leaving:
                client.reset()
        await pair.gateway.until(lambda: bool(lost) and pair.gateway.idle() and pair.memory() == 0)
        assert not any(pair.gateway.gateway.admission.queue_depth().values())
        assert (await pair.transcribe(usual())).status == 200


async def test_text_is_passed_on_with_its_type_and_the_length_of_the_file_is_counted(pair: House) -> None:
    pair.a.play(lambda turn: turn.send(answer(b"1\n00:00 --> 00:01\nhi\n", content_type="text/srt")))
    reply = await pair.transcribe(usual())
    assert (reply.status, reply.headers["content-type"]) == (200, "text/srt")
    assert reply.body == b"1\n00:00 --> 00:01\nhi\n"
    assert pair.seconds("transcriptions") == 0.5
    pair.a.play(heard)
    await pair.transcribe(usual())
    assert pair.seconds("transcriptions") == 3.0


async def test_seconds_that_were_transcribed_and_spoken_are_in_the_clients_usage() -> None:
    clients = "clients: {webui: {key: webui-key}, other: {key: other-key}}"
    async with house(clients) as pair:
        webui = {"authorization": "Bearer webui-key"}
        pair.a.play(heard)
        assert (await pair.transcribe(usual(), "authorization: Bearer webui-key")).status == 200
        pair.a.play(lambda turn: turn.send(answer(silence(1.5), content_type="audio/wav")))
        spoken = {"model": "pair", "input": "hello", "voice": "alloy"}
        for key in ("webui-key", "other-key"):
            reply = await pair.gateway.client.post(SPEECH, json=spoken, headers={"authorization": f"Bearer {key}"})
            assert reply.status_code == 200

        async def used() -> bool:
            with patch("gateway.apps.page.usage_report.FRESH", 0.0):  # the sums are kept for some seconds
                told = (await pair.gateway.client.get("/status/usage", headers=webui)).json()
            return [
                (row["client"], row["requests"], row["audio_in_seconds"], row["audio_out_seconds"])
                for row in told["today"]["clients"]
            ] == [("webui", 2, 2.5, 1.5)]

        assert await until_said(used)


@pytest.mark.parametrize(
    ("keys", "usd"),
    [
        ("", 0.0),
        ("cloud: true, ", None),
        ("price: {{input: 1, output: 0}}, ", None),
        ("price: {{input: 0, output: 0}}, ", 0.0),
    ],
)
async def test_the_cost_of_speech_without_tokens_is_unknown_unless_it_is_free(keys: str, usd: float | None) -> None:
    routes = ROUTES.replace("a: {{", "a: {{" + keys)
    async with house(routes=routes, ready=["b"]) as pair:
        pair.b.play(fails)
        pair.a.play(lambda turn: turn.send(answer(b"hi", content_type="text/plain")))
        assert (await pair.transcribe(usual())).status == 200

        async def told() -> bool:
            with patch("gateway.apps.page.usage_report.FRESH", 0.0):
                (row,) = (await pair.gateway.client.get("/status/usage")).json()["today"]["clients"] or [{}]
            return bool(row) and row["usd"] == usd

        assert await until_said(told)


async def test_an_error_of_the_server_comes_in_the_envelope(pair: House) -> None:
    refusal = json_answer({"detail": [{"loc": ["body", "language"], "msg": "unknown language"}]}, "422 Unprocessable")
    pair.a.play(lambda turn: turn.send(refusal))
    reply = await pair.transcribe(usual())
    assert reply.status == 422
    assert "unknown language" in reply.json["error"]["message"]
    assert pair.b.turns == []


async def test_a_file_that_breaks_every_server_takes_none_of_them_from_the_others(pair: House) -> None:
    pair.a.play(fails)
    pair.b.play(fails)
    for _ in range(4):
        assert (await pair.transcribe(usual(b"poison"))).status == 500
    pair.a.play(heard)
    pair.b.play(heard)
    assert (await pair.transcribe(usual())).status == 200


async def test_the_openai_sdk_transcribes_and_translates(pair: House) -> None:
    client = openai.AsyncOpenAI(base_url=pair.gateway.url + "/v1", api_key="none", max_retries=0)
    async with client:
        found = await client.audio.transcriptions.create(model="pair", file=("a.wav", WAV))
        assert found.text == f"{len(WAV)} bytes"
        translated = await client.audio.translations.create(model="pair", file=("a.wav", LARGE))
        assert translated.text == f"{len(LARGE)} bytes"


async def test_events_of_a_streamed_transcription_come_as_they_are(pair: House) -> None:
    events = b'data: {"type":"transcript.text.delta","delta":"hi"}\n\n', b'data: {"type":"transcript.text.done"}\n\n'
    pair.a.play(lambda turn: turn.stream(*events))
    reply = await pair.transcribe(form(part("model", b"pair"), part("stream", b"true"), part("file", WAV, "a.wav")))
    assert (reply.status, reply.body, reply.ended) == (200, b"".join(events), True)


STREAM = form(part("model", b"pair"), part("stream", b"true"), part("file", WAV, "a.wav"))
OPENAI_END = b'{"type":"transcript.text.done","text":"hi","usage":{"input_tokens":14,"output_tokens":45}}'
VLLM_END = b'{"object":"transcription.chunk","choices":[],"usage":{"prompt_tokens":14,"completion_tokens":45}}'


@pytest.mark.parametrize("last", [OPENAI_END, VLLM_END], ids=["openai", "vllm"])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b""], ids=["lf", "crlf", "none"])
async def test_the_tokens_of_a_streamed_transcription_are_counted(pair: House, last: bytes, end: bytes) -> None:
    half = len(last) // 2
    events = b'data: {"delta":"hi"}\n\n', b"data: " + last[:half], last[half:] + end
    pair.a.play(lambda turn: turn.stream(*events))
    reply = await pair.transcribe(STREAM)
    assert (reply.status, reply.body, reply.ended) == (200, b"".join(events), True)
    labels = {"client": "open", "alias": "pair", "backend": "a"}
    assert pair.gateway.metric("gateway_tokens_total", kind="prompt", **labels) == 14
    assert pair.gateway.metric("gateway_tokens_total", kind="completion", **labels) == 45
    assert pair.seconds("transcriptions") == 0.5  # of the file: the stream does not say


async def test_the_seconds_that_a_stream_reports_are_counted(pair: House) -> None:
    said = b'data: {"type":"transcript.text.done","usage":{"type":"duration","seconds":7}}\n\n'
    pair.a.play(lambda turn: turn.stream(b"data: [not json]\n\n", said))
    assert (await pair.transcribe(STREAM)).status == 200
    assert pair.seconds("transcriptions") == 7


async def test_an_error_under_the_status_of_an_answer_leads_to_the_next_backend(pair: House) -> None:
    pair.a.play(lambda turn: turn.send(json_answer({"error": {"message": "the model is not loaded"}})))
    reply = await pair.transcribe(usual())
    assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "b")


@pytest.mark.parametrize(
    "page", [b"<html><body>Please log in</body></html>", b"\n<!DOCTYPE html>\n<title>Demo</title>"]
)
async def test_a_page_for_browsers_is_no_transcription(pair: House, page: bytes) -> None:
    pair.a.play(lambda turn: turn.send(answer(page, content_type="text/html; charset=utf-8")))
    reply = await pair.transcribe(usual())
    assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "b")


@pytest.mark.parametrize("text", [b"Please log in", b"<|en|> Please log in", b""])
async def test_text_that_a_small_server_calls_html_is_passed_on(pair: House, text: bytes) -> None:
    pair.a.play(lambda turn: turn.send(answer(text, content_type="text/html; charset=utf-8")))
    reply = await pair.transcribe(usual())
    assert (reply.status, reply.body, reply.headers["x-gateway-backend"]) == (200, text, "a")


async def test_a_client_that_drips_its_form_is_refused_and_leaves_nothing_behind(pair: House) -> None:
    async with raw_client(pair.gateway.url) as client:
        limit(pair.gateway, body_window=0.6)
        head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: gateway\r\n{TYPE}\r\ncontent-length: 2000000\r\n\r\n"
        await client.send(head.encode() + usual()[:2000])
        await pair.gateway.until(lambda: bool(pair.gateway.requests()))
        later(pair.gateway, 0.7)
        assert b"HTTP/1.1 408" in await client.rest()
    await pair.gateway.until(lambda: pair.memory() == 0 and pair.gateway.idle())
