"""Backends that fall and come back quickly, and what is said of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from simulator import SimVllm
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

QWEN36 = "RedHatAI/Qwen3.6-35B-A3B-NVFP4"
FAST = "defaults: {health: {every: 50ms, fail_after: 3, recover_after: 2, canary: 1h}}\n"
ASKED = 4  # requests of a canary at a recovery: the warm-up and three checks


def sim_of(name: str = "a", **more: object) -> SimVllm:
    return SimVllm(name, served=[QWEN36], tool_parser="qwen3_coder", reasoning_parser="qwen3", **more)  # type: ignore[arg-type]  # keywords of SimVllm


@asynccontextmanager
async def one(sim: SimVllm, more: str = "", *, running: bool = True) -> AsyncIterator[RunningGateway]:
    await sim.start(running=running)
    try:
        async with running_gateway(f"{FAST}backends: {{a: {{url: '{sim.url}'{more}}}}}") as gateway:
            yield gateway
    finally:
        await sim.stop()


async def ask(gateway: RunningGateway, model: str = "a") -> httpx.Response:
    return await gateway.client.post("/v1/chat/completions", json=chat(model))


def story(gateway: RunningGateway, backend: str = "a") -> list[str]:
    """The states that it has been in, from its events."""
    return [e.after for e in gateway.gateway.events if (e.kind, e.backend) == ("state", backend)]


async def canaried(gateway: RunningGateway, sim: SimVllm, asked: int) -> None:
    await gateway.until(lambda: len(sim.requests) >= asked and sim.inflight == 0 and gateway.idle())
