"""Pictures for models that cannot see: what is described, for whom it is kept, and what happens where it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.apps.describing import app
from simulator import SimVllm
from simulator.faults import Fault
from tests.support import RunningGateway, running_gateway

PICTURE = "data:image/png;base64,iVBORw0KGgo="
OTHER = "data:image/png;base64,iVBORw0KGgoAAAA="


def turn(*urls: str) -> Any:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *parts]}]


@asynccontextmanager
async def desk(more: str = "", **blind: Any) -> AsyncIterator[tuple[RunningGateway, SimVllm, SimVllm]]:
    """(the gateway, the server that is blind, the one that sees)"""
    coder, eyes = SimVllm("coder", served=["coder"], **blind), SimVllm("eyes", served=["eyes"], vision=True)
    async with coder.serve() as a, eyes.serve() as b:
        routes = f"""
backends:
  coder: {{url: '{a}', model: coder, vision: false, context: 32768}}
  eyes: {{url: '{b}', model: eyes, vision: true, context: 32768}}
aliases:
  code: {{use: [coder, eyes], describe_images: eyes}}
{more}"""
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("coder")
            await gateway.until_ready("eyes")
            yield gateway, coder, eyes


async def ask(gateway: RunningGateway, *urls: str, **headers: str) -> httpx.Response:
    body = {"model": "code", "messages": turn(*urls), "max_tokens": 30}
    return await gateway.client.post("/v1/chat/completions", json=body, headers=headers)


async def test_a_picture_is_described_once_and_the_blind_model_gets_the_words() -> None:
    async with desk() as (gateway, coder, eyes):
        first = await ask(gateway, PICTURE)
        assert (first.status_code, first.headers["x-gateway-backend"]) == (200, "coder"), first.text
        assert first.headers["x-gateway-adapted"] == "images_described"
        again = await ask(gateway, PICTURE, OTHER, PICTURE)
        assert again.headers["x-gateway-backend"] == "coder"
    parts = coder.requests[-1].json["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["text"] * 4
    assert all(part["text"].startswith("[Picture, described by eyes: ") for part in parts[1:])
    assert [len(request.json["messages"][0]["content"]) for request in eyes.requests] == [2, 2]


async def test_a_request_without_pictures_asks_nobody_else() -> None:
    async with desk() as (gateway, coder, eyes):
        for _ in range(3):
            reply = await ask(gateway)
            assert "x-gateway-adapted" not in reply.headers
        assert (len(coder.requests), len(eyes.requests)) == (3, 0)


async def test_where_the_first_step_sees_nothing_is_described() -> None:
    async with desk("  look: {use: [eyes], describe_images: coder}\n") as (gateway, coder, eyes):
        body = {"model": "look", "messages": turn(PICTURE), "max_tokens": 30}
        assert (await gateway.client.post("/v1/chat/completions", json=body)).status_code == 200
        assert (len(coder.requests), len(eyes.requests)) == (0, 1)
        assert eyes.requests[0].json["messages"][0]["content"][1]["type"] == "image_url"


async def test_a_picture_that_cannot_be_described_goes_where_it_is_seen_or_is_refused_as_before() -> None:
    async with desk("  words: {use: [coder], describe_images: coder}\n") as (gateway, coder, _):
        body = {"model": "words", "messages": turn(PICTURE), "max_tokens": 30}
        reply = await gateway.client.post("/v1/chat/completions", json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "input_unsupported")
        assert coder.requests == []


async def test_what_stays_in_the_lan_and_another_client_have_descriptions_of_their_own() -> None:
    clients = "clients:\n  ada: {key: ada-key-0001}\n  bob: {key: bob-key-0001}\n"
    async with desk(clients) as (gateway, _, eyes):
        for key, more in (("ada", {}), ("ada", {"x-gateway-local-only": "1"}), ("bob", {}), ("ada", {})):
            given = {"authorization": f"Bearer {key}-key-0001", **more}
            assert (await ask(gateway, PICTURE, **given)).status_code == 200
        assert len(eyes.requests) == 3
        assert [request.headers.get("authorization") for request in eyes.requests] == [None] * 3


async def test_a_client_that_leaves_ends_the_description() -> None:
    async with desk() as (gateway, _, eyes):
        eyes.faults.add(Fault("hang_before", count=1))
        asking = asyncio.create_task(ask(gateway, PICTURE))
        await gateway.until(lambda: bool(eyes.requests))
        asking.cancel()
        await gateway.until(gateway.idle)
        assert eyes.requests[0].aborted


async def test_too_many_pictures_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "PICTURES_MOST", 1)
    async with desk() as (gateway, _, _):
        reply = await ask(gateway, PICTURE, OTHER)
        assert (reply.status_code, "more than 1 pictures" in reply.text) == (400, True)


async def test_as_a_message_of_anthropics_api_too() -> None:
    async with desk() as (gateway, coder, _):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
        content = [{"type": "text", "text": "What is it?"}, image]
        body = {"model": "code", "max_tokens": 30, "messages": [{"role": "user", "content": content}]}
        reply = await gateway.client.post("/v1/messages", json=body)
        assert (reply.status_code, reply.headers["x-gateway-backend"]) == (200, "coder"), reply.text
    assert "[Picture, described by eyes: " in str(coder.requests[-1].json["messages"])


async def test_the_descriptions_of_one_client_do_not_push_out_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "KEPT_MOST", 4)
    clients = "clients:\n  ada: {key: ada-key-0001}\n  bob: {key: bob-key-0001}\n"
    async with desk(clients) as (gateway, _, eyes):
        ada, bob = ({"authorization": f"Bearer {name}-key-0001"} for name in ("ada", "bob"))
        await ask(gateway, PICTURE, **bob)
        for number in range(6):
            assert (await ask(gateway, f"{PICTURE[:-4]}{number:04}", **ada)).status_code == 200
        before = len(eyes.requests)
        await ask(gateway, PICTURE, **bob)
        await ask(gateway, f"{PICTURE[:-4]}{5:04}", **ada)
        assert len(eyes.requests) == before
        await ask(gateway, f"{PICTURE[:-4]}{0:04}", **ada)
        assert len(eyes.requests) == before + 1
