"""`ask_all` and a client that does not read its answer: it holds nothing for ever, and does not hold up the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.raw_client import RawClient, chat, raw_client
from tests.scripted import SSE_HEAD, ScriptedBackend, Turn, chunked, json_answer, scripted
from tests.support import RunningGateway, running_gateway
from tests.two_backends import chunk, event, whole

SMALL = 32 * 1024  # bytes of kernel buffer
LONG = "x" * 4000
PATH = "/v1/chat/completions"


async def floods(turn: Turn) -> None:
    """Streams without end, or answers with more than the buffers take."""
    if not turn.json.get("stream"):
        await turn.send(json_answer(whole({"role": "assistant", "content": LONG * 4000})))
        return
    await turn.send(SSE_HEAD)
    while True:
        await turn.send(chunked(event(chunk({"content": LONG}))))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.domain.request_timer.UNREAD", 0.3)
    monkeypatch.setattr("gateway.proxy.reply.LAST_WORDS", 0.2)
    monkeypatch.setattr("gateway.apps.ask_all.asking.LAST_WORDS", 0.2)
    monkeypatch.setattr("gateway.http.direct.FLUSH", 0.2)


@asynccontextmanager
async def judges() -> AsyncIterator[tuple[RunningGateway, ScriptedBackend]]:
    async with scripted(floods) as a, scripted(floods) as b:
        backends = (
            f"defaults: {{timeouts: {{idle: 300ms}}}}\nbackends: {{a: {{url: '{a.url}'}}, b: {{url: '{b.url}'}}}}"
        )
        async with running_gateway(f"{backends}\naliases: {{chat: {{ask_all: [a, b]}}}}") as gateway:
            await gateway.until_ready("a", "b")
            yield gateway, a


async def asks_and_reads_nothing(client: RawClient, *, stream: bool) -> None:
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typed as one that only writes
    await client.post(PATH, chat("chat", stream=stream))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_reader_that_never_reads_is_cut(stream: bool) -> None:
    async with judges() as (gateway, a), raw_client(gateway.url, receive_buffer=SMALL) as client:
        await asks_and_reads_nothing(client, stream=stream)
        await gateway.until(lambda: bool(a.turns))
        await gateway.until(gateway.idle)
        await gateway.until(lambda: not gateway.server.server_state.connections)
        assert gateway.gateway.memory.used == 0


async def test_a_reader_that_never_reads_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.domain.request_timer.UNREAD", 300.0)
    async with judges() as (gateway, _), raw_client(gateway.url, receive_buffer=SMALL) as client:
        await asks_and_reads_nothing(client, stream=True)
        await gateway.until(lambda: any(request.timer.writing for request in gateway.requests()))
        gateway.gateway.active.interrupt_all()
        async with asyncio.timeout(5.0):
            await gateway.until(gateway.idle)
