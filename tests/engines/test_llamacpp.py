"""What llama-server's /slots and /metrics tell, and what of an answer cannot be believed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.progress import IDLE, Progress, Sample, Work
from gateway.engines.llamacpp import read_counters, read_slots, shared_pool

CAPTURES = Path(__file__).parents[1] / "data" / "captures" / "llama-server"


def captured(name: str) -> Any:
    return json.loads((CAPTURES / name).read_text())


def counters(page: bytes) -> Sample | None:
    reading = read_counters(page, 5.0)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            found: Sample | None = end.value
            return found


def test_idle_slots_hold_what_they_last_had() -> None:
    seen = read_slots(captured("slots_idle.json"), 1.0)
    assert seen is not None
    assert (seen.slots, seen.window, seen.sample.running) == (4, 4096, 0)
    assert seen.used > 0


def test_busy_slots_are_counted_and_their_tokens_move() -> None:
    before, after = (read_slots(captured(name), 1.0) for name in ("slots_busy.json", "slots_busy_later.json"))
    assert before is not None
    assert after is not None
    assert (before.sample.running, after.sample.running) == (3, 3)
    assert after.sample.moved_from(before.sample)
    assert not replace(after.sample, at=2.0).moved_from(after.sample)


def test_the_counters_of_a_page() -> None:
    sample = counters((CAPTURES / "metrics.txt").read_bytes())
    assert sample is not None
    assert (sample.running, sample.waiting) == (3.0, 0.0)
    assert (sample.generated, sample.steps) == (13965.0, 10425.0)
    assert counters(b"vllm:num_requests_running 1\n") is None


KEYS = ("is_processing", "n_ctx", "n_prompt_tokens", "next_token", "n_decoded", "id_task")
SCALARS = st.none() | st.booleans() | st.floats() | st.integers() | st.text()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner)))
def test_any_answer_is_read_or_refused(answer: Any) -> None:
    seen = read_slots(answer, 1.0)
    assert seen is None or (seen.slots >= 1 and seen.used >= 0)


@pytest.mark.parametrize("answer", [[], {}, None, [1], [{"id": 0}], [{"is_processing": True}, {}]])
def test_what_is_no_list_of_slots_is_none(answer: Any) -> None:
    assert read_slots(answer, 1.0) is None


def test_slots_share_a_memory_until_they_hold_more_than_it_could() -> None:
    assert shared_pool(4, 4096, 0, None) == 4096
    assert shared_pool(4, 4096, 4097, 4096) == 0
    assert shared_pool(4, 4096, 0, 0) == 0
    assert shared_pool(2, 4096, 0, None) is None
    assert shared_pool(2, 4096, 0, 4096) == 4096  # seen to be full
    assert shared_pool(1, 4096, 0, None) is None
    assert shared_pool(4, None, 0, None) is None


def test_an_engine_that_answers_no_look_is_deaf_after_a_while() -> None:
    progress = Progress()
    progress.unanswered(1.0)
    assert not progress.is_deaf(IDLE, 100.0)  # it never answered one
    progress.add(Sample(2.0))
    progress.unanswered(10.0)
    progress.unanswered(14.0)
    assert not progress.is_deaf(IDLE, 24.9)
    assert progress.is_deaf(IDLE, 25.0)
    assert not progress.is_deaf(Work(last_received=12.0), 25.0)  # it has sent something since
    progress.add(Sample(26.0))
    assert not progress.is_deaf(IDLE, 100.0)
