"""The whole probe against simulated backends: what each kind of fault looks like, and what a probe costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.domain.backend import BackendState
from gateway.domain.facts import Observation
from gateway.health import probes as canary
from gateway.health.checks import ALL, NO_ANSWER
from gateway.health.probes import probe
from simulator import SimOllama, SimVllm
from tests.scripted import answer, json_answer, scripted
from tests.support import RunningGateway, running_gateway
from tests.waiting import turns

QWEN36, QWEN8B = "RedHatAI/Qwen3.6-35B-A3B-NVFP4", "Qwen/Qwen3-8B"
Seen = dict[str, Observation]


@asynccontextmanager
async def fleet(url: str, more: str = "") -> AsyncIterator[tuple[RunningGateway, BackendState]]:
    """A gateway in front of one backend `a`, which it has seen."""
    async with running_gateway(f"backends: {{a: {{url: '{url}'{more}}}}}") as gateway:
        await gateway.until_ready("a")
        yield gateway, gateway.gateway.fleet["a"]


async def probed(sim: SimVllm | SimOllama, more: str = "", **options: Any) -> Seen:
    async with sim.serve() as url, fleet(url, more) as (_, state):
        return await probe(state, **options)


def results(seen: Seen, *but: str) -> set[str]:
    return {seen[name].result for name in ALL if name not in but}


def qwen36(**more: Any) -> SimVllm:
    return SimVllm(**{"served": [QWEN36], "tool_parser": "qwen3_coder", "reasoning_parser": "qwen3", **more})


# -- what is right ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["hermes", "qwen3_coder", "gemma4", "deepseek_v4", "pythonic"])
async def test_a_healthy_vllm_does_everything(form: str) -> None:
    model, reasoning = {
        "hermes": (QWEN8B, "qwen3"),
        "qwen3_coder": (QWEN36, "qwen3"),
        "gemma4": ("google/gemma-4-31B-it", "gemma4"),
        "deepseek_v4": ("deepseek-ai/DeepSeek-V4-Flash", "deepseek_v4"),
        "pythonic": ("gemma-4-26B-A4B-it", "gemma4"),
    }[form]
    seen = await probed(SimVllm(served=[model], tool_parser=form, reasoning_parser=reasoning, context=8192))
    assert list(seen) == list(ALL)
    assert results(seen, "thoughts_kept") == {"yes"}, seen
    assert all(observation.at > 1.7e9 for observation in seen.values())


async def test_a_probe_of_a_healthy_vllm_costs_a_few_hundred_tokens_and_no_long_prefill() -> None:
    sim = qwen36()
    await probed(sim)
    assert len(sim.requests) == 11  # thinking_on and thinking_off are read from others' answers
    assert sim.engine.counters.generation_tokens < 400
    assert sim.engine.counters.prompt_tokens < 1500
    assert max(len(request.body) for request in sim.requests) > 131072  # the one over the window, refused at once


async def test_a_model_that_always_thinks_is_not_asked_to_stop() -> None:
    sim = SimVllm(served=["Qwen3-Next-80B-A3B-Thinking"], reasoning_parser="qwen3", thinking="always")
    seen = await probed(sim)
    assert results(seen, "thinking_on", "thinking_off", "thoughts_kept") == {"yes"}
    assert seen["thinking_off"].seen == seen["thinking_on"].seen == "its thinking cannot be switched"
    assert all("chat_template_kwargs" not in request.json for request in sim.requests)


async def test_an_instruct_model_has_no_thinking_to_check() -> None:
    seen = await probed(SimVllm(served=["Qwen3-4B-Instruct-2507"]))
    untested = {name for name in ALL if seen[name].result == "untested"}
    assert untested == {"reasoning", "thinking_on", "thinking_off", "thoughts_kept"}
    assert seen["reasoning"].seen == "it never thinks"


async def test_of_a_model_nobody_knows_it_is_found_out_whether_it_thinks() -> None:
    seen = await probed(SimVllm(served=["our/own"], reasoning_parser="qwen3"))
    assert [seen[name].result for name in ("reasoning", "thinking_on", "thinking_off")] == ["yes"] * 3
    seen = await probed(SimVllm(served=["our/own"]))
    assert [seen[name].result for name in ("reasoning", "thinking_on", "thinking_off")] == ["untested"] * 3


async def test_ollama_is_probed_by_its_own_api() -> None:
    sim = SimOllama(models=["qwen3:8b"])
    seen = await probed(sim, ", engine: ollama, model: 'qwen3:8b', context: 8192")
    assert {request.path for request in sim.requests} == {"/api/chat"}
    assert seen["window"].result == "untested"
    wanted = ("plain", "stream", "arithmetic", "reasoning", "thinking_on", "thinking_off", "tool_auto", "tool_stream")
    assert {seen[name].result for name in (*wanted, "json_schema", "thoughts_kept")} == {"yes"}, seen


async def test_a_template_that_drops_the_thoughts_of_the_history_is_named() -> None:
    sim = SimOllama(models=["qwen3:8b"], native=["qwen3:8b"])
    seen = await probed(sim, ", engine: ollama, model: 'qwen3:8b', context: 8192")
    assert seen["thoughts_kept"].result == "no"
    assert "its template drops the thoughts" in seen["thoughts_kept"].seen


async def test_an_openai_server_gets_no_words_of_vllm() -> None:
    sim = SimVllm(served=["m"], generic=True)
    seen = await probed(sim, ", engine: openai")
    assert results(seen, "reasoning", "thinking_on", "thinking_off", "thoughts_kept", "window") == {"yes"}
    assert all("chat_template_kwargs" not in request.json for request in sim.requests)


# -- what is wrong ----------------------------------------------------------------------------------------------------


async def test_a_missing_tool_parser_is_named_with_its_flags() -> None:
    seen = await probed(qwen36(tool_parser=None))
    for name in ("tool_auto", "tool_required", "tool_named"):
        assert seen[name].result == "no"
        assert seen[name].seen.endswith("start vLLM with --enable-auto-tool-choice --tool-call-parser qwen3_xml")
    assert seen["tool_stream"] == Observation("untested", "tool_auto did not work", seen["tool_stream"].at)
    assert results(
        seen, "tool_auto", "tool_required", "tool_named", "tool_stream", "tool_parallel", "thoughts_kept"
    ) == {"yes"}


async def test_the_wrong_parser_is_seen_and_mended_where_the_text_is_left() -> None:
    xml_into_hermes = await probed(qwen36(tool_parser="hermes", family="qwen3_coder"))
    for name in ("tool_auto", "tool_required", "tool_named", "tool_parallel"):
        assert xml_into_hermes[name].result == "mended", name
    assert xml_into_hermes["tool_stream"].result == "no"  # in a stream that parser swallows the text
    hermes_into_xml = await probed(SimVllm(served=[QWEN8B], tool_parser="qwen3_xml", family="hermes"))
    assert hermes_into_xml["tool_auto"].result == "no"
    assert "--tool-call-parser hermes" in hermes_into_xml["tool_auto"].seen


async def test_a_missing_reasoning_parser_is_seen_and_mended() -> None:
    seen = await probed(qwen36(reasoning_parser=None, thinking="optional"))
    assert seen["reasoning"].result == "mended"
    assert "--reasoning-parser qwen3" in seen["reasoning"].seen
    assert seen["thinking_on"].result == seen["thinking_off"].result == "yes"


async def test_a_reasoning_parser_for_a_model_that_does_not_think_leaves_nothing_said() -> None:
    seen = await probed(
        SimVllm(served=["Qwen3-Next-80B-A3B-Instruct"], reasoning_parser="deepseek_r1", thinking="never")
    )
    assert seen["plain"].result == "no"
    assert "stands in the reasoning field" in seen["plain"].seen
    assert results(seen, "plain") == {"untested"}


@pytest.mark.parametrize(
    ("fault", "check", "result", "words"),
    [
        ("garbage", "plain", "no", "--moe-backend marlin"),
        ("leak_tools", "tool_auto", "mended", "no call, but text"),
        ("no_done", "stream", "mended", "without [DONE]"),
        ("end_without_finish", "stream", "no", "without a finish_reason"),
        ("wrong_model", "plain", "no", "does not serve this model"),
        ("abort", "plain", "no", "finish_reason abort"),
    ],
)
async def test_faults_are_named(fault: str, check: str, result: str, words: str) -> None:
    sim = qwen36()
    async with sim.serve() as url, fleet(url, f", model: '{QWEN36}'") as (_, state):
        sim.fault(fault)
        seen = await probe(state)
    assert (seen[check].result, words in seen[check].seen) == (result, True), seen[check]


@pytest.mark.parametrize("status", [500, 503, 429, 401, 404])
async def test_an_error_status_is_told_and_nothing_further_is_asked(status: int) -> None:
    sim = qwen36()
    async with sim.serve() as url, fleet(url) as (_, state):
        sim.fault("status", status=status, path="/v1/chat/completions")
        seen = await probe(state)
    assert str(status) in seen["plain"].seen or seen["plain"].seen == "it serves no chat"
    assert results(seen, "plain") == {"untested"}
    assert len(sim.requests) == 1


async def test_a_hung_backend_is_told_once_and_not_asked_further() -> None:
    sim = qwen36()
    async with sim.serve() as url, fleet(url) as (_, state):
        sim.fault("hang_engine")
        seen = await probe(state, patience=0.2)
        assert seen["plain"].result == "no"
        assert seen["plain"].seen.startswith(NO_ANSWER)
        assert results(seen, "plain") == {"untested"}
        assert {observation.seen for observation in seen.values()} == {seen["plain"].seen}
        await sim.wait_aborted(1)  # and it does not go on working on it
        assert state.inflight == 0


async def test_a_backend_that_hangs_later_is_not_blamed_for_what_was_not_seen() -> None:
    sim = qwen36()
    async with sim.serve() as url, fleet(url) as (_, state):

        def hang(check: str, _: Observation) -> None:
            if check == "reasoning":
                sim.fault("hang_engine")

        seen = await probe(state, patience=0.2, on_seen=hang)
    assert seen["tool_auto"].result == "untested"
    assert seen["tool_auto"].seen == seen["window"].seen == f"{NO_ANSWER}none within 0 s"


async def test_where_nothing_listens_all_is_untested() -> None:
    sim = qwen36()
    async with sim.serve() as url, fleet(url) as (_, state):
        await sim.kill()
        seen = await probe(state)
    assert results(seen) == {"untested"}
    assert all(observation.seen.startswith(f"{NO_ANSWER}no connection") for observation in seen.values())


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (answer(b"<html><title>Welcome</title></html>", content_type="text/html"), "not JSON"),
        (json_answer({"choices": [{"message": {}}]}), "an empty answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", "reset"),
        (b"nonsense\r\n\r\n", "protocol"),
    ],
    ids=["html", "empty", "cut", "not-http"],
)
async def test_junk_is_told(raw: bytes, words: str) -> None:
    async def script(turn: Any) -> None:
        await turn.send(raw)
        turn.close()

    async with scripted(script) as backend, fleet(backend.url) as (_, state):
        seen = await probe(state)
    assert seen["plain"].result == "no"
    assert words in seen["plain"].seen


async def test_a_stream_is_over_with_done_even_if_its_connection_stays_open() -> None:
    async def script(turn: Any) -> None:
        if turn.json.get("stream"):
            said = b'data: {"choices":[{"index":0,"delta":{"content":"Hello."},"finish_reason":"stop"}]}\n\n'
            await turn.stream(said, b"data: [DONE]\n\n", end=False)
            await turn.until_lost()
        else:
            await turn.send(json_answer({"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}))

    async with scripted(script) as backend, fleet(backend.url) as (_, state):
        seen = await probe(state, ("plain", "stream"))
    assert results(seen, *(set(ALL) - seen.keys())) == {"yes"}


# -- how it asks ------------------------------------------------------------------------------------------------------


async def test_a_probe_takes_a_slot_for_one_check_at_a_time() -> None:
    sim = qwen36()
    async with sim.serve() as url, fleet(url) as (_, state):
        sim.fault("hang_engine")
        task = asyncio.create_task(probe(state))
        await sim.wait_inflight(1)
        assert state.inflight == 1
        sim.clear()
        assert results(await task, "thoughts_kept") == {"yes"}
        assert state.inflight == 0


async def test_a_probe_waits_for_a_busy_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = qwen36()
    async with sim.serve() as url, fleet(url) as (_, state):
        state.inflight = 2
        state.facts.observe({"tool_auto": Observation("no", "before")})
        monkeypatch.setattr(canary, "IDLE_WAIT", 0.2)
        seen = await probe(state)
        assert {observation.seen for observation in seen.values()} == {
            "busy for 0 s (2 under way): ask again, or with --now"
        }
        assert not sim.requests
        assert state.facts.observed["tool_auto"].seen == "before"  # nothing was asked, so nothing is forgotten
        assert results(await probe(state, now=True), "thoughts_kept") == {"yes"}
        monkeypatch.undo()
        task = asyncio.create_task(probe(state))
        await turns()
        state.inflight -= 2
        assert results(await task, "thoughts_kept") == {"yes"}


async def test_what_is_seen_is_kept_and_what_was_known_is_dropped() -> None:
    async with qwen36(tool_parser=None).serve() as url, fleet(url) as (gateway, state):
        state.facts.learn_lack("images", 1e12)
        seen = await probe(state)
        assert dict(state.facts.observed) == seen
        assert not state.facts.lacks
        await probe(state, ("plain",))
        assert state.facts.observed["tool_auto"] == seen["tool_auto"]  # a part of the checks drops nothing
        assert gateway.metric("gateway_canary", backend="a", check="plain") == 1
        samples = list(gateway.gateway.metrics.registry.collect())
        shown = {s.labels["check"]: s.value for f in samples if f.name == "gateway_canary" for s in f.samples}
        assert shown.keys() == {name for name in ALL if seen[name].result != "untested"}
        assert {name for name, value in shown.items() if value == 0} == {"tool_auto", "tool_required", "tool_named"}


async def test_an_audio_server_is_not_asked() -> None:
    routes = "backends: {a: {engine: http, url: 'http://127.0.0.1:9', serves: [speech]}}"
    async with running_gateway(routes) as gateway:
        seen = await probe(gateway.gateway.fleet["a"])
    assert {observation.seen for observation in seen.values()} == {"not a chat server"}


# -- a restart --------------------------------------------------------------------------------------------------------


async def test_a_restart_is_seen_by_its_start_time_and_what_was_known_is_dropped() -> None:
    sim = qwen36(tool_parser=None)
    async with sim.serve() as url, fleet(url, ", health: {every: 20ms}") as (gateway, state):
        await gateway.until(lambda: state.reported.started == sim.started_at)
        await probe(state, ("tool_auto",))
        assert state.facts.observed["tool_auto"].result == "no"
        sim.started_at += 60  # another process, between two looks
        await gateway.until(lambda: not state.facts.observed)
        assert state.reported.started == sim.started_at
