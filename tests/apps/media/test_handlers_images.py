"""Pictures: `/v1/images/generations`, `/edits` and `/variations` of `engine: http`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from gateway.accounting.record import RequestLine
from simulator.audio import form_fields
from tests.apps.media.forms import TYPE, part
from tests.apps.media.forms import form as form_of
from tests.raw_client import raw_client
from tests.scripted import ScriptedBackend, Turn, json_answer, scripted
from tests.support import RunningGateway, running_gateway

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 2000  # more than is kept in memory
ANSWER: dict[str, Any] = {"created": 1, "data": [{"b64_json": "aGk="}]}
ROUTES = """
backends:
  paint: {{engine: http, url: "{paint}", serves: [images], model: sd, health: {{every: none}}, paths: {paths}}}
  other: {{engine: http, url: "{other}", serves: [images], health: {{every: none}}}}
aliases: {{draw: [paint, other]}}
"""


async def paints(turn: Turn) -> None:
    await turn.send(json_answer(ANSWER))


async def breaks(turn: Turn) -> None:
    turn.reset()


@asynccontextmanager
async def stage(paths: str = "{}") -> AsyncIterator[tuple[RunningGateway, ScriptedBackend, ScriptedBackend]]:
    async with scripted(paints) as paint, scripted(paints) as other:
        routes = ROUTES.format(paint=paint.url, other=other.url, paths=paths)
        async with running_gateway(routes) as gateway:
            yield gateway, paint, other


async def test_a_picture_is_generated_with_the_openai_sdk() -> None:
    async with stage() as (gateway, paint, _), httpx.AsyncClient(trust_env=False) as http:
        client = AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", http_client=http)
        made = await client.images.generate(model="draw", prompt="a lighthouse", n=2, size="512x512")
        assert made.data is not None
        assert made.data[0].b64_json == "aGk="
        [turn] = paint.turns
        assert turn.path == "/v1/images/generations"
        assert turn.json == {"model": "sd", "prompt": "a lighthouse", "n": 2, "size": "512x512"}
        assert (
            gateway.metric("gateway_requests_total", alias="draw", backend="paint", endpoint="images", code="200")
            == 1.0
        )


async def test_an_edit_carries_all_its_files_to_the_second_backend_too() -> None:
    async with stage() as (gateway, paint, other), httpx.AsyncClient(trust_env=False) as http:
        paint.play(breaks)
        client = AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", http_client=http)
        made = await client.images.edit(
            model="draw", prompt="add a boat", image=[("a.png", PICTURE), ("b.png", b"second")], mask=("m.png", b"mask")
        )
        assert made.data is not None
        [turn] = other.turns
        assert turn.path == "/v1/images/edits"
        assert turn.body.count(b'filename="') == 3
        fields = form_fields(turn.headers["content-type"], turn.body)
        assert (fields["prompt"], fields["mask"], fields["image[]"]) == (b"add a boat", b"mask", b"second")
        assert PICTURE in turn.body
        assert b'filename="b.png"\r\ncontent-type: image/png' in turn.body


async def test_a_variation_and_a_path_of_the_servers_own() -> None:
    async with stage("{image_variations: /vary}") as (gateway, paint, _):
        form = {"files": {"image": ("a.png", PICTURE)}, "data": {"n": "2"}}
        reply = await gateway.client.post("/v1/images/variations", **form)  # type: ignore[arg-type]  # httpx' own names
        assert (reply.status_code, reply.headers["x-gateway-alias"]) == (200, "draw")  # the only alias for it
        assert paint.turns[0].path == "/vary"
        assert form_fields(paint.turns[0].headers["content-type"], paint.turns[0].body)["image"] == PICTURE


@pytest.mark.parametrize("path", ["edits", "variations"])
async def test_a_form_without_a_picture_is_refused(path: str) -> None:
    async with stage() as (gateway, paint, _):
        reply = await gateway.client.post(f"/v1/images/{path}", files={"prompt": (None, "x")})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "image")
        assert paint.turns == []


async def test_an_error_inside_a_200_is_left_for_the_next() -> None:
    async def fails(turn: Turn) -> None:
        await turn.send(json_answer({"error": {"message": "out of memory"}}))

    async with stage() as (gateway, paint, _):
        paint.play(fails)
        reply = await gateway.client.post("/v1/images/generations", json={"model": "draw", "prompt": "x"})
        assert (reply.status_code, reply.headers["x-gateway-backend"]) == (200, "other")
        assert json.loads(reply.content) == ANSWER


async def test_a_transcription_still_has_one_file() -> None:
    async with stage() as (gateway, _paint, _other):
        files = [("file", ("a.wav", b"a")), ("file", ("b.wav", b"b"))]
        reply = await gateway.client.post("/v1/audio/transcriptions", files=files)
        assert "more than one file" in reply.json()["error"]["message"]


@pytest.mark.parametrize("count", [1, 3])
async def test_each_picture_has_its_price(count: int) -> None:
    async def several(turn: Turn) -> None:
        await turn.send(json_answer({"created": 1, "data": ANSWER["data"] * count}))

    async with scripted(several) as paint:
        routes = ROUTES.replace("model: sd,", "price: {{image: 0.04}},").format(
            paint=paint.url, other="http://x:1", paths="{}"
        )
        async with running_gateway(routes) as gateway:
            lines: list[RequestLine] = []
            gateway.gateway.services.line_observers.append(lines.append)
            asked = {"model": "draw", "prompt": "a lighthouse", "n": count}
            assert (await gateway.client.post("/v1/images/generations", json=asked)).status_code == 200
            await gateway.until(lambda: bool(lines))
            assert lines[0].usd == pytest.approx(0.04 * count)


@pytest.mark.parametrize("form", [False, True])
async def test_who_leaves_before_its_pictures_are_made_pays_for_them(form: bool) -> None:
    async def never(turn: Turn) -> None:
        await turn.until_lost()

    async with scripted(never) as paint:
        routes = ROUTES.replace("model: sd,", "price: {{image: 0.04}},").format(
            paint=paint.url, other="http://x:1", paths="{}"
        )
        async with running_gateway(routes) as gateway, raw_client(gateway.url) as client:
            lines: list[RequestLine] = []
            gateway.gateway.services.line_observers.append(lines.append)
            if form:
                parts = b"".join(part(name, value) for name, value in (("model", b"draw"), ("n", b"2")))
                body = parts + part("image", b"a", "a.png") + form_of()
                head = f"POST /v1/images/edits HTTP/1.1\r\nhost: x\r\n{TYPE}\r\ncontent-length: {len(body)}\r\n\r\n"
                await client.send(head.encode() + body)
            else:
                await client.post("/v1/images/generations", {"model": "draw", "prompt": "a lighthouse", "n": 2})
            await gateway.until(lambda: bool(paint.turns))
            client.close()
            await gateway.until(lambda: bool(lines))
            assert lines[0].outcome == "client_gone"
            assert lines[0].usd == pytest.approx(0.08)


@pytest.mark.parametrize("name", ["model", "prompt", "quality"])
async def test_no_file_takes_the_name_of_a_field(name: str) -> None:
    """A server may take the last part of a name: another model than the alias', another value than a fixed one."""
    async with scripted(paints) as paint:
        backend = f"{{engine: http, url: '{paint.url}', serves: [images], model: sd, fixed: {{quality: low}}}}"
        async with running_gateway(f"backends: {{paint: {backend}}}\naliases: {{draw: [paint]}}") as gateway:
            files = [("image", ("a.png", b"a")), (name, ("b.png", b"another"))]
            for given in (files, files[::-1]):
                data = {"prompt": "add a boat"}
                reply = await gateway.client.post("/v1/images/edits", files=given, data=data)
                assert (reply.status_code, reply.json()["error"]["param"]) == (400, name), reply.text
            assert paint.turns == []
