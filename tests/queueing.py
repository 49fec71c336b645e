"""Backends that answer when the test says so, and a gateway in front of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from tests.raw_client import chat
from tests.scripted import RawReply, ScriptedBackend, Turn, json_answer, raw_post
from tests.scripted import answer as http_answer
from tests.support import PATIENCE, RunningGateway, running_gateway

CHAT = "/v1/chat/completions"
KEYS = """
clients:
  hog: {key: hog-key}
  other: {key: other-key}
  nightly: {key: nightly-key, priority: batch}
  narrow: {key: narrow-key, max_inflight: 1}
"""


@dataclass
class Gate:
    """A backend that answers a request when the test says so. `order` are the requests as they came, by what they say;
    `inside` those that have no answer yet; `most` how many there were at a time."""

    backend: ScriptedBackend = field(default_factory=lambda: ScriptedBackend(()))
    order: list[str] = field(default_factory=list)
    inside: dict[str, asyncio.Future[bytes]] = field(default_factory=dict)
    most: int = 0
    is_open: bool = False

    async def hold(self, turn: Turn) -> None:
        name = turn.json["messages"][0]["content"]
        self.order.append(name)
        self.inside[name] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.inside))
        said = self.inside[name]
        if self.is_open:
            said.set_result(b"")
        lost = asyncio.create_task(turn.until_lost())
        lost.add_done_callback(lambda _: said.cancel())
        await asyncio.wait([said])
        del self.inside[name]
        lost.cancel()
        if not said.cancelled():
            stream = turn.json.get("stream", False)
            await turn.send(said.result() if said.result() else whole(stream))
            turn.close()  # its reader was read

    def open(self) -> None:
        """From now on answer at once."""
        self.is_open = True
        self.end(*(name for name, said in self.inside.items() if not said.done()))

    def end(self, *names: str, with_: bytes = b"") -> None:
        for name in names:
            self.inside[name].set_result(with_)


def whole(stream: bool) -> bytes:
    choice = {"index": 0, "finish_reason": "stop"}
    if not stream:
        return json_answer({"model": "m", "choices": [{**choice, "message": {"role": "assistant", "content": "said"}}]})
    chunk = {"id": "c", "created": 1, "model": "m", "choices": [{**choice, "delta": {"content": "said"}}]}
    return http_answer(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n", "200 OK", "text/event-stream")


@dataclass
class Queue:
    """A gateway before gates. Requests are tasks, named by what they say."""

    gateway: RunningGateway
    gates: dict[str, Gate]
    tasks: dict[str, asyncio.Task[RawReply]] = field(default_factory=dict)

    @property
    def gate(self) -> Gate:
        return self.gates["a"]

    def depth(self, backend: str = "a") -> float:
        return self.gateway.metric("gateway_queue_depth", backend=backend)

    async def ask(self, *names: str, model: str = "pool", key: str = "", stream: bool = False) -> None:
        """Send requests, one after the other; each is inside or waits before the next is sent."""
        for name in names:
            headers = [f"authorization: Bearer {key}"] if key else []
            body = chat(model, name, stream=stream)
            self.tasks[name] = asyncio.create_task(raw_post(self.gateway.url, body, CHAT, headers))
            await self.gateway.until(lambda n=name: self.is_placed(n))  # type: ignore[misc]  # default binds the name

    def is_placed(self, name: str) -> bool:
        """Does it wait, or has it been asked of a backend, or been answered?"""
        if self.tasks[name].done() or any(name in gate.order for gate in self.gates.values()):
            return True
        said = json.dumps(name).encode()
        waiters = self.gateway.gateway.admission.scheduler.waiters
        return any(
            r.planned.slots.waiter in waiters and said in bytes(r.planned.received.request.fields["messages"])
            for r in self.gateway.requests()
            if r.planned is not None
        )

    async def reply(self, name: str) -> RawReply:
        async with asyncio.timeout(PATIENCE):
            return await self.tasks[name]

    async def until_inside(self, name: str, gate: str = "a") -> None:
        await self.gateway.until(lambda: name in self.gates[gate].inside)

    async def finish(self) -> None:
        """Answer everything."""
        for gate in self.gates.values():
            gate.open()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def opened(stack: AsyncExitStack, slots: str, more: str = "") -> tuple[dict[str, Gate], dict[str, str]]:
    """By name: the gates, which serve until the stack ends, and their lines of routes.yaml."""
    gates: dict[str, Gate] = {}
    lines: dict[str, str] = {}
    for name, count in (pair.split(": ") for pair in slots.split(", ")):
        gate = gates[name] = Gate()
        gate.backend.scripts = (gate.hold,)
        await stack.enter_async_context(gate.backend.serve())
        cloud = ", engine: openai, cloud: true, model: served/model" if name == "cloud" else f", slots: {count}"
        lines[name] = f"  {name}: {{url: '{gate.backend.url}'{cloud}{more}}}"
    return gates, lines


@asynccontextmanager
async def queue(
    slots: str = "a: 2", aliases: str = "pool: [a]", more: str = "", keys: str = ""
) -> AsyncIterator[Queue]:
    """`slots`: a gate for each name, with so many slots (`a: 2, b: 1`); `more`: further settings of each."""
    async with AsyncExitStack() as stack:
        gates, lines = await opened(stack, slots, more)
        routes = "\n".join(["backends:", *lines.values(), "aliases:", f"  {aliases}", keys])
        running = await stack.enter_async_context(running_gateway(routes))
        await running.until_ready(*(name for name in gates if name != "cloud"))
        found = Queue(running, gates)
        try:
            yield found
        finally:
            await found.finish()


NAMES = [f"r{number}" for number in range(10)]
