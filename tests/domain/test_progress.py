"""Does an engine move? The simulated engine in made-up time, its own /metrics, and pages written by hand."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.progress import FOREIGN_PROMPT, IDLE, SILENCE_LEAST, Progress, Sample, Work
from gateway.engines.vllm import read_counters
from simulator.engine import Engine, Sequence
from simulator.metrics import render
from tests.health.virtual import run_virtual
from tests.simulator.wire import load
from tests.sliced import whole
from tests.waiting import pace

LOOK = 3.0
PREFILL, DECODE = 797.0, 14.0  # tokens per second: a large model on one machine


class Watched:
    """An engine with requests of ours, looked at every `LOOK` seconds as the gateway does."""

    def __init__(self, slots: int = 8, chunk: int = 2048) -> None:
        self.engine = Engine(slots, PREFILL, DECODE, context=131072, chunk=chunk, crowding=0.1)
        self.progress = Progress()
        self.ours: dict[Sequence, float] = {}  # -> when it was sent
        self.longest = 0.0  # silence that was seen
        self.stalled_at: float | None = None

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def ask(self, prompt: int, answer: int, *, ours: bool = True) -> Sequence:
        sequence = Sequence(self.engine, prompt, ["x"] * answer, "stop", asyncio.Event(), max_tokens=answer)
        if ours:
            self.ours[sequence] = self.now()
        self.engine.submit(sequence)
        return sequence

    def work(self) -> Work:
        """As the gateway counts it: a stream has spoken when its first token has come."""
        open_ = {s: sent for s, sent in self.ours.items() if s.finish is None}
        if not open_:
            return IDLE
        heard = {s: max(sent, s.last_at) for s, sent in open_.items()}
        silent = {s: sent for s, sent in open_.items() if not s.made}
        return Work(
            len(open_),
            min(heard.values()),
            max(silent.values(), default=0.0),
            len(silent),
            sum(s.prompt for s in silent),
            len(open_),
            max((s.last_at for s in self.ours), default=0.0),
        )

    async def watch(self, seconds: float) -> None:
        until = self.now() + seconds
        while self.now() < until and self.stalled_at is None:
            await pace(LOOK)
            self.look()

    def look(self) -> None:
        sample = whole(read_counters(render(self.engine, "model", 1.0), self.now()))
        assert sample is not None
        self.progress.add(sample)
        work = self.work()
        self.longest = max(self.longest, self.progress.silence(work, self.now()))
        if self.progress.stalled(work, self.now()):
            self.stalled_at = self.now()


# -- busy is not dead -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [2048, 16384, 32768])
@pytest.mark.parametrize("seed", [1, 2])
def test_half_an_hour_of_full_slots_and_100k_prompts_is_no_stall(chunk: int, seed: int) -> None:
    """A step of 32,768 tokens takes 41 s at this speed, and nothing moves meanwhile."""

    async def soak() -> None:
        watched = Watched(chunk=chunk)
        choose = random.Random(seed)
        until = watched.now() + 1800
        while watched.now() < until:
            while watched.work().held < 12:  # always some wait there too
                watched.ask(choose.choice((100_000, 60_000, 8_000)), choose.randint(50, 800))
            await watched.watch(LOOK)
            assert watched.stalled_at is None, watched.now()
        assert watched.engine.counters.prompt_tokens > 800_000, "it has been at work all the time"

    run_virtual(soak())


def test_a_learned_rate_does_not_make_it_impatient_either() -> None:
    async def soak() -> None:
        watched = Watched(chunk=16384)
        watched.look()
        for _ in range(3):
            watched.ask(50_000, 20)
            await watched.watch(120)
        assert watched.progress.prefill == pytest.approx(PREFILL, rel=0.15)
        for _ in range(8):
            watched.ask(120_000, 50)
        await watched.watch(1500)
        assert watched.stalled_at is None

    run_virtual(soak())


# -- what stands still is found ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 0.9, 1.7, 2.9])
def test_a_decoding_engine_that_hangs_is_found_within_25_seconds(offset: float) -> None:
    async def story() -> None:
        watched = Watched()
        for _ in range(4):
            watched.ask(2000, 4000)
        await watched.watch(30)
        await pace(offset)
        hung = watched.now()
        watched.engine.hang()
        await watched.watch(100)
        assert watched.stalled_at is not None
        assert SILENCE_LEAST <= watched.stalled_at - hung <= 25

    run_virtual(story())


def test_a_request_that_comes_to_a_hung_engine_has_its_own_time() -> None:
    async def story() -> None:
        watched = Watched()
        watched.look()
        watched.engine.hang()
        await watched.watch(300)
        assert watched.stalled_at is None, "nothing is wanted of it"
        watched.ask(30_000, 10)
        asked = watched.now()
        await watched.watch(400)
        assert watched.stalled_at is not None
        assert 300 <= watched.stalled_at - asked <= 300 + 2 * LOOK  # 3 x 30,000 / 300

    run_virtual(story())


def test_a_hang_in_prefill_is_found_by_its_budget() -> None:
    async def story() -> None:
        watched = Watched()
        watched.look()
        for _ in range(2):
            watched.ask(50_000, 20)
            await watched.watch(120)
        rate = watched.progress.prefill
        assert rate is not None
        watched.ask(50_000, 20)
        await watched.watch(20)
        watched.engine.hang()
        hung = watched.now()
        await watched.watch(1000)
        assert watched.stalled_at is not None
        assert watched.stalled_at - hung == pytest.approx(3 * 50_000 / rate, abs=2 * LOOK)

    run_virtual(story())


def test_others_work_alone_is_no_evidence() -> None:
    """After the last request was given up vLLM's count may stay at one."""

    async def story() -> None:
        watched = Watched()
        watched.ask(1000, 4000, ours=False)
        await watched.watch(10)
        watched.engine.hang()
        await watched.watch(600)
        assert watched.stalled_at is None

    run_virtual(story())


# -- budgets, by hand -------------------------------------------------------------------------------------------------


def seen(*samples: Sample) -> Progress:
    progress = Progress()
    for sample in samples:
        progress.add(sample)
    return progress


def test_all_decoding_is_20_seconds_and_prompts_get_three_times_their_time() -> None:
    progress = seen(Sample(0.0), Sample(10.0, running=2, generated=5, firsts=2))
    assert progress.budget(Work(2, 0.0, 0.0, 0, 0, 2)) == 20.0
    assert progress.budget(Work(2, 0.0, 11.0, 1, 60_000, 2)) == 600.0
    assert progress.budget(Work(2, 0.0, 11.0, 1, 100, 2)) == 20.0
    progress.prefill = 3000.0
    assert progress.budget(Work(2, 0.0, 11.0, 1, 60_000, 2)) == 60.0


def test_a_whole_answer_counts_as_decoding_once_the_engine_has_given_everybody_a_token() -> None:
    """Without stream we do not hear it."""
    whole = Work(1, 5.0, 5.0, 1, 90_000, 1)
    assert seen(Sample(0.0), Sample(10.0, running=1, prompted=0, kv=0.1)).budget(whole) == 900.0
    assert seen(Sample(0.0), Sample(10.0, running=1, generated=3, firsts=1)).budget(whole) == 20.0


def test_somebody_elses_prompt_is_given_time_too() -> None:
    ours = Work(1, 0.0, 0.0, 0, 0, 1)
    progress = seen(Sample(0.0), Sample(10.0, running=2, generated=9, firsts=1))
    assert progress.budget(ours) == 3 * FOREIGN_PROMPT / 300


def test_what_others_run_there_is_counted_when_two_looks_agree() -> None:
    progress = Progress()
    counts = []
    for at, running, held in ((1, 3, 3), (2, 5, 3), (3, 5, 3), (4, 3, 4), (5, 6, 0), (6, 6, 2)):
        progress.add(Sample(float(at), running=running, generated=float(at)))
        counts.append(progress.foreign(held, float(at)))
    assert counts == [0, 0, 2, 0, 0, 4]


def test_numbers_that_never_move_are_nobody() -> None:
    progress = Progress()
    for at in range(0, 100, 5):
        progress.add(Sample(float(at), running=1, generated=50))
        seen_now = progress.foreign(0, float(at))
    assert seen_now == 0


def test_a_cached_prompt_teaches_no_speed() -> None:
    progress = seen(
        Sample(0.0),
        Sample(5.0, running=1, hits=99_000, kv=0.5),
        Sample(10.0, generated=10, firsts=1, finished=1, prefilled=100_000, prefill_seconds=0.2, hits=99_000),
    )
    assert progress.prefill is None
    progress.add(Sample(20.0, generated=20, firsts=2, finished=2, prefilled=108_000, prefill_seconds=8.2, hits=99_000))
    assert progress.prefill == pytest.approx(1000)


def test_slower_is_believed_sooner_than_faster() -> None:
    progress = Progress()
    at = prefilled = seconds = 0.0

    def ended(rate: float) -> float | None:
        nonlocal at, prefilled, seconds
        at, prefilled, seconds = at + 5, prefilled + 10_000, seconds + 10_000 / rate
        progress.add(Sample(at, generated=at, firsts=at, finished=at, prefilled=prefilled, prefill_seconds=seconds))
        return progress.prefill

    progress.add(Sample(0.0))
    assert [ended(1000), ended(2000), ended(200)] == pytest.approx([1000, 1200, 700])


def test_a_new_process_counts_anew() -> None:
    progress = seen(Sample(0.0, generated=900, finished=9, firsts=9), Sample(50.0, running=1, kv=0.1))
    assert (progress.moved_at, progress.without_token()) == (50.0, 1)


# -- the page ---------------------------------------------------------------------------------------------------------


def test_a_real_vllms_page_is_read() -> None:
    sample = whole(read_counters(load("metrics").reply.body, 1.0))
    assert sample is not None
    assert (sample.running, sample.waiting, sample.kv) == (0.0, 0.0, 0.0)


def test_several_engines_are_added_up_and_older_names_are_known() -> None:
    page = b"""# TYPE x gauge
vllm:num_requests_running{engine="0",model_name="a{}b"} 2.0
vllm:num_requests_running{engine="1",model_name="a"} 3.0
vllm:gpu_cache_usage_perc{model_name="a"} 0.5
vllm:generation_tokens_total{model_name="a"} 7.0
vllm:time_per_output_token_seconds_count{model_name="a"} 4
vllm:prompt_tokens_total{model_name="a"} nonsense
"""
    assert whole(read_counters(page, 1.0)) == Sample(1.0, running=5.0, generated=7.0, kv=0.5, gaps=4.0)


@pytest.mark.parametrize("page", [b"", b"not metrics", b"vllm:num_requests_running 1\n", b"\xff\xfe\n"])
def test_other_pages_tell_nothing(page: bytes) -> None:
    assert whole(read_counters(page, 1.0)) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 50), st.integers(0, 12)), max_size=30))
def test_any_numbers_give_a_sound_answer(looks: list[tuple[int, int, int, int]]) -> None:
    progress = Progress()
    for at, (running, firsts, finished, held) in enumerate(looks):
        now = at * LOOK
        progress.add(Sample(now, running=running, generated=firsts, firsts=firsts, finished=finished))
        assert 0 <= progress.without_token() <= running
        assert progress.foreign(held, now) >= 0
        work = Work(held, now, now, held, 100 * held, held, 0.0)
        assert progress.budget(work) >= SILENCE_LEAST
        assert not progress.stalled(work, now), "it was only just sent"
        assert not progress.stalled(IDLE, now + 10_000)
