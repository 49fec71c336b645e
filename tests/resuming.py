"""Simulated backends behind one alias whose broken streams go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from simulator import SimVllm
from tests.raw_client import chat
from tests.scripted import RawReply, raw_post
from tests.support import RunningGateway, from_clients, running_gateway

CHAT = "/v1/chat/completions"
WORDS = "30 words please"
INTERRUPTED = b'"code":"stream_interrupted"'
WITH_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}


@dataclass
class Chain:
    """Simulated backends, one after the other under the alias `chat`."""

    sims: Mapping[str, SimVllm]
    gateway: RunningGateway

    async def ask(self, said: str = WORDS, **more: Any) -> RawReply:
        return await raw_post(self.gateway.url, chat("chat", said=said, stream=True, **more))

    def asked(self, name: str) -> list[Any]:
        """The bodies of the clients' requests that reached this backend."""
        return [r.json for r in from_clients(self.sims[name].requests) if r.path == CHAT]

    def resumed(self, name: str = "b") -> float:
        return self.gateway.metric("gateway_resumed_total", alias="chat", backend=name)


@asynccontextmanager
async def chain(*sims: SimVllm, alias: str = "resume: true", more: str = "") -> AsyncIterator[Chain]:
    sims = sims or (SimVllm("a", served=["m"]), SimVllm("b", served=["m"]))
    async with AsyncExitStack() as stack:
        lines = [f'  {s.name}: {{url: "{await stack.enter_async_context(s.serve())}"{more}}}' for s in sims]
        names = [sim.name for sim in sims]
        routes = "\n".join(["backends:", *lines, "aliases:", f"  chat: {{use: [{', '.join(names)}], {alias}}}"])
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready(*names)
        yield Chain({sim.name: sim for sim in sims}, gateway)


def of(name: str, **settings: Any) -> SimVllm:
    return SimVllm(name, served=["m"], **settings)
