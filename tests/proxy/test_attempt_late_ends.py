"""A stream of which the client has all, and whose end comes late from the backend, or never."""

from __future__ import annotations

import asyncio

import pytest

from tests.proxy.house import END, ROLE, event, house, pieces, released, well
from tests.scripted import Script, Turn


def ends_late(go: asyncio.Event) -> Script:
    """A whole stream, whose connection brings its end after `go`."""

    async def play(turn: Turn) -> None:
        await turn.send(pieces(ROLE, event({"content": "Yes."}), *END))
        await go.wait()
        await turn.send(b"0\r\n\r\n")

    return play


async def test_a_stream_whose_end_comes_late_frees_its_slot_and_its_connection() -> None:
    go = asyncio.Event()
    async with house() as h:
        await h.prepared(ends_late(go), stream=True)
        await h.ask(stream=True)
        await h.client.until(b"[DONE]\n\n\r\n0\r\n\r\n")
        assert not h.gateway.idle()
        go.set()
        await released(h)
        connections = h.a.connections
        h.a.play(well)
        await h.ask()
        assert (await h.client.answer())[0] == 200
        assert h.a.connections == connections


@pytest.mark.parametrize("timed", [False, True])
async def test_a_stream_whose_end_comes_after_its_client_has_left_is_counted_as_any(timed: bool) -> None:
    go = asyncio.Event()
    async with house() as h:
        await h.prepared(ends_late(go), stream=True)
        counted = h.count("200", "a")
        await h.ask(stream=True)
        await h.client.until(b"[DONE]\n\n\r\n0\r\n\r\n")
        h.client.close()
        await h.gateway.until(lambda: not h.gateway.server.server_state.connections)
        assert not h.gateway.idle()
        if timed:
            assert list(h.gateway.gateway.active), "which times it"
        go.set()
        await h.gateway.until(h.gateway.idle)
        assert h.gateway.gateway.memory.used == 0
        assert h.count("200", "a") == counted + 1
        assert not any(h.gateway.metric("gateway_internal_failures_total", part=part) for part in ("answer", "pulse"))


async def test_a_stream_whose_end_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.proxy.attempt.TAIL", 0.05)

    async def never_ends(turn: Turn) -> None:
        await turn.send(pieces(ROLE, event({"content": "Yes."}), *END))
        await turn.until_lost()

    async with house() as h:
        await h.prepared(never_ends, stream=True)
        await h.ask(stream=True)
        await h.client.until(b"[DONE]\n\n\r\n0\r\n\r\n")
        await released(h)
        assert h.count("200", "a") == 4
