"""Speech servers with an API of their own, what they offer, and the bounds of clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import pytest_asyncio

from gateway.config.load import load_text
from simulator.audio import SimAudio
from tests.apps.media.forms import TRANSCRIPTIONS, TYPE, WAV, form, heard, house, part, received, usual
from tests.scripted import Turn, json_answer, raw_post, request_bytes
from tests.support import RunningGateway, running_gateway

OWN = """
backends:
  ears:
    engine: http
    url: "{ears}"
    serves: [transcriptions]
    paths: {{transcriptions: /transcribe}}
    fields: {{file: audio, model: none}}
    fixed: {{response_format: json, beam: 3}}
  mouth: {{engine: http, url: "{mouth}", serves: [speech], paths: {{speech: /tts}}, fields: {{input: text}}}}
aliases:
  transcribe: [ears]
  speak: [mouth]
  chat: {{use: [ears], also: [whisper-1]}}
"""
KEYS = """
clients:
  all: {key: key-all}
  one: {key: key-one, aliases: [pair], rpm: 2}
  far: {key: key-far, aliases: [none-of-these]}
"""


def key(name: str) -> str:
    return f"authorization: Bearer key-{name}"


@asynccontextmanager
async def own_servers() -> AsyncIterator[tuple[RunningGateway, SimAudio, SimAudio]]:
    ears = SimAudio("ears", ["transcriptions"], paths={"transcriptions": "/transcribe"})
    mouth = SimAudio("mouth", ["speech"], paths={"speech": "/tts"})
    async with AsyncExitStack() as stack:
        urls = {one.name: await stack.enter_async_context(one.serve()) for one in (ears, mouth)}
        gateway = await stack.enter_async_context(running_gateway(OWN.format(**urls)))
        await gateway.until_ready("ears", "mouth")
        yield gateway, ears, mouth


@pytest_asyncio.fixture
async def own() -> AsyncIterator[tuple[RunningGateway, SimAudio, SimAudio]]:
    async with own_servers() as servers:
        yield servers


async def test_a_server_gets_its_own_path_names_and_fixed_values(
    own: tuple[RunningGateway, SimAudio, SimAudio],
) -> None:
    gateway, ears, mouth = own
    sent = form(part("model", b"transcribe"), part("response_format", b"text"), part("file", WAV, "a.wav"))
    await raw_post(gateway.url, sent, TRANSCRIPTIONS, [TYPE])
    asked = ears.requests[-1]
    assert asked.path == "/transcribe"
    reply = await gateway.client.post("/v1/audio/speech", json={"model": "speak", "input": "hello"})
    assert (reply.status_code, reply.headers["content-type"]) == (200, "audio/wav")
    assert mouth.requests[-1].json["text"] == "hello"
    assert "input" not in mouth.requests[-1].json


async def test_the_names_of_a_form_are_the_servers_own(own: tuple[RunningGateway, SimAudio, SimAudio]) -> None:
    async with house() as pair:
        routes = f"""
backends:
  ears:
    engine: http
    url: "{pair.a.url}"
    serves: [transcriptions]
    fields: {{file: audio, model: none, language: lang}}
    fixed: {{beam: 3, response_format: json}}
aliases: {{ears: [ears]}}
"""
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("ears")
            sent = form(part("model", b"ears"), part("response_format", b"srt"), part("language", b"de"))
            sent = sent.removesuffix(form()) + form(part("file", WAV, "a.wav"))
            assert (await raw_post(gateway.url, sent, TRANSCRIPTIONS, [TYPE])).status == 200
        assert received(pair.a.turns[-1]) == {"response_format": b"json", "lang": b"de", "beam": b"3", "audio": WAV}


async def test_a_client_sees_and_uses_its_own_aliases_only() -> None:
    async with house(KEYS) as pair:
        client = pair.gateway.client
        assert (await client.get("/v1/audio/models")).status_code == 401
        headers = [{"x-api-key": f"key-{name}"} for name in ("one", "far")]
        found = [(await client.get("/v1/audio/models", headers=one)).json() for one in headers]
        assert [[one["id"] for one in each["models"]] for each in found] == [["pair"], []]
        assert (await pair.transcribe(usual())).status == 401
        assert (await pair.transcribe(usual(), key("far"))).json["error"]["code"] == "model_not_allowed"
        statuses = [(await pair.transcribe(usual(), key("one"))).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert (await pair.transcribe(usual(), key("all"))).status == 200


async def test_a_key_is_asked_for_before_the_file_comes() -> None:
    async with house(KEYS) as pair:
        host, port = pair.gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {TRANSCRIPTIONS} HTTP/1.1\r\nhost: {host}\r\n{TYPE}\r\ncontent-length: 1000000\r\n\r\n"
        writer.write(head.encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        writer.close()


async def test_a_busy_server_takes_no_more_than_its_slots() -> None:
    go_on = asyncio.Event()

    async def waits(turn: Turn) -> None:
        await go_on.wait()
        await heard(turn)

    async with house() as pair:
        pair.a.play(waits)
        pair.b.play(waits)
        asking = [asyncio.create_task(pair.transcribe(usual())) for _ in range(17)]  # each has 8 slots
        await pair.gateway.until(lambda: any(task.done() for task in asking))
        refused = next(task.result() for task in asking if task.done())
        assert (refused.status, refused.json["error"]["code"]) == (429, "queue_timeout")
        assert max(len(pair.a.turns), len(pair.b.turns)) <= 8
        go_on.set()
        await asyncio.gather(*asking)
        assert pair.memory() == 0


async def test_a_client_that_stops_within_its_form_does_not_stop_the_others() -> None:
    async with house() as pair:
        host, port = pair.gateway.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_bytes(pair.gateway.url, usual(), TRANSCRIPTIONS, [TYPE])[:5000])
        assert (await pair.transcribe(usual())).status == 200
        writer.close()


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("engine: http, serves: [speech], paths: {talk: /x}", "unknown path 'talk'"),
        ("engine: http, serves: [speech], paths: {speech: tts}", "'speech' is no path"),
        ("engine: http, serves: [speech], paths: {speech: '/a b'}", "'speech' is no path"),
        ("engine: http, serves: [speech], fields: {input: 3}", "'input' has no name"),
        ("fields: {input: text}", "only for engine http"),
    ],
)
def test_what_cannot_be_asked_of_a_server_is_an_error_of_the_file(written: str, said: str) -> None:
    routes = f'backends: {{a: {{url: "http://127.0.0.1:1", {written}}}}}\naliases: {{x: [a]}}\n'
    with pytest.raises(Exception) as raised:
        load_text(routes, "routes.yaml", {})
    assert said in str(raised.value)


async def test_a_server_that_does_not_know_the_path_is_left_for_the_next() -> None:
    async with house() as pair:
        pair.a.play(lambda turn: turn.send(json_answer({"detail": "Not Found"}, "404 Not Found")))
        assert (await pair.transcribe(usual())).headers["x-gateway-backend"] == "b"
