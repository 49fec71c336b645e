"""Gateways in one process, each with its own connections, in front of the same backends and the same Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx

from gateway.apps.cluster.membership import Membership
from simulator import SimVllm
from tests.apps.cluster.redis_server import RedisServer
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

CHAT = "/v1/chat/completions"
FAST = "defaults: {health: {every: 100ms, fail_after: 3, recover_after: 2}}\n"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]


class Counting(SimVllm):
    """`most`: how many requests it had at a time."""

    most = 0

    def changed(self) -> None:
        self.most = max(self.most, self.inflight)
        super().changed()


def shared(gateway: RunningGateway) -> Membership:
    found = gateway.gateway.shared
    assert isinstance(found, Membership)
    return found


async def until_joined(gateway: RunningGateway, joined: bool) -> None:
    await gateway.until(lambda: shared(gateway).joined is joined)


@asynccontextmanager
async def one_more(redis: RedisServer, routes: str, count: int, wait: str = "2") -> AsyncIterator[RunningGateway]:
    """A gateway that has joined, as one of so many. `wait`: seconds that it is patient with Redis; this machine may be
    slow."""
    async with running_gateway(f"server: {{shared: '{redis.url}?socket_timeout={wait}'}}\n{routes}") as gateway:
        await gateway.until(lambda: shared(gateway).joined and shared(gateway).gateways == count)
        yield gateway


@asynccontextmanager
async def gateways(
    redis: RedisServer, routes: str, count: int = 2, wait: str = "2"
) -> AsyncIterator[list[RunningGateway]]:
    """`routes` without `server`."""
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(one_more(redis, routes, n + 1, wait)) for n in range(count)]
        for gateway in found:
            await gateway.until(lambda g=gateway: shared(g).gateways == count)  # type: ignore[misc]  # binds the name
            await gateway.until_ready(*(n for n, b in gateway.gateway.snapshot.backends.items() if not b.cloud))
        yield found


def slots_of(url: str, slots: int) -> str:
    return f"backends: {{a: {{url: '{url}', slots: {slots}}}}}"


async def ask(gateway: RunningGateway, model: str = "a", said: str = "hi", **body: Any) -> httpx.Response:
    return await gateway.client.post(CHAT, json=chat(model, said, **body))
