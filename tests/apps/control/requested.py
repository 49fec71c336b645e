"""A gateway in front of a machine, some of whose engines only requests start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from gateway.domain.health_state import State
from tests.apps.control.machine import FAST, Machine
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

CALLED = ", run: on_request"
CHAT = "/v1/chat/completions"


def on_node(gib: int) -> str:
    """More keys of a backend: on the one node, where it holds so much."""
    return f", node: spark, launch: {{resident: {gib}GiB}}"


NODE = "nodes: {spark: {memory: 100GiB}}\n"


@asynccontextmanager
async def called(
    there: Machine, more: str = "", keys: Mapping[str, str] | None = None, **further: str
) -> AsyncIterator[RunningGateway]:
    """`keys`, `further`: backend -> more keys of it. Idle backends are looked for without a pause."""
    found = {**(keys or {}), **further}
    backends = "".join(there.backend(name, found.get(name, "")) for name in there.sims)
    async with running_gateway(f"{FAST}{NODE}{more}backends:\n{backends}") as gateway:
        gateway.gateway.apps.control.starter.look_every = 0.02
        await gateway.until(lambda: State.UNKNOWN not in {gateway.state(name) for name in there.sims})
        await gateway.until_ready(*(name for name, sim in there.sims.items() if sim.alive))
        yield gateway
        await gateway.until(lambda: not gateway.gateway.apps.control.starter.is_busy)


async def ask(gateway: RunningGateway, model: str, key: str = "", **further: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await gateway.client.post(CHAT, json=chat(model, **further), headers=headers)


def asking(gateway: RunningGateway, model: str, key: str = "", **further: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(ask(gateway, model, key, **further))


def aged(gateway: RunningGateway, name: str, *, idle: float = 0.0, ran: float = 0.0) -> None:
    """As if the backend had been idle, and had run, for so long (seconds)."""
    use = gateway.gateway.apps.control.starter.use.known[name]
    use.used_at -= idle
    use.ran_since -= ran
    gateway.gateway.fleet[name].evidence.answered_at -= idle


async def until_known(gateway: RunningGateway, *names: str) -> None:
    """Until it was noticed that these run."""
    await gateway.until(lambda: all(name in gateway.gateway.apps.control.starter.use.known for name in names))
