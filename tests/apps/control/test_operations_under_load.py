"""A switch while clients ask all the time: no request is lost, and none goes to what was stopped."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.domain.health_state import State
from tests.apps.control.machine import begin, ended, gateway_of, machine, switched
from tests.raw_client import chat
from tests.support import RunningGateway

MODES = "{daily: [a, b], ds4: [c]}"
ALIASES = "aliases: {all: {use: [[a, b], c], balance: round_robin}}\n"
WORKERS = 8


@dataclass
class Load:
    """Clients that ask one after the other, every second one for a stream. `answers`: when each was asked (monotonic),
    by which backend it was answered; `wrong`: what was no whole answer."""

    gateway: RunningGateway
    answers: list[tuple[float, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    ending: bool = False

    async def worker(self, number: int) -> None:
        while not self.ending:
            asked, stream = time.monotonic(), number % 2 == 0
            answer = await self.gateway.client.post("/v1/chat/completions", json=chat("all", stream=stream))
            if answer.status_code != 200 or (stream and not answer.text.rstrip().endswith("data: [DONE]")):
                self.wrong.append(f"{answer.status_code} {answer.text[-300:]}")
            self.answers.append((asked, answer.headers.get("x-gateway-backend", "")))

    def since(self, moment: float) -> set[str]:
        """The backends that answered what was asked after this moment."""
        return {backend for asked, backend in self.answers if asked > moment}


@pytest.mark.parametrize("run", ["always", "on_demand"])
async def test_no_request_is_lost_there_and_back(tmp_path: Path, run: str) -> None:
    async with (
        machine(tmp_path, "a", "b", away="c") as there,
        gateway_of(there, MODES, ALIASES, c=f", run: {run}") as gateway,
    ):
        load = Load(gateway)
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(load.worker(number))
            await gateway.until(lambda: {backend for _, backend in load.answers} == {"a", "b"})
            assert (await switched(gateway, "ds4"))["state"] == "done"
            over = time.monotonic()
            await gateway.until(lambda: load.since(over) != set())
            assert load.since(over) == {"c"}
            assert (await switched(gateway, "daily"))["state"] == "done"
            over = time.monotonic()
            await gateway.until(lambda: load.since(over) == {"a", "b"})
            load.ending = True
        assert load.wrong == []
        assert len(there.sims["a"].requests) + len(there.sims["b"].requests) > 0


async def test_what_comes_is_waited_for_while_the_others_are_drained(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES, ALIASES) as gateway:
        sim = there.sims["a"]
        sim.fault("hang_before_content", count=1)
        stream = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=chat("a", stream=True)))
        await sim.wait_inflight(1)
        begun = await begin(gateway, "ds4")
        await gateway.until(lambda: gateway.state("a") is gateway.state("b") is State.DRAINING)
        waits = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=chat("all")))
        await gateway.until(lambda: gateway.gateway.admission.queue_depth().get("c") == 1)
        assert there.orders == []
        gateway.gateway.alias_status.look()
        courses = {name: view.course for name, view in gateway.gateway.alias_status.aliases.items()}
        assert courses["all"] == courses["a"] == "parked", "what a switch takes away alarms nobody"
        sim.clear()
        assert (await stream).status_code == 200
        assert (await ended(gateway, begun))["state"] == "done"
        assert (await waits).headers["x-gateway-backend"] == "c"


async def test_a_switch_that_fails_before_a_stop_gives_back_what_waits(tmp_path: Path) -> None:
    async with machine(tmp_path, "a", "b", away="c") as there, gateway_of(there, MODES, ALIASES) as gateway:
        there.faults["stop a"] = "hang"
        begun = await begin(gateway, "ds4")
        await there.until_asked("stop a")
        both = [asyncio.create_task(gateway.client.post("/v1/chat/completions", json=chat(m))) for m in ("all", "c")]
        await gateway.until(lambda: gateway.gateway.admission.queue_depth().get("c") == 2)
        there.go_on({"stop a": "refuse"})
        await ended(gateway, begun)
        first, second = await asyncio.gather(*both)
        assert (first.status_code, second.status_code) == (200, 503), "nothing brings c any more"
        assert first.headers["x-gateway-backend"] in ("a", "b")
        await there.sims["a"].terminate(0.0)
        await there.sims["b"].terminate(0.0)
        await gateway.until(lambda: gateway.gateway.alias_status.aliases["all"].course == "nothing")
