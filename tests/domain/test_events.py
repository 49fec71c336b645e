"""Events of backends reach who listens."""

from __future__ import annotations

from gateway.domain.events import Event
from gateway.domain.health_state import State
from tests.warming import one, sim_of


async def test_a_listener_is_told_of_every_event() -> None:
    sim = sim_of()
    async with one(sim) as gateway:
        await gateway.until_ready("a")
        heard: list[Event] = []
        gateway.gateway.on_event.append(heard.append)
        await sim.kill()
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        assert [(e.before, e.after) for e in heard if e.kind == "state"] == [("ready", "suspect"), ("suspect", "down")]
        assert all(e.at > 1.7e9 and e.reason for e in heard if e.kind == "state")
