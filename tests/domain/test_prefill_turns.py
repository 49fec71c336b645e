"""One client's prompts to count keep no server from counting those of the others, nor the gateway from its work."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gateway.domain.backend import COUNTS_EACH
from gateway.domain.request import InferenceRequest
from gateway.engines import tokenize
from gateway.engines.tokenize import count_tokens
from gateway.large_bodies import LARGE
from tests.engines.test_tokenize import connected, request
from tests.scripted import PATIENCE, Turn, json_answer, scripted
from tests.waiting import until


def of(sender: str) -> InferenceRequest:
    asked = request()
    asked.sender = sender
    return asked


async def test_each_client_has_a_few_prompts_counted_at_a_time_whatever_others_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenize, "BUDGET", PATIENCE)
    go_on = asyncio.Event()

    async def held(turn: Turn) -> None:
        await go_on.wait()
        await turn.send(json_answer({"count": 7}))

    async with scripted(held) as backend, connected(backend.url) as state:
        greedy = [asyncio.create_task(count_tokens(state, of("greedy"))) for _ in range(5 * COUNTS_EACH)]
        await until(lambda: len(backend.turns) == COUNTS_EACH)
        other = asyncio.create_task(count_tokens(state, of("other")))
        await until(lambda: len(backend.turns) > COUNTS_EACH)
        assert len(backend.turns) == COUNTS_EACH + 1  # the other's, and none of those that wait
        greedy.pop().cancel()
        go_on.set()
        assert await asyncio.gather(other, *greedy) == [7] * (5 * COUNTS_EACH)
        assert len(backend.turns) == 5 * COUNTS_EACH
        assert len(state.counting) == 0


async def test_a_sender_that_waits_for_a_turn_gets_an_estimate_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenize, "BUDGET", 0.05)

    async def silent(turn: Turn) -> None:
        await turn.until_lost()

    async with scripted(silent) as backend, connected(backend.url) as state:
        asked = [count_tokens(state, of("greedy")) for _ in range(5 * COUNTS_EACH)]
        async with asyncio.timeout(PATIENCE):
            assert set(await asyncio.gather(*asked)) == {None}
        assert len(state.counting) == 0


async def test_a_long_list_of_tokens_is_read_beside_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, read = list[threading.Thread](), tokenize._token_count

    def noted(answer: bytes, key: str) -> int | None:
        threads.append(threading.current_thread())
        return read(answer, key)

    monkeypatch.setattr(tokenize, "_token_count", noted)

    async def long(turn: Turn) -> None:
        await turn.send(json_answer({"count": LARGE, "tokens": [1] * LARGE}))

    async with scripted(long) as backend, connected(backend.url) as state:
        assert await count_tokens(state, of("one")) == LARGE
        assert threads[0] is not threading.main_thread()
