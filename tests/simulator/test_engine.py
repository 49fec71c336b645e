"""The simulated engine: slots, order, speed, and counters that move as vLLM's do."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import SimVllm, tokens
from tests.limits import within
from tests.simulator.wire import CAPTURES, ask, chat

CHAT = "/v1/chat/completions"


def value(page: bytes, name: str) -> float:
    found = re.search(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", page.decode(), re.M)
    assert found, name
    return float(found[1])


async def test_while_it_only_prefills_token_counters_stand_still_and_kv_use_moves() -> None:
    sim = SimVllm(context=100_000, prefill=8_000, chunk=500, tool_parser=None)
    async with sim.serve() as url:
        asking = asyncio.create_task(ask(url, CHAT, chat("x" * 40_000, max_tokens=1)))
        seen = []
        while not asking.done():
            page = (await ask(url, "/metrics")).body
            if value(page, "vllm:num_requests_running") and not value(page, "vllm:generation_tokens_total"):
                assert value(page, "vllm:prompt_tokens_total") == 0
                assert value(page, "vllm:iteration_tokens_total_count") == 0
                seen.append(value(page, "vllm:kv_cache_usage_perc"))
        assert seen == sorted(seen)
        assert len(set(seen)) > 3, "a step at a time"
        page = (await ask(url, "/metrics")).body
    assert value(page, "vllm:prompt_tokens_total") == (await asking).json["usage"]["prompt_tokens"]
    assert value(page, "vllm:generation_tokens_total") == 1
    assert value(page, "vllm:kv_cache_usage_perc") == 0


async def test_the_metrics_have_the_names_types_labels_and_bounds_of_a_real_vllm() -> None:
    real = (CAPTURES / "metrics.txt").read_text()
    cache = {"kv-cache-memory-bytes": 1073741824}
    sim = SimVllm(served=["tiny"], context=2048, slots=1024, prefix_cache=True, flags=cache)
    async with sim.serve() as url:
        reply = await ask(url, "/metrics")
    assert reply.header("content-type") == "text/plain; version=1.0.0; charset=utf-8"

    def shape(page: str) -> set[str]:
        lines = [re.sub(r" [^ ]+$", "", line) if line[0] != "#" else line for line in page.splitlines() if line]
        return {line for line in lines if "vllm:" in line}

    ours, theirs = shape(reply.body.decode()), shape(real)
    # the real one's window was 2,048 tokens, which ends its token histograms
    beyond = {line for line in ours if re.search(r'le="(5000|10000|20000|50000|100000)\.0"', line)}
    assert ours - theirs - beyond == set()
    for name in (
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "request_queue_time_seconds",
        "inter_token_latency_seconds",
        "engine_sleep_state",
        "cache_config_info",
    ):
        assert any(name in line for line in ours)


async def test_speculative_decoding_has_its_counters() -> None:
    sim = SimVllm(served=["tiny"], spec_tokens=2)
    async with sim.serve() as url:
        reply = await ask(url, CHAT, chat("write 30 words"))
        page = (await ask(url, "/metrics")).body
    assert reply.json["usage"]["completion_tokens"] == 31
    drafts = value(page, "vllm:spec_decode_num_drafts_total")
    assert value(page, "vllm:spec_decode_num_draft_tokens_total") == 2 * drafts
    assert 0 < value(page, "vllm:spec_decode_num_accepted_tokens_total") < 2 * drafts


class Watched(SimVllm):
    """`most`: how many sequences ran at a time."""

    most = 0

    def changed(self) -> None:
        if self.server is not None:
            self.most = max(self.most, len(self.engine.running))
        super().changed()


async def test_no_more_run_than_there_are_slots_and_the_rest_go_in_order() -> None:
    sim = Watched(slots=2, decode=200, tool_parser=None)
    finished: list[int] = []

    async def one(number: int, url: str) -> None:
        await ask(url, CHAT, chat("write 20 words", user=str(number)))
        finished.append(number)

    async with sim.serve() as url:
        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(one(number, url)))
            queued = number + 1
            await sim.wait_for(lambda: len(sim.requests) == queued and sim.requests[-1].body)  # noqa: B023 -- used at once
        await asyncio.gather(*tasks)
    assert sim.most == 2
    assert sorted(finished[:2]) == [0, 1]
    assert sorted(finished[-2:]) == [4, 5]


async def test_speed_is_as_asked() -> None:
    sim = SimVllm(decode=200, tool_parser=None, speedup=10.0)
    loop = asyncio.get_running_loop()
    async with sim.serve() as url:
        started = loop.time()
        with within(0.3):  # 200 tokens at 200 a second, ten times faster
            await ask(url, CHAT, chat("write 199 words"))
        assert loop.time() - started >= 0.095


async def test_a_prompt_that_begins_like_an_earlier_one_is_computed_faster() -> None:
    sim = SimVllm(prefill=50_000, tool_parser=None, prefix_cache=True)
    text = "".join(chr(97 + i * i % 26) for i in range(40_000))
    async with sim.serve() as url:
        await ask(url, CHAT, chat(text, max_tokens=1))
        assert sim.engine.counters.prefix_hits == 0
        await ask(url, CHAT, chat(text + "more", max_tokens=1))
    counters = sim.engine.counters
    assert counters.prefix_hits > 0.9 * counters.prefix_queries / 2


async def test_a_full_prefix_cache_drops_what_was_used_longest_ago() -> None:
    sim = SimVllm(tool_parser=None, prefix_cache=True, cache_tokens=25_000)
    one, two, three = ("".join(chr(97 + i * i * step % 26) for i in range(40_000)) for step in (1, 3, 5))
    async with sim.serve() as url:
        for text, found in ((one, False), (two, False), (one, True), (three, False), (one, True), (two, False)):
            before = sim.engine.counters.prefix_hits
            await ask(url, CHAT, chat(text, max_tokens=1))
            assert (sim.engine.counters.prefix_hits - before > 9_000) is found


@pytest.mark.parametrize("slots", [1, 4])
async def test_n_choices_run_side_by_side_in_slots(slots: int) -> None:
    sim = SimVllm(slots=slots, tool_parser=None)
    async with sim.serve() as url:
        reply = await ask(url, CHAT, chat("hi", n=3))
    assert [c["index"] for c in reply.json["choices"]] == [0, 1, 2]
    assert sim.engine.counters.finished["stop"] == 3


@given(st.text())
def test_pieces_join_to_the_text_and_ids_decode_to_it(text: str) -> None:
    assert "".join(tokens.pieces(text)) == text
    if "\0" not in text:
        assert tokens.decode(tokens.encode(text)) == text


@given(st.binary())
def test_a_prompt_is_about_four_bytes_a_token(data: bytes) -> None:
    assert tokens.count(data) * 4 - 3 <= max(1, len(data)) <= tokens.count(data) * 4 + 1
