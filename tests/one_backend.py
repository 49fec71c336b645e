"""A gateway in front of one backend whose health is looked at often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from gateway.domain.health_machine import Health
from gateway.domain.health_state import State
from simulator import SimVllm
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

# Nobody waits: the first answer says what the gateway thinks.
FAST = "defaults: {health: {every: 50ms, fail_after: 3, recover_after: 2}, queue: {max_wait: 0s}}\n"
NO_WAIT = "defaults: {queue: {max_wait: 0s}}\n"
NO_SUCH_MODEL = {"error": {"message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}}


@asynccontextmanager
async def one_backend(sim: SimVllm, more: str = "", before: str = FAST) -> AsyncIterator[RunningGateway]:
    """A gateway with the one backend `a`; `more` are further keys of it."""
    async with sim.serve() as url, running_gateway(f"{before}backends: {{a: {{url: '{url}', {more}}}}}") as gateway:
        yield gateway


def health_of(gateway: RunningGateway, backend: str = "a") -> Health:
    return gateway.gateway.fleet[backend].health


async def ask(gateway: RunningGateway, model: str = "a", **further: Any) -> httpx.Response:
    return await gateway.client.post("/v1/chat/completions", json=chat(model, **further))


async def bring_down(gateway: RunningGateway, sim: SimVllm) -> Health:
    """Three requests fail, and `a` is down; then it is well again, and soon to be tried."""
    health = health_of(gateway)
    health.backoff = 0.05
    sim.fault("status", status=500)
    for _ in range(3):
        await ask(gateway)
    assert health.state is State.DOWN
    sim.clear()
    return health


@asynccontextmanager
async def under_way(gateway: RunningGateway, sim: SimVllm, model: str = "a") -> AsyncIterator[None]:
    """A request that has reached `sim` (which must hold it) and whose client leaves at the end."""
    count = sim.inflight + 1
    request = asyncio.create_task(ask(gateway, model))
    try:
        await sim.wait_inflight(count)
        record = sim.requests[-1]
        yield
    finally:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await sim.wait_for(lambda: record.done)


async def probed(gateway: RunningGateway, sim: SimVllm, times: int) -> None:
    """Wait for so many further health checks."""
    wanted = sim.seen["/health"] + times
    await gateway.until(lambda: sim.seen["/health"] >= wanted)
