"""Which server is behind `engine: openai` follows from what it shows; a look costs a few GETs, once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import pytest

from gateway.domain import backend as backend_module
from gateway.domain import recognition
from gateway.domain.drift import drift
from gateway.domain.engine_traits import TRAITS, EngineTraits, Signs
from gateway.domain.recognition import paths_to_look, recognise
from simulator import SimVllm
from tests.one_backend import FAST, ask
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


@pytest.mark.parametrize(
    ("owned_by", "headers", "answers", "server"),
    [
        ("vllm", {}, {}, "vllm"),
        ("llamacpp", {"server": "llama.cpp"}, {}, "llamacpp"),
        ("sglang", {}, {}, "sglang"),
        ("tensorrt_llm", {}, {}, "tensorrt-llm"),
        ("organization_owner", {}, {}, "lmstudio"),
        ("", {"server": "BaseHTTP/0.6 Python/3.11.7"}, {"/health": {"status": "ok"}}, "mlx"),
        ("", {"server": "BaseHTTP/0.6 Python/3.11.7"}, {}, None),
        ("", {}, {"/health": {"status": "ok"}}, None),
        ("m", {}, TGI, "tgi"),
        ("m", {}, {"/info": {"model_id": "m"}}, None),
        ("m", {}, {"/info": ["model_id", "max_total_tokens"]}, None),
        ("me", {}, {"/openapi.json": {"paths": {"/extras/tokenize/count": {}}}}, "llama-cpp-python"),
        ("me", {}, {}, None),
        (
            "mlx-community",
            {},
            {"/openapi.json": {"paths": {"/load_model": {}, "/v1/chat/completions": {}}}},
            "transformers",
        ),
        ("openai", {}, {"/openapi.json": {"paths": {"/v1/chat/completions": {}}}}, None),
    ],
)
def test_a_server_is_recognised_by_all_its_signs(
    owned_by: str, headers: dict[str, str], answers: dict[str, Any], server: str | None
) -> None:
    assert recognise({owned_by}, headers, answers) == server


def test_only_paths_that_can_still_tell_are_asked_for() -> None:
    assert paths_to_look({"m"}, {}) == ["/openapi.json", "/info"]
    assert paths_to_look({""}, {"server": "BaseHTTP/0.6"}) == ["/health", "/openapi.json", "/info"]


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


async def test_a_row_is_all_that_a_new_server_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = EngineTraits(
        frozenset({"chat"}),
        probe=TRAITS["openai"].probe,
        signs=Signs(path="/about", keys=("product.name",)),
    )
    rows = MappingProxyType({**TRAITS, "made-up": made_up})
    for module in (backend_module, recognition):
        monkeypatch.setattr(module, "TRAITS", rows)
    sim = SimVllm(generic=True, shows={"/about": {"product": {"name": "Made Up 1"}}})
    async with gateway_of(sim) as gateway:
        state = gateway.gateway.fleet["a"]
        assert (state.server, state.traits) == ("made-up", made_up)
        assert state.capabilities(0.0).required == "no"
        assert (await ask(gateway)).status_code == 200
        refused = await gateway.client.post("/v1/completions", json={"model": "a", "prompt": "hello"})
        assert "engine made-up does not serve /completions" in refused.json()["error"]["message"]


async def test_a_window_told_beside_the_model_list_is_read() -> None:
    async with gateway_of(SimVllm(generic=True, shows=TGI)) as gateway:
        assert gateway.gateway.fleet["a"].window(0.0) == 8192
    cards = [{"id": "other", "loaded_context_length": 1}, {"id": "model", "loaded_context_length": 4096}]
    studio = SimVllm(generic=True, owned_by="organization_owner", shows={"/api/v0/models": {"data": cards}})
    async with gateway_of(studio) as gateway:
        assert gateway.gateway.fleet["a"].window(0.0) == 4096
