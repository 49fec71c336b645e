"""What a backend said to one client is read by no other: they see the kind. Admins and the log have the words."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from gateway.domain.health_state import State
from tests.scripted import SSE_HEAD, RawReply, Turn, answer, chunked, json_answer, raw_post, scripted
from tests.support import RunningGateway, running_gateway

SECRET = "the-secret-of-alice"
KEYS = "clients: {alice: {key: alice-key}, bob: {key: bob-key}, ops: {key: ops-key, admin: true}}\n"

Script = Callable[[Turn], Awaitable[object]]


def as_(name: str) -> dict[str, str]:
    return {"x-api-key": f"{name}-key"}


def refusal(status: str, error: Any) -> Script:
    async def script(turn: Turn) -> None:
        await turn.send(json_answer(error, status))

    return script


async def error_event(turn: Turn) -> None:
    """A stream's error event, else a 200 with an error."""
    if turn.json.get("stream"):
        event = b"data: " + json.dumps({"error": {"message": SECRET}}).encode() + b"\n\n"
        await turn.send(SSE_HEAD + chunked(event) + b"0\r\n\r\n")
    else:
        await turn.send(json_answer({"error": {"message": SECRET}}))


async def odd_type(turn: Turn) -> None:
    await turn.send(answer(b"{}", content_type=f"text/{SECRET}"))


async def odd_http(turn: Turn) -> None:
    await turn.send(f"{SECRET} is no HTTP\r\n\r\n".encode())
    turn.close()


async def odd_encoding(turn: Turn) -> None:
    await turn.send(answer(b"{}", "200 OK", "application/json", f"content-encoding: {SECRET}"))


WAYS: dict[str, Script] = {
    "500": refusal("500 Internal Server Error", {"error": {"message": f"boom: {SECRET}"}}),
    "500 with a detail": refusal("500 Internal Server Error", {"detail": SECRET}),
    "500 with an odd error": refusal("500 Internal Server Error", {"error": {"odd": [SECRET]}}),
    "503": refusal("503 Service Unavailable", SECRET),
    "401": refusal("401 Unauthorized", {"error": {"message": SECRET}}),
    "404 of the model": refusal("404 Not Found", {"error": {"message": f"The model `{SECRET}` does not exist."}}),
    "an error event": error_event,
    "another type": odd_type,
    "no HTTP": odd_http,
    "an odd encoding": odd_encoding,
}


@asynccontextmanager
async def house(*scripts: Script, clients: str = KEYS) -> AsyncIterator[RunningGateway]:
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(scripted(script)) for script in scripts]
        names = "ab"[: len(found)]
        urls = [f"{name}: {{url: '{backend.url}'}}" for name, backend in zip(names, found, strict=True)]
        routes = (
            "defaults: {health: {fail_after: 2}, queue: {max_wait: 0s}}\n"
            f"backends: {{{', '.join(urls)}}}\naliases: {{chat: [{', '.join(names)}]}}\n"
        )
        gateway = await stack.enter_async_context(running_gateway(routes + clients))
        await gateway.until_ready(*names)
        yield gateway


async def ask(gateway: RunningGateway, client: str, text: str, *, stream: bool = False) -> RawReply:
    body = {"model": "chat", "stream": stream, "messages": [{"role": "user", "content": text}]}
    return await raw_post(gateway.url, body, headers=[f"x-api-key: {client}-key"])


class Reader:
    """All that /events says to this client."""

    def __init__(self, gateway: RunningGateway, client: str) -> None:
        self.text = ""
        self.task = asyncio.create_task(self._read(gateway, client))

    async def _read(self, gateway: RunningGateway, client: str) -> None:
        async with gateway.client.stream("GET", "/events", headers=as_(client)) as answer:
            async for piece in answer.aiter_text():
                self.text += piece

    def is_over(self) -> bool:
        return '"after":"down"' in self.text or '"after":"misconfigured"' in self.text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("way", WAYS)
async def test_no_other_client_reads_what_a_backend_said(
    way: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with house(WAYS[way], WAYS[way]) as gateway:
        bobs, admins = Reader(gateway, "bob"), Reader(gateway, "ops")
        await gateway.until(lambda: len(gateway.gateway.on_event) >= 2)
        for number in range(3):
            await ask(gateway, "alice", f"hello {number}", stream=stream)
        await gateway.until(
            lambda: {gateway.state("a"), gateway.state("b")} <= {State.DOWN, State.MISCONFIGURED, State.WARMING}
        )
        reply = await ask(gateway, "bob", "hello", stream=stream)
        assert reply.status in (429, 503, 502)
        assert "a is " in reply.json["error"]["message"]
        assert SECRET not in reply.body.decode() + str(reply.headers)
        for path in ("/status", "/v1/models", "/status/history", "/ready", "/metrics"):
            told = await gateway.client.get(path, headers=as_("bob"))
            assert SECRET not in told.text, path
        shown = (await gateway.client.get("/status", headers=as_("ops"))).text
        for reader in (bobs, admins):
            await gateway.until(reader.is_over)
            reader.task.cancel()
            await asyncio.gather(reader.task, return_exceptions=True)
        assert SECRET not in bobs.text
        assert SECRET in caplog.text or way in ("another type", "no HTTP"), "the log keeps what is read of it"
        if way in ("500", "404 of the model", "an error event"):
            assert SECRET in shown
            assert SECRET in admins.text


async def test_a_client_reads_what_was_said_to_itself() -> None:
    async with house(WAYS["500"]) as gateway:
        assert SECRET in (await ask(gateway, "alice", "hello")).body.decode()
        assert SECRET not in (await ask(gateway, "bob", "something else")).headers.values()


async def test_the_same_body_of_another_client_is_answered_with_nothing_that_was_said_before() -> None:
    said = iter([SECRET, SECRET, SECRET, SECRET, *["nothing"] * 20])

    async def picky(turn: Turn) -> None:
        if b"Say hello." in turn.body:
            await turn.send(json_answer({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}))
        else:
            await turn.send(json_answer({"error": {"message": next(said)}}, "500 Internal Server Error"))

    async with house(picky, picky) as gateway:
        for _ in range(3):
            assert SECRET in (await ask(gateway, "alice", "hello")).body.decode()
        for _ in range(3):
            await ask(gateway, "alice", "hello")
        assert SECRET not in (await ask(gateway, "bob", "hello")).body.decode()


async def test_what_a_check_heard_is_for_admins() -> None:
    async def rambling(turn: Turn) -> None:
        said = {"choices": [{"message": {"content": SECRET}, "finish_reason": "stop"}]}
        await turn.send(json_answer(said))

    async with house(rambling) as gateway:
        headers = {**as_("ops"), "host": "localhost"}
        assert SECRET in (await gateway.client.post("/admin/backends/a/probe?now=1", headers=headers)).text
        bobs = (await gateway.client.get("/status", headers=as_("bob"))).json()
        assert SECRET not in json.dumps(bobs)
        assert bobs["backends"]["a"]["observed"]["arithmetic"]["result"] == "no"
        assert SECRET in (await gateway.client.get("/status", headers=as_("ops"))).text


async def test_a_secret_in_a_backends_words_is_masked_for_all() -> None:
    async with (
        scripted(
            refusal("500 Internal Server Error", {"error": {"message": "key sk-very-secret is no good"}})
        ) as found,
        running_gateway(f"backends: {{a: {{url: '{found.url}', api_key: sk-very-secret}}}}") as gateway,
    ):
        await gateway.until_ready("a")
        reply = await raw_post(gateway.url, {"model": "a", "messages": []})
        assert "key *** is no good" in reply.json["error"]["message"]
