"""Slots that nobody declared are learned: quickly where the engine bears more, and without swinging to and fro."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.progress import Sample
from gateway.domain.slot_learning import MOST, PAUSE_LEAST, PAUSE_MOST, WORDS, LearnedSlots
from gateway.engines.vllm import read_counters
from simulator.engine import Engine, Sequence
from simulator.metrics import render
from tests.health.virtual import run_virtual
from tests.sliced import whole

TICK = 0.05  # seconds
EAGER, USUAL = 0.5, 3.0  # seconds between two looks


@dataclass
class Crowd:
    """Clients that ask a simulated engine again as soon as they are answered, `demand` of them, of which as many are
    inside as there are slots. `history`: (second, slots) of each look. `made`: tokens from a moment on."""

    demand: int
    prompt: int
    tokens: int
    learned: LearnedSlots | None = None

    def __post_init__(self) -> None:
        self.history: list[tuple[float, int]] = []
        self.made = 0.0

    async def run(self, engine: Engine, seconds: float, count_from: float) -> None:
        inside: list[Sequence] = []
        before, at, begun = look(engine), engine.now() + USUAL, engine.now()
        counted: float | None = None
        while engine.now() < begun + seconds:
            inside = [one for one in inside if one.finish is None]
            slots = self.demand if self.learned is None else self.learned.slots
            while len(inside) < min(self.demand, slots):
                inside.append(Sequence(engine, self.prompt, ["w"] * self.tokens, "stop", asyncio.Event()))
                engine.submit(inside[-1])
            if self.learned is not None and engine.now() >= at:
                after = look(engine)
                self.learned.observe(before, after, full=len(inside) >= self.learned.slots)
                self.history.append((engine.now() - begun, self.learned.slots))
                before, at = after, engine.now() + (EAGER if self.learned.eager else USUAL)
            await asyncio.sleep(TICK)
            if counted is None and engine.now() - begun >= count_from:
                counted = engine.counters.generation_tokens
        self.made = engine.counters.generation_tokens - (counted or 0.0)


def look(engine: Engine) -> Sample:
    found = whole(read_counters(render(engine, "m", 0.0), engine.now()))
    assert found is not None
    return found


def served(crowd: Crowd, slots: int, seconds: float, count_from: float = 0.0, **of_engine: float) -> Crowd:
    async def play() -> None:
        engine = Engine(slots, of_engine.get("prefill", 20_000.0), of_engine.get("decode", 50.0), context=32_768,
                        crowding=of_engine.get("crowding", 0.0))  # fmt: skip
        await crowd.run(engine, seconds, count_from)
        engine.hang()

    run_virtual(play())
    return crowd


def test_at_32_streams_it_gives_what_the_engine_gives_within_10_seconds() -> None:
    direct = served(Crowd(32, 430, 256), 256, 30.0, 10.0)
    ours = served(Crowd(32, 430, 256, LearnedSlots(8)), 256, 30.0, 10.0)
    assert ours.made >= 0.95 * direct.made
    assert ours.learned is not None
    assert (ours.learned.slots, ours.learned.why) == (64, "rising"), "more than 32 are never in use"


@given(
    limit=st.integers(1, 70),
    demand=st.integers(1, 90),
    prompt=st.integers(10, 3000),
    tokens=st.integers(20, 300),
    crowding=st.sampled_from((0.0, 0.02, 0.1)),
)
@settings(max_examples=15, deadline=None)
def test_they_stand_still_where_the_engine_is_busy(
    limit: int, demand: int, prompt: int, tokens: int, crowding: float
) -> None:
    direct = served(Crowd(demand, prompt, tokens), limit, 120.0, 40.0, crowding=crowding)
    ours = served(Crowd(demand, prompt, tokens, LearnedSlots(8)), limit, 120.0, 40.0, crowding=crowding)
    settled = [slots for second, slots in ours.history if second > 40.0]
    falls = [(a, b) for a, b in pairwise(settled) if b < a]
    assert len(falls) <= 3, settled
    assert max(settled) <= min(MOST, max(8, limit + limit // 8 + 1, 2 * demand)), settled
    assert ours.made >= 0.95 * direct.made, (ours.made / direct.made, settled)


def at(second: float, **counts: Any) -> Sample:
    return Sample(second, generated=second, **counts)


def rising(slots: int = 8) -> tuple[LearnedSlots, Sample]:
    """After their first rise."""
    learned, first = LearnedSlots(slots), at(1.0, running=slots)
    assert learned.observe(at(0.0), first, full=True)
    assert (learned.slots, learned.why) == (2 * slots, "rising")
    return learned, first


@pytest.mark.parametrize(
    ("seen", "slots", "why"),
    [
        (at(2.0, running=16), 32, "rising"),
        (at(2.0, running=16, waiting=1), 16, "rising"),
        (at(2.0, running=16, kv=0.9), 16, "memory"),
        (at(2.0, running=12, preemptions=1), 12, "preempts"),
        (at(2.0, running=2, preemptions=1), 8, "preempts"),
        (replace(at(2.0), generated=1.0), 16, "rising"),
    ],
    ids=["free", "one waits", "memory", "preempts", "half at most", "nothing moved"],
)
def test_what_one_look_does(seen: Sample, slots: int, why: str) -> None:
    learned, before = rising()
    learned.observe(before, seen, full=True)
    assert (learned.slots, learned.why) == (slots, why)


def test_without_need_they_do_not_rise() -> None:
    learned = LearnedSlots(8)
    assert learned.why == "assumed"
    assert not learned.observe(at(0.0), at(1.0, running=7), full=False)
    assert (learned.slots, learned.why) == (8, "begun")


def test_requests_that_wait_inside_in_two_looks_lower_them_to_what_runs() -> None:
    learned, before = rising()
    once, twice = at(2.0, running=10, waiting=6), at(3.0, running=10, waiting=6)
    assert not learned.observe(before, once, full=True)
    assert learned.observe(once, twice, full=True)
    assert (learned.slots, learned.why, learned.eager) == (10, "queues", False)
    assert learned.observe(twice, at(4.0, running=10), full=True)
    assert learned.slots == 11, "by an eighth from now on"


def test_prompts_that_are_being_taken_in_lower_nothing() -> None:
    learned, before = rising()
    for second in range(2, 8):
        after = at(float(second), running=float(second), waiting=16.0 - second)
        assert not learned.observe(before, after, full=True)
        before = after


def test_a_first_token_that_comes_later_stops_them_for_a_while() -> None:
    learned, before = rising()
    calm = at(2.0, running=16, firsts=8, first_seconds=1.6)
    learned.observe(before, calm, full=True)
    late = at(3.0, running=32, firsts=16, first_seconds=1.6 + 8.0)
    assert not learned.observe(calm, late, full=True)
    assert (learned.slots, learned.why) == (32, "later")
    again = at(20.0, running=32, firsts=24, first_seconds=17.6)
    assert not learned.observe(late, again, full=True)
    later = at(3.0 + PAUSE_LEAST, running=32, firsts=32, first_seconds=25.6)
    assert learned.observe(again, later, full=True)
    assert learned.slots == 36


def test_an_engine_that_preempts_is_tried_less_and_less_often() -> None:
    """It bears 40, for two hours."""
    learned, before, preempted, falls = LearnedSlots(8), at(0.0), 0, []
    for look_at in range(1, 2400):
        inside = learned.slots
        preempted += inside > 40
        after = at(3.0 * look_at, running=min(inside, 40), preemptions=preempted)
        learned.observe(before, after, full=True)
        if learned.slots < inside:
            falls.append(3.0 * look_at)
        before = after
    assert 30 <= learned.slots <= 45
    assert len(falls) < 7200 / PAUSE_MOST * 3
    assert all(b - a >= PAUSE_LEAST for a, b in pairwise(falls[1:]))


def test_every_reason_has_its_words() -> None:
    assert set(WORDS) >= {"declared", "reported", *LearnedSlots.observe.__globals__["Why"].__args__}
