"""What was sent of a stream that its client has left counts, at every door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from gateway.accounting.accounts import today
from gateway.accounting.budgets import Account
from gateway.config.units import Budget
from tests import native_responses as native
from tests.raw_client import chat, raw_client
from tests.scripted import Turn, scripted
from tests.support import PATIENCE, RunningGateway, running_gateway

SENT = 200  # events
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
BASE = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
MARK = "the-last-word"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]


def event(delta: dict[str, Any]) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return b"data: " + json.dumps({**BASE, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


def texts(field: str = "content", word: str = " word") -> list[bytes]:
    said = [event({"role": "assistant", "content": ""}), *(event({field: word}) for _ in range(SENT - 1))]
    return [*said, event({"content": MARK})]


def calls() -> list[bytes]:
    begun = {"index": 0, "id": "c", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    said = [event({"role": "assistant", "tool_calls": [begun]})]
    said += [event({"tool_calls": [{"index": 0, "function": {"arguments": " "}}]}) for _ in range(SENT - 2)]
    return [*said, event({"tool_calls": [{"index": 0, "function": {"arguments": f'{{"{MARK}'}}]})]


class Stage:
    def __init__(self, running: RunningGateway, backend: Any) -> None:
        self.running, self.backend = running, backend

    async def leave(self, path: str, body: dict[str, Any], events: Sequence[bytes]) -> None:
        """Begin a stream, and leave when all of these events have come."""

        async def goes_on(turn: Turn) -> None:
            await turn.send(HEAD)
            for one in events:
                await turn.send(one)
            await turn.until_lost()

        self.backend.play(goes_on)
        async with raw_client(self.running.url) as client:
            await client.post(path, body, "x-api-key: key-ann")
            seen = b""
            async with asyncio.timeout(PATIENCE):
                while MARK.encode() not in seen:
                    seen = seen[-100:] + await client.reader.read(65536)
            client.reset()
        await self.running.until(self.running.idle)

    def spent(self) -> float:
        """USD of the client, where a token of an answer costs one millionth, and those of prompts nothing."""
        budgets, budget = self.running.gateway.accounts.budgets, Budget(5.0, "day")
        return budgets.spent(Account("client", "ann"), budget, today()) * 1e6

    def tokens(self) -> float:
        samples = (s for f in self.running.gateway.metrics.registry.collect() for s in f.samples)
        wanted = {"client": "ann", "kind": "completion"}
        return sum(s.value for s in samples if s.name == "gateway_tokens_total" and wanted.items() <= s.labels.items())


@asynccontextmanager
async def stage(price: str = ", price: {input: 0, output: 1}") -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(scripted())
        routes = (
            f"backends: {{a: {{url: '{backend.url}', model: m, tool_parser: hermes, health: {{every: none}}{price}}}}}"
            "\n"
            "aliases: {chat: [a], judges: {ask_all: [a]}}\n"
            "clients: {ann: {key: key-ann, budget: 5 USD/day, tpm: 100000}}\n"
        )
        yield Stage(await stack.enter_async_context(running_gateway(routes)), backend)


LONG: dict[str, Any] = {"stream": True, "max_tokens": 100_000}
DOORS: dict[str, tuple[str, dict[str, Any], list[bytes]]] = {
    "chat": ("/v1/chat/completions", chat("chat", stream=True), texts()),
    "max_tokens": ("/v1/chat/completions", chat("chat", **LONG), texts()),
    "thoughts": ("/v1/chat/completions", chat("chat", stream=True), texts("reasoning")),
    "tools": ("/v1/chat/completions", chat("chat", stream=True, tools=TOOLS), texts()),
    "call": ("/v1/chat/completions", chat("chat", stream=True, tools=TOOLS), calls()),
    "messages": ("/v1/messages", chat("chat", **LONG), texts()),
    "responses": ("/v1/responses", {"model": "chat", "input": "hi", "stream": True}, texts()),
    "judges": ("/v1/chat/completions", chat("judges", stream=True), texts()),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("price", [", price: {input: 0, output: 1}", ""], ids=["priced", "free"])
async def test_what_was_sent_of_a_stream_that_was_left_is_counted(door: str, price: str) -> None:
    path, body, events = DOORS[door]
    async with stage(price) as s:
        if door == "responses":
            s.backend.responds = False
        await s.leave(path, body, events)
        assert s.tokens() == pytest.approx(SENT, rel=0.05)
        assert s.spent() == pytest.approx(SENT if price else 0, rel=0.05)


async def test_what_was_sent_of_a_native_response_is_counted() -> None:
    events = native.stream(native.message(" word" * 150), piece=5)
    deltas = [number for number, one in enumerate(events) if b"output_text.delta" in one]
    last = events[deltas[-1]].replace(b'" word"', json.dumps(MARK).encode())
    events = [*events[: deltas[-1]], last]
    async with stage() as s:
        s.backend.responds = True
        await s.leave("/v1/responses", {"model": "chat", "input": "hi", "stream": True}, events)
        assert s.spent() == pytest.approx(150, rel=0.05)


async def test_many_words_in_one_event_are_many_tokens() -> None:
    async with stage() as s:
        await s.leave("/v1/chat/completions", chat("chat", stream=True), texts(word=" word" * 40))
        assert SENT * 40 * 0.7 < s.spent() < SENT * 40 * 2


async def test_a_backends_own_count_is_believed() -> None:
    said = texts()
    usage = {**BASE, "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1234}}
    said.insert(-1, b"data: " + json.dumps(usage).encode() + b"\n\n")
    async with stage() as s:
        await s.leave("/v1/chat/completions", chat("chat", stream=True), said)
        assert s.spent() == pytest.approx(1234)


async def test_what_was_sent_counts_against_tokens_per_minute() -> None:
    async with stage("") as s:
        await s.leave("/v1/chat/completions", chat("chat", **LONG), texts(word=" word" * 600))
        refused = await s.running.client.post(
            "/v1/chat/completions", json=chat("chat"), headers={"x-api-key": "key-ann"}
        )
        assert refused.status_code == 429
