"""Which server is behind `engine: openai` follows from what it shows; a look costs a few GETs, once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.apps.fleet.checking.live import ask_fleet
from gateway.config.load import load_text
from gateway.domain.drift import drift
from gateway.domain.engine_traits import TRAITS
from gateway.domain.facts import Observation
from simulator import SimOllama, SimVllm
from tests.one_backend import FAST
from tests.support import RunningGateway, running_gateway

TGI = {"/info": {"model_id": "m", "max_total_tokens": 8192, "max_concurrent_requests": 64, "version": "3.3.6"}}
LOOKS = ("/health", "/info", "/openapi.json")


@asynccontextmanager
async def gateway_of(sim: SimVllm, keys: str = "engine: openai") -> AsyncIterator[RunningGateway]:
    async with sim.serve() as url, running_gateway(f"{FAST}backends: {{a: {{url: '{url}', {keys}}}}}") as gateway:
        await gateway.until_ready("a")
        yield gateway


def looks(sim: SimVllm) -> int:
    return sum(sim.seen[path] for path in LOOKS)


async def test_what_its_model_list_shows_costs_no_look() -> None:
    sim = SimVllm(generic=True, owned_by="sglang")
    async with gateway_of(sim) as gateway:
        assert gateway.gateway.fleet["a"].server == "sglang"
        assert looks(sim) == sim.seen["/health"]  # SGLang's liveness
        shown = (await gateway.client.get("/status")).json()["backends"]["a"]
        assert (shown["engine"], shown["server"], shown["drift"]) == ("openai", "sglang", [])


async def test_other_paths_are_asked_for_once_and_again_after_its_port_was_closed() -> None:
    sim = SimVllm(generic=True, shows=TGI)
    async with gateway_of(sim) as gateway:
        state = gateway.gateway.fleet["a"]
        assert state.server == "tgi"
        for _ in range(3):
            await gateway.gateway.prober.check(state, read_models=True)
        assert sim.seen["/openapi.json"] == 1
        await sim.kill()
        await gateway.until(lambda: gateway.state("a").value == "down")
        sim.shows = {}
        await sim.revive()
        await gateway.until_ready("a")
        assert state.server == "openai"


async def test_an_unknown_server_stays_openai_and_is_not_asked_again() -> None:
    sim = SimVllm(generic=True)
    async with gateway_of(sim) as gateway:
        state = gateway.gateway.fleet["a"]
        await gateway.gateway.prober.check(state, read_models=True)
        assert (state.server, state.traits) == ("openai", TRAITS["openai"])
        assert (sim.seen["/info"], sim.seen["/openapi.json"]) == (1, 1)


async def test_a_declared_server_is_not_looked_for_but_one_that_shows_another_is_drift() -> None:
    async with gateway_of(SimVllm(generic=True, owned_by="llamacpp"), "engine: openai, server: sglang") as gateway:
        state = gateway.gateway.fleet["a"]
        assert state.server == "sglang"
        assert drift(state, 0.0) == ["server: sglang is declared, it shows itself to be llamacpp"]
    async with gateway_of(SimVllm(), "engine: llamacpp") as gateway:
        assert drift(gateway.gateway.fleet["a"], 0.0) == ["engine: llamacpp is declared, it shows itself to be vllm"]
    async with gateway_of(SimVllm(), "engine: vllm") as gateway:
        assert drift(gateway.gateway.fleet["a"], 0.0) == []


async def test_a_check_that_fails_although_the_row_promises_it_is_drift() -> None:
    async with gateway_of(SimVllm(generic=True, owned_by="sglang")) as gateway:
        state = gateway.gateway.fleet["a"]
        state.facts.observe({"json_schema": Observation("no", "said hello"), "tool_required": Observation("yes", "")})
        assert drift(state, 0.0) == ["sglang is known to pass json_schema, this one does not: said hello"]
    async with gateway_of(SimVllm(generic=True)) as gateway:
        state = gateway.gateway.fleet["a"]
        state.facts.observe({"json_schema": Observation("no", "said hello")})
        assert drift(state, 0.0) == []


async def test_check_live_names_the_server_and_what_the_file_says_otherwise() -> None:
    tgi, llama = SimVllm(generic=True, shows=TGI), SimVllm(generic=True, owned_by="llamacpp")
    async with tgi.serve() as one, llama.serve() as two:
        loaded = load_text(
            f"backends:\n  a: {{engine: openai, url: '{one}'}}\n  b: {{engine: openai, server: tgi, url: '{two}'}}\n",
            "routes.yaml",
            {},
        )
        first, second = await ask_fleet(loaded.snapshot)
    assert (first.result, first.problems) == ("health 200, serves model, tgi", ())
    assert second.problems == ("server: tgi is declared, it shows itself to be llamacpp",)


async def test_a_window_told_beside_the_model_list_is_read() -> None:
    async with gateway_of(SimVllm(generic=True, shows=TGI)) as gateway:
        assert gateway.gateway.fleet["a"].window(0.0) == 8192
    cards = [{"id": "other", "loaded_context_length": 1}, {"id": "model", "loaded_context_length": 4096}]
    studio = SimVllm(generic=True, owned_by="organization_owner", shows={"/api/v0/models": {"data": cards}})
    async with gateway_of(studio) as gateway:
        assert gateway.gateway.fleet["a"].window(0.0) == 4096


@pytest.mark.parametrize("engine", ["openai", "auto"])
async def test_an_ollama_is_told_and_asked_through_its_own_api(engine: str) -> None:
    """Through its `/v1` a prompt over the window is cut with a 200, and half of what is asked has no effect."""
    sim = SimOllama("a", models=["qwen3:8b"], version="0.33.0", trained=8192)
    async with sim.serve() as url:
        routes = f"{FAST}backends: {{a: {{url: '{url}/v1', engine: {engine}}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            state = gateway.gateway.fleet["a"]
            assert (state.server, state.model, state.window(0.0)) == ("ollama", "qwen3:8b", 8192)
            assert drift(state, 0.0) == ["engine: openai is declared, it shows itself to be ollama"]
            ask = {"model": "a", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 5}
            reply = await gateway.client.post("/v1/chat/completions", json=ask)
            long = {**ask, "messages": [{"role": "user", "content": "x" * 40_000}]}
            refused = await gateway.client.post("/v1/chat/completions", json=long)
    assert (reply.status_code, reply.json()["usage"]["completion_tokens"]) == (200, 5)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "/v1/chat/completions" not in {request.path for request in sim.requests}
