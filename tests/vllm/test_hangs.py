"""A vLLM whose engine stands still, while its API server goes on answering /health: found by its metrics, and left."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import httpx

from gateway.domain.health_state import State
from tests.waiting import until_said

from .asks import CHAT, chat
from .servers import VllmServer, child
from .test_stops import down, survived, under_load

WITHIN = 25.0  # seconds from the hang to the last client's answer
SLACK = 3.0  # the machine is busy with two engines


async def test_a_hung_engine_is_left_within_25_seconds_and_used_again_when_it_moves(
    plain: VllmServer, http: httpx.AsyncClient
) -> None:
    assert plain.process is not None
    async with under_load(plain, http) as load:
        engine = child(plain.process.pid, b"EngineCore")
        os.kill(engine, signal.SIGSTOP)
        began = time.monotonic()
        try:
            await survived(load)
            assert time.monotonic() - began < WITHIN + SLACK
            assert (await http.get(plain.url + "/health")).status_code == 200
            health = load.gateway.gateway.fleet["real"].health
            assert (health.state, health.stalls) == (State.DOWN, 1)
            assert "stood still" in health.reason
            await down(load.gateway)
        finally:
            os.kill(engine, signal.SIGCONT)

        async def from_real() -> httpx.Response | None:
            answer = await load.gateway.client.post(CHAT, json=chat(max_tokens=4))
            return answer if answer.headers["x-gateway-backend"] == "real" else None

        answer = await until_said(from_real, within=60)
        assert answer.status_code == 200


async def test_a_busy_engine_is_not_one_that_hangs(plain: VllmServer, http: httpx.AsyncClient) -> None:
    """All slots decoding and one waiting, for longer than a silence may last."""
    async with under_load(plain, http) as load:
        state = load.gateway.gateway.fleet["real"]
        await load.gateway.until(lambda: state.progress.last is not None)  # its /metrics were read at least once
        await asyncio.wait([load.whole], timeout=30)
        seen = [event for event in load.gateway.gateway.events if event.kind == "state" and event.backend == "real"]
        fallen = [event for event in seen if event.after in ("suspect", "down")]
        assert fallen == []
        assert state.health.state in (State.READY, State.BUSY), state.health.reason
        assert state.foreign == 0
