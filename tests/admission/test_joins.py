"""Repeats that join a request: only one of them runs, everybody is answered or runs, and nothing is left behind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.joins import ALONE, KEPT, OVERHEAD, Answer, Joins, KeptAnswers
from gateway.admission.memory import Memory, Share
from tests.health.virtual import run_virtual
from tests.waiting import turns

MB = 1024 * 1024
# What happens next: (to which client, what), or how many seconds pass.
MOVES = st.one_of(
    st.tuples(st.integers(0, 5), st.sampled_from(["comes", "leaves", "answers", "fails"])),
    st.sampled_from([1.0, 40.0, 61.0]),
)


@dataclass
class Play:
    """Some clients that send one and the same request."""

    joins: Joins
    tasks: dict[int, asyncio.Task[str]] = field(default_factory=dict)
    running: dict[int, asyncio.Future[bool]] = field(default_factory=dict)  # of the one that runs: is it answered?
    alone: set[int] = field(default_factory=set)  # runs, and its client has left
    ended: list[str] = field(default_factory=list)

    async def client(self, number: int) -> str:
        found = self.joins.find(b"key")
        if isinstance(found, Answer):
            return "joined"
        if found is None:
            found = self.joins.run(b"key", "me", str(number), lambda: self.end(number))
        elif await found.join() is not None:
            return "joined"
        else:
            found.lead(str(number), lambda: self.end(number))
        result = self.running[number] = asyncio.get_running_loop().create_future()
        self.leading = found
        try:
            if not await result:
                return "failed"
            found.answered([], b"x" * 1000)
            return "answered"
        finally:
            del self.running[number]
            found.close()

    def end(self, number: int) -> None:
        assert number in self.alone, "a request with a client was ended"
        self.tasks[number].cancel()

    async def move(self, number: int, what: str) -> None:
        task = self.tasks.get(number)
        if what == "comes" and (task is None or task.done()):
            self.alone.discard(number)
            self.tasks[number] = asyncio.get_running_loop().create_task(self.client(number))
        elif what == "leaves" and task is not None and number not in self.alone:
            if number not in self.running:
                task.cancel()
            elif self.leading.client_left():
                self.alone.add(number)
        elif what in ("answers", "fails") and number in self.running and not self.running[number].done():
            self.running[number].set_result(what == "answers")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(MOVES, st.integers(0, 3)), max_size=40))
def test_of_joined_repeats_one_runs_and_all_are_answered_and_nothing_is_left(moves: list[tuple[object, int]]) -> None:
    async def play() -> None:
        memory = Memory(64 * MB)
        game = Play(Joins(memory))
        for move, rounds in moves:
            if isinstance(move, float):
                await asyncio.sleep(move)
            elif isinstance(move, tuple):
                await game.move(*move)
            await turns(rounds)  # several things happen at once, or one after the other
            assert len(game.running) <= 1
        await turns(3)
        while left := [task for task in game.tasks.values() if not task.done()]:
            assert game.running, "everybody waits, and nobody runs"
            for result in [one for one in game.running.values() if not one.done()]:
                result.set_result(False)
            await asyncio.wait(left, timeout=0.1)
            await turns(3)
        assert game.joins.running == {}
        await asyncio.sleep(KEPT + 1)
        assert (len(game.joins.kept), memory.used) == (0, 0)

    run_virtual(play())


def test_a_request_without_a_client_ends_after_a_while_unless_a_repeat_waits() -> None:
    async def play() -> None:
        game = Play(Joins(Memory(None)))
        await game.move(1, "comes")
        await turns(2)
        await game.move(1, "leaves")
        await asyncio.sleep(ALONE - 1)
        await game.move(2, "comes")
        await asyncio.sleep(10 * ALONE)
        assert list(game.running) == [1]
        await game.move(2, "leaves")
        await asyncio.sleep(ALONE - 1)
        assert list(game.running) == [1]
        await asyncio.sleep(2)
        assert game.running == {}
        assert game.joins.running == {}

    run_virtual(play())


def test_a_repeat_that_leaves_when_it_is_about_to_run_lets_the_next_one_run() -> None:
    async def play(others: int) -> None:
        game = Play(Joins(Memory(None)))
        for number in range(2 + others):
            await game.move(number, "comes")
        await turns(2)
        await game.move(0, "fails")
        await turns(1)
        await game.move(1, "leaves")
        await turns(3)
        assert list(game.running) == [2] * others
        assert len(game.joins.running) == others
        for result in game.running.values():
            result.set_result(False)
        await turns(3)
        assert game.joins.running == {}

    run_virtual(play(0))
    run_virtual(play(1))


def test_when_the_gateway_stops_what_runs_for_nobody_is_ended() -> None:
    async def play() -> None:
        memory = Memory(64 * MB)
        game = Play(Joins(memory))
        for move in ("comes", "answers"):
            await game.move(1, move)
            await turns(3)
        game.joins.kept.clear()
        await game.move(2, "comes")
        await turns(2)
        await game.move(2, "leaves")
        game.joins.stop()
        await turns(3)
        assert (game.running, game.joins.running, len(game.joins.kept), memory.used) == ({}, {}, 0, 0)

    run_virtual(play())


def answer(memory: Memory, size: int) -> Answer:
    share = Share(memory)
    share.add(size)
    return Answer("id", [], b"", share)


def test_kept_answers_are_bounded_in_all_per_client_and_each() -> None:
    memory = Memory(64 * MB)
    kept = KeptAnswers(memory.limit)
    assert (kept.most, kept.most_of_client, kept.most_of_answer) == (4 * MB, MB, MB // 4)
    kept.keep(b"big", answer(memory, MB // 4 + 1), "a", 0.0)
    assert (len(kept), memory.used) == (0, 0)
    for number in range(5):
        kept.keep(b"a%d" % number, answer(memory, MB // 4), "a", float(number))
    assert (kept.find(b"a0", 5.0), kept.size) == (None, MB)
    assert kept.find(b"a1", 5.0) is not None
    for number in range(16):
        kept.keep(b"b%d" % number, answer(memory, MB // 4), f"b{number}", 6.0)
    assert [kept.find(b"a%d" % number, 6.0) for number in range(5)] == [None] * 5
    assert (kept.size, memory.used) == (4 * MB, 4 * MB)
    assert kept.expire(6.0 + KEPT) is None
    assert (kept.size, memory.used) == (0, 0)


def test_kept_answers_give_way_to_requests() -> None:
    async def play() -> None:
        memory = Memory(64 * MB)
        joins = Joins(memory)
        joins.run(b"key", "me", "1", lambda: None).answered([], b"x" * 1000)
        assert memory.used == 1000 + OVERHEAD
        request = Share(memory)
        request.add(memory.large or 0)
        assert (joins.find(b"key"), memory.refused) == (None, 0)
        request.close()
        joins.stop()

    run_virtual(play())


def test_without_memory_for_the_answer_the_next_one_runs() -> None:
    async def play() -> None:
        memory = Memory(MB)
        game = Play(Joins(memory))
        for number in (1, 2):
            await game.move(number, "comes")
        await turns(2)
        held = Share(memory)
        held.add(1000)
        memory.large = memory.limit = 1000
        await game.move(1, "answers")
        await turns(4)
        assert list(game.running) == [2]
        game.running[2].set_result(False)
        await turns(4)
        assert game.joins.running == {}

    run_virtual(play())
