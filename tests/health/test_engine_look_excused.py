"""While an engine's counters show that it works, a request that hears nothing of it is not taken from it. Everything
else that is timed goes on: heartbeats, the total timeout, and the client's own reading."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import gateway.proxy.reply as gateway_reply
from gateway.health import engine_look
from simulator import SimVllm
from tests.raw_client import chat, raw_client
from tests.support import RunningGateway, running_gateway

LONG_PROMPT = "word " * 16_000
SMALL = 32 * 1024  # bytes


@pytest.fixture(autouse=True)
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_look, "MOVING", 0.05)


@asynccontextmanager
async def pair(timeouts: str, **of_one: float) -> AsyncIterator[tuple[RunningGateway, SimVllm]]:
    """`one` has these timeouts; `two` stands behind it."""
    one, two = SimVllm("one", **of_one), SimVllm("two")  # type: ignore[arg-type]  # numbers only
    async with one.serve() as first, two.serve() as second:
        backends = f"one: {{url: '{first}', timeouts: {{{timeouts}}}}}, two: {{url: '{second}'}}"
        routes = f"defaults: {{health: {{every: 50ms}}}}\nbackends: {{{backends}}}\naliases: {{chain: [one, two]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("one", "two")
            await gateway.until(lambda: gateway.gateway.fleet["one"].progress.last is not None)
            yield gateway, one


async def test_a_stream_whose_prompt_takes_long_gets_its_status_and_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_reply, "HEARTBEAT", 0.05)
    async with pair("first_byte: 300ms, hold: 500ms", prefill=16_000.0) as (gateway, _):
        async with gateway.client.stream(
            "POST", "/v1/chat/completions", json=chat("chain", LONG_PROMPT, stream=True)
        ) as r:
            body = (await r.aread()).decode()
        assert r.headers["x-gateway-committed"] == "early"
        assert body.partition(": x-gateway backend=one")[0].count('"delta":{}') >= 2
        assert body.endswith("data: [DONE]\n\n")


async def test_the_total_timeout_ends_an_attempt_on_an_engine_that_works() -> None:
    # A machine that freezes for less than `first_byte` does not make the engine look idle.
    async with pair("first_byte: 2s, total: 3s", prefill=4000.0) as (gateway, one):
        async with asyncio.timeout(20.0):
            reply = await gateway.client.post("/v1/chat/completions", json=chat("chain", LONG_PROMPT))
        assert (reply.status_code, reply.headers["x-gateway-backend"]) == (200, "two")
        await gateway.until(lambda: one.aborted == 1)


async def test_a_client_that_never_reads_is_cut_while_the_engine_works_for_others() -> None:
    async with pair("idle: 300ms", decode=1e6) as (gateway, one), raw_client(gateway.url, receive_buffer=SMALL) as deaf:
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typed as one that only writes
        await deaf.post("/v1/chat/completions", chat("chain", "Say 100000 words", stream=True))
        await gateway.until(lambda: any(request.timer.writing for request in gateway.requests()))
        async with asyncio.timeout(10.0):
            while gateway.requests():
                reply = await gateway.client.post("/v1/chat/completions", json=chat("chain", "Say 3 words"))
                assert reply.status_code == 200
        code = {"alias": "chain", "backend": "one", "endpoint": "chat", "code": "client_stalled"}
        assert gateway.metric("gateway_requests_total", **code) == 1
        await gateway.until(lambda: one.aborted == 1)
