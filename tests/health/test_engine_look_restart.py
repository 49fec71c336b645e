"""An engine that does not tell when it was started is known to be another process by its counters."""

from __future__ import annotations

from gateway.domain.facts import Source
from simulator import SimRustFrontEnd
from tests.one_backend import ask, one_backend

QUIET = "defaults: {health: {every: 1h, canary: none}}\n"


async def test_counters_that_fall_are_another_start_and_what_was_learned_is_gone() -> None:
    sim = SimRustFrontEnd()
    async with one_backend(sim, before=QUIET) as gateway:
        await gateway.until_ready("a")
        state, look = gateway.gateway.fleet["a"], gateway.gateway.prober.look_at_engine
        assert (await ask(gateway)).status_code == 200
        await look(state)
        state.facts.learn_lack("images", 0.0, Source("1"))
        assert (await ask(gateway)).status_code == 200
        await look(state)
        assert "images" in state.facts.lacks, "counters that grow are the same process"
        assert state.reported.started is None
        sim.restarted()
        await look(state)
        assert not state.facts.lacks
        assert state.sleepless is None


async def test_what_it_does_not_tell_is_unknown_on_the_page() -> None:
    sim = SimRustFrontEnd(flags={"gpu-memory-utilization": 0.5})
    async with one_backend(sim) as gateway:
        await gateway.until_ready("a")
        assert (await ask(gateway)).status_code == 200
        await gateway.gateway.prober.look_at_engine(gateway.gateway.fleet["a"])
        shown = (await gateway.client.get("/status")).json()["backends"]["a"]
        assert (shown["flags"], shown["now"]["accepted"], shown["drift"]) == ({}, [], [])
