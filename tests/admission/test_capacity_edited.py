"""A `max_inflight` that an edit of routes.yaml adds, changes or takes away counts what runs already."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.apps.cluster.joined import shared
from tests.apps.cluster.redis_server import running_redis
from tests.editing import edited
from tests.queueing import Gate
from tests.raw_client import chat
from tests.scripted import raw_post
from tests.support import RunningGateway, running_gateway

KEY = "x-api-key: c-key"


def clients(limit: str) -> str:
    return f"clients: {{c: {{key: c-key{limit}}}, other: {{key: other-key}}}}\n"


class Asking:
    """Requests of client c to backend a, whose gate holds each until it is told to end."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.tasks: list[asyncio.Task[object]] = []

    def ask(self, gateway: RunningGateway, *names: str, key: str = KEY) -> None:
        self.tasks += [asyncio.create_task(raw_post(gateway.url, chat("a", name), headers=[key])) for name in names]

    async def until_inside(self, gateway: RunningGateway, *names: str) -> None:
        await gateway.until(lambda: self.inside() == set(names))

    def inside(self) -> set[str]:
        return {name for name, ends in self.gate.inside.items() if not ends.done()}


def waiting(gateway: RunningGateway) -> int:
    return len(gateway.gateway.admission.scheduler.waiters)


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
async def test_a_limit_that_an_edit_adds_counts_what_runs_already(tmp_path: Path, several: bool) -> None:
    gate = Gate()
    gate.backend.scripts = (gate.hold,)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(gate.backend.serve())
        server = ""
        if several:
            server = f"server: {{shared: '{stack.enter_context(running_redis()).url}?socket_timeout=2'}}\n"
        text = f"{server}backends: {{a: {{url: '{gate.backend.url}', slots: 9}}}}\n"
        file = tmp_path / "routes.yaml"
        gateway = await stack.enter_async_context(running_gateway(text + clients(""), file=file))
        await gateway.until_ready("a")
        if several:
            await gateway.until(lambda: shared(gateway).joined)
        editor = await stack.enter_async_context(edited(gateway, file))
        asking = Asking(gate)
        asking.ask(gateway, "r1", "r2", "r3")
        await asking.until_inside(gateway, "r1", "r2", "r3")
        await editor.save(text + clients(", max_inflight: 2"))
        asking.ask(gateway, "r4")
        asking.ask(gateway, "o1", key="x-api-key: other-key")
        await gateway.until(lambda: "o1" in gate.inside and waiting(gateway) == 1)
        gate.end("r1")  # two are left
        await gateway.until(lambda: gateway.gateway.fleet["a"].inflight == 3)
        assert waiting(gateway) == 1
        gate.end("r2")
        await asking.until_inside(gateway, "r3", "r4", "o1")
        asking.ask(gateway, "r5")
        await gateway.until(lambda: waiting(gateway) == 1)
        await editor.save(text + clients(""))
        asking.ask(gateway, "r6")
        await gateway.until(lambda: "r6" in gate.inside)
        gate.end("r3", "r4", "r6", "o1")
        await gateway.until(lambda: "r5" in gate.inside)
        gate.end("r5")
        await asyncio.gather(*asking.tasks)
        await gateway.until(gateway.idle)
        assert gateway.gateway.admission.scheduler._running == {}
