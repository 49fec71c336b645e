"""A request for which no connection to its backend is open: one is opened."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.transport.h1 import H1Client
from tests.proxy.house import House, house, released, well
from tests.proxy.test_handler_decided import closes
from tests.scripted import Script

END = b"[DONE]\n\n\r\n0\r\n\r\n"


@asynccontextmanager
async def shut(more: str = "", *scripts: Script, stream: bool = False) -> AsyncIterator[House]:
    """The next request has no connection."""
    async with house(more) as h:
        await h.prepared(*(scripts or (well,)), stream=stream)
        client = client_of(h)
        for connection in list(client._open):
            connection.drop()
        await h.gateway.until(lambda: not client._open)
        yield h


def client_of(h: House) -> H1Client:
    client = h.gateway.gateway.fleet["a"].client
    assert isinstance(client, H1Client)
    return client


class Door:
    """Stands in for the event loop's `create_connection`: waits for `go`, or fails as often as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: OSError) -> None:
        loop = asyncio.get_running_loop()
        self.go, self.asked, self.cancelled = asyncio.Event(), asyncio.Event(), False
        self._errors = list(errors)
        self._create = loop.create_connection
        monkeypatch.setattr(loop, "create_connection", self.connect, raising=False)

    async def connect(self, *args: Any, **more: Any) -> Any:
        self.asked.set()
        if self._errors:
            raise self._errors.pop()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return await self._create(*args, **more)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_is_opened_and_its_first_answer_is_recognised(stream: bool) -> None:
    async with shut(stream=stream) as h:
        connections = h.a.connections
        await h.ask(stream=stream)
        got = await h.client.until(END) if stream else (await h.client.answer())[1]
        assert b"Yes." in got
        assert len(h.kept) == 1
        assert h.a.connections == connections + 1
        await h.gateway.until(h.gateway.idle)
        assert h.count("200", "a") == 4
        await released(h)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_backend_that_refuses_connections_is_left_for_the_next(stream: bool) -> None:
    async with shut(stream=stream) as h:
        h.a.deafen()
        await h.ask(stream=stream)
        got = await h.client.until(END) if stream else (await h.client.answer())[1]
        assert b"Yes." in got
        assert len(h.kept) == 1
        assert h.count("200", "b") == 1
        await released(h)


async def test_a_connection_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shut() as h:
        client_of(h).connect_timeout = 0.02
        door = Door(monkeypatch)
        waits = asyncio.create_task(h.ask())
        await door.asked.wait()
        monkeypatch.undo()
        await waits
        assert (await h.client.answer())[0] == 200
        assert h.count("200", "b") == 1
        await released(h)


async def test_a_shortage_of_our_own_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shut() as h:
        door = Door(monkeypatch, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        door.go.set()
        await h.ask()
        status, body = await h.client.answer()
        assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "Yes.")
        assert len(h.a.turns) == 1
        assert h.gateway.metric("gateway_shortages_total", kind="files") == 1
        assert h.gateway.gateway.fleet["a"].health.fails == 0
        await released(h)


async def test_an_error_that_nobody_expects_is_told_and_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shut() as h:
        with monkeypatch.context() as patch:
            patch.setattr(client_of(h), "_connect", unexpected)
            await h.ask()
            assert (await h.client.answer())[0] == 500
        await released(h)


async def unexpected(*_: object) -> None:
    raise ZeroDivisionError


async def leaves(h: House) -> None:
    h.client.close()


async def stops(h: House) -> None:
    h.gateway.gateway.active.interrupt_all()


@pytest.mark.parametrize(("ends", "code"), [(leaves, "client_gone"), (stops, "no_backend_available")])
async def test_a_request_that_ends_meanwhile_opens_nothing(
    monkeypatch: pytest.MonkeyPatch, ends: Callable[[House], Awaitable[None]], code: str
) -> None:
    async with shut() as h:
        door = Door(monkeypatch)
        await h.ask()
        await door.asked.wait()
        await ends(h)
        await h.gateway.until(h.gateway.idle)
        await h.gateway.until(lambda: door.cancelled)
        assert not h.a.turns
        assert h.gateway.gateway.memory.used == 0
        assert h.count(code, "a") == 1


async def test_a_stream_that_waits_for_its_connection_gets_its_status_early(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shut("timeouts: {hold: 100ms}", stream=True) as h:
        door = Door(monkeypatch)
        await h.ask(stream=True)
        head = await h.client.until(b'"delta":{}')
        assert b"x-gateway-committed: early" in head
        door.go.set()
        rest = await h.client.until(END)
        assert rest.count(b'"content":"Yes."') == 1
        assert len(h.a.turns) == 1
        await released(h)


async def test_a_new_connection_that_ends_at_once_is_no_stale_one() -> None:
    async with shut("", closes, well) as h:
        await h.ask()
        assert (await h.client.answer())[0] == 200
        assert len(h.a.turns) == 1, "it was sent once, and may have been processed"
        assert h.count("200", "b") == 1
        await released(h)
