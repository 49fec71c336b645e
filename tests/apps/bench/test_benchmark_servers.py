"""`gateway bench`: any server by its URL, and what is said when something is amiss."""

from __future__ import annotations

import asyncio

import pytest

from gateway.apps.bench.benchmark import Benchmark, BenchSubject, Settings, UnsuitableOptions, longest_prompt
from gateway.apps.bench.report import as_json
from gateway.apps.bench.targets import UnmeasurableTarget
from simulator import SimOllama
from tests.apps.bench.measuring import QUICK, TOKENS, chats, measured, notes, qwen
from tests.scripted import Turn, json_answer, scripted

# -- any server -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["", "/v1", "/v1/"])
async def test_a_server_is_measured_by_its_url(base: str) -> None:
    sim = qwen(api_key="right-key", decode=400.0)  # slow enough that an answer does not come in one piece
    async with sim.serve() as url:
        _, told = await measured(None, None, name=url + base, key="right-key")
        with pytest.raises(UnmeasurableTarget, match="answered 401"):
            await measured(None, None, name=url + base, key="wrong-key")
    assert told["ok"], told["errors"]
    assert {row["via"] for row in told["single"]} == {"url"}
    assert told["added"] == {"single": [], "sweep": []}
    assert all(row["prefill_rate"]["n"] == row["decode_rate"]["n"] == 2 for row in told["single"])


async def test_ollamas_v1_is_measured_and_its_cut_prompts_are_noticed() -> None:
    sim = SimOllama(models=["qwen3:8b"], prefill=2e5, decode=2000.0, load=0.0)
    async with sim.serve() as url:
        _, told = await measured(None, None, QUICK, name=url + "/v1")
        assert told["ok"], told["errors"]
        assert "may have cut it" not in notes(told)
        longer = Settings((300, 6000), TOKENS, (), 1, limit=30.0)
        _, told = await measured(None, None, longer, name=url + "/v1")
    assert "of a prompt of about 6,000 tokens the server counted" in notes(told)


async def test_a_server_that_refuses_ignore_eos_is_asked_without_it() -> None:
    async def script(turn: Turn) -> None:
        if "ignore_eos" in turn.json:
            await turn.send(json_answer({"error": {"message": "Unknown parameter: 'ignore_eos'"}}, "400 Bad Request"))
            return
        text = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":%s}]}\n\n'
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":300,"completion_tokens":2}}\n\n'
        await turn.stream(text % b"null", text % b'"stop"', usage, b"data: [DONE]\n\n")

    async with scripted(script) as backend:
        _, told = await measured(None, None, name=backend.url)
    assert told["ok"], told["errors"]
    assert "ignore_eos and min_tokens are refused" in notes(told)
    assert "8 of 8 answers have fewer than 64 tokens (the shortest 2)" in notes(told)


async def test_without_usage_no_rate_is_claimed() -> None:
    async def script(turn: Turn) -> None:
        text = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":%s}]}\n\n'
        await turn.stream(*[text % b"null"] * 63, text % b'"length"', b"data: [DONE]\n\n")

    async with scripted(script) as backend:
        _, told = await measured(None, None, name=backend.url)
    assert "the server reports no usage" in notes(told)
    for row in told["single"]:
        assert row["ttft"]["n"] == 2
        assert (row["prefill_rate"], row["decode_rate"]) == (None, None)
    assert told["sweep"][0]["output_rate"] is None


# -- failures ---------------------------------------------------------------------------------------------------------


async def test_failed_runs_are_counted_shown_and_claim_nothing() -> None:
    sim = qwen()
    async with sim.serve() as url:
        bench = Benchmark(BenchSubject(url), QUICK, None)
        failing = asyncio.create_task(sim.wait_for(lambda: len(chats(sim)) >= 3))
        failing.add_done_callback(lambda _: sim.fault("error_event", after=3))
        await bench.run()
    told = as_json("x", QUICK, bench.results)
    assert not told["ok"]
    failed = [run for run in told["runs"] if run["error"] is not None]
    assert failed
    assert sum(found["count"] for found in told["errors"]) == len(failed)
    assert told["sweep"][0]["failed"] > 0
    assert told["sweep"][0]["output_rate"] is None
    for row in told["single"]:
        assert (row["ttft"] or {"n": 0})["n"] == row["runs"] - row["failed"]


async def test_nothing_is_measured_where_the_warm_up_fails() -> None:
    sim = qwen()
    async with sim.serve() as url:
        sim.fault("status", status=503)
        with pytest.raises(UnmeasurableTarget, match="the warm-up failed: answered 503"):
            await measured(None, None, name=url)
    assert len(chats(sim)) == 1


# -- the window -------------------------------------------------------------------------------------------------------


async def test_prompts_that_do_not_fit_are_left_out_and_said() -> None:
    sim = qwen(context=1024)
    async with sim.serve() as url:
        bench, told = await measured(None, None, name=url, trim=True)
        assert told["settings"]["prompt_tokens"] == [300, 900]
        longer = Settings((300, 5000), TOKENS, (), 1, limit=30.0)
        bench, told = await measured(None, None, longer, name=url, trim=True)
        assert told["settings"]["prompt_tokens"] == [300]
        assert "prompts of 5,000 tokens are left out: the window is 1,024" in notes(told)
        with pytest.raises(UnsuitableOptions, match="at most 931"):
            await measured(None, None, longer, name=url)
    assert bench.results.ok


def test_room_is_kept_for_the_answer() -> None:
    assert longest_prompt(None, 128) is None
    assert longest_prompt(4096, 128) == 3848
    assert longest_prompt(100, 128) == 0
