"""Pictures named by their addresses: which are fetched, from where, and what becomes of the others."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.engines.ollama import pictures
from gateway.engines.ollama.pictures import LOOKUPS_EACH, LOOKUPS_MOST, HostLookups, is_allowed, is_public
from simulator import SimOllama
from tests.support import running_gateway

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("url", "rule", "allowed"),
    [
        ("https://a.example/x.png", "https://", True),
        ("http://a.example/x.png", "https://", False),
        ("https://a.example/x.png", "https://a.example", True),
        ("https://A.example/x.png", "https://a.example", True),
        ("https://a.example.evil/x.png", "https://a.example", False),
        ("https://a.example:8443/x.png", "https://a.example", False),
        ("https://u:p@a.example/x.png", "https://", False),
        ("https://a.example/shots/x.png", "https://a.example/shots", True),
        ("https://a.example/shots-2/x.png", "https://a.example/shots", False),
        ("https://a.example/shots/../x.png", "https://a.example/shots", False),
        ("https://a.example/shots/%2e%2E/x.png", "https://a.example/shots", False),
        ("https://a.example/shots/..%2fx.png", "https://a.example/shots", False),
        ("ftp://a.example/x.png", "https://", False),
        ("https://[x", "https://", False),
    ],
)
def test_an_address_is_asked_only_below_what_the_file_allows(url: str, rule: str, *, allowed: bool) -> None:
    assert is_allowed(url, (rule,)) is allowed


PRIVATE = "127.0.0.1 10.1.2.3 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 ::1 fe80::1%eth0 fd00::1 ::ffff:10.0.0.1"


TRANSLATED = "64:ff9b::a00:1 64:ff9b:1::a00:1 2002:a00:1::1 ::7f00:1 ::ffff:0:7f00:1 fec0::1"


@pytest.mark.parametrize("address", [*PRIVATE.split(), *TRANSLATED.split(), "224.0.0.1"])
def test_a_private_address_is_not_asked(address: str) -> None:
    assert not is_public(address)


def test_a_public_address_is_asked() -> None:
    assert is_public("93.184.215.14")
    assert is_public("2606:2800:21f:cb07:6820:80da:af6b:8b2c")


@asynccontextmanager
async def gallery() -> AsyncIterator[tuple[str, list[str]]]:
    """(the address of a server with pictures, the paths that were asked)"""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        asked.append(path)
        status = "302 Found\r\nlocation: /a.png" if path == "/moved.png" else "200 OK"
        kind = "text/html" if path == "/page" else "image/png"
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(PNG)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + PNG)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


@asynccontextmanager
async def asked(sim: SimOllama, fetch: str, client: str = "") -> AsyncIterator[Any]:
    async with sim.serve() as sim_url:
        backend = (
            f"{{engine: ollama, url: '{sim_url}', model: 'qwen3-vl:8b', context: 8192, images: {{fetch: [{fetch}]}}}}"
        )
        async with running_gateway(f"backends: {{desk: {backend}}}{client}") as gateway:

            async def ask(*urls: str, **headers: str) -> httpx.Response:
                parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
                messages = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *parts]}]
                body = {"model": "desk", "messages": messages, "max_tokens": 8}
                return await gateway.client.post("/v1/chat/completions", json=body, headers=headers)

            yield ask


async def test_a_picture_is_fetched_once_and_sent_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "is_public", lambda address: True)
    sim = SimOllama(models=["qwen3-vl:8b"], vision=True)
    async with gallery() as (url, seen), asked(sim, f"'{url}'") as ask:
        reply = await ask(f"{url}/a.png", f"{url}/a.png")
        assert reply.status_code == 200, reply.text
        assert seen == ["/a.png"]
    sent = [r.json["messages"][0]["images"] for r in sim.requests if r.path == "/api/chat"]
    assert sent == [[base64.b64encode(PNG).decode()] * 2]


@pytest.mark.parametrize(
    ("path", "words"), [("/page", "answered 200 text/html"), ("/moved.png", "answered 302"), ("/a.png", "not a public")]
)
async def test_what_is_no_picture_or_not_public_is_refused_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, path: str, words: str
) -> None:
    if path != "/a.png":
        monkeypatch.setattr(pictures, "is_public", lambda address: True)
    async with gallery() as (url, seen), asked(SimOllama(models=["qwen3-vl:8b"], vision=True), f"'{url}'") as ask:
        reply = await ask(url + path)
        assert (reply.status_code, words in reply.json()["error"]["message"]) == (400, True), reply.text
        assert len(seen) == (path != "/a.png")


async def test_a_request_that_stays_in_the_lan_has_nothing_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "is_public", lambda address: True)
    async with gallery() as (url, seen), asked(SimOllama(models=["qwen3-vl:8b"], vision=True), f"'{url}'") as ask:
        reply = await ask(f"{url}/a.png", **{"x-gateway-local-only": "1"})
        assert (reply.status_code, "may leave the LAN" in reply.text) == (400, True), reply.text
        assert seen == []


async def test_a_large_picture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "is_public", lambda address: True)
    monkeypatch.setattr(pictures, "BYTES_MOST", 4)
    async with gallery() as (url, _), asked(SimOllama(models=["qwen3-vl:8b"], vision=True), f"'{url}'") as ask:
        reply = await ask(f"{url}/a.png")
        assert (reply.status_code, "more than 4 bytes" in reply.text) == (400, True), reply.text


async def test_the_pictures_of_one_request_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "is_public", lambda address: True)
    monkeypatch.setattr(pictures, "ALL_BYTES_MOST", 2 * len(PNG))
    async with gallery() as (url, _), asked(SimOllama(models=["qwen3-vl:8b"], vision=True), f"'{url}'") as ask:
        assert (await ask(f"{url}/a.png", f"{url}/b.png")).status_code == 200
        reply = await ask(f"{url}/a.png", f"{url}/b.png", f"{url}/c.png")
        assert (reply.status_code, "more than 0 bytes" in reply.text) == (400, True), reply.text


async def test_names_that_are_never_answered_are_bounded_for_each_client_and_for_all() -> None:
    lookups, ends = HostLookups(), asyncio.Event()

    async def never(*_: Any, **__: Any) -> Any:
        await ends.wait()
        return [(0, 0, 0, "", ("93.184.215.14", 0))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
        given_up = [asyncio.create_task(lookups.address("a", 80, "one")) for _ in range(LOOKUPS_EACH)]
        await asyncio.sleep(0)
        for task in given_up:  # their clients leave: the lookups go on
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
        with pytest.raises(OSError, match="too many"):
            await lookups.address("b", 80, "one")
        others = [asyncio.create_task(lookups.address("a", 80, f"n{n}")) for n in range(LOOKUPS_MOST - LOOKUPS_EACH)]
        await asyncio.sleep(0)
        with pytest.raises(OSError, match="too many"):
            await lookups.address("b", 80, "last")
        ends.set()
        assert set(await asyncio.gather(*others)) == {"93.184.215.14"}
        await asyncio.sleep(0)
        assert await lookups.address("b", 80, "one") == "93.184.215.14"
