"""The signs by which a server is recognised."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from gateway.domain import recognition
from gateway.domain.engine_traits import TRAITS, EngineTraits, Signs
from gateway.domain.recognition import paths_to_look, recognise
from simulator import SimVllm
from tests.health.test_recogniser import TGI, gateway_of
from tests.one_backend import ask


@pytest.mark.parametrize(
    ("owned_by", "headers", "answers", "server"),
    [
        ("vllm", {}, {}, "vllm"),
        ("vllm-frontend-rs", {}, {}, "vllm"),
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
    assert paths_to_look({"m"}, {}) == ["/openapi.json", "/info", "/api/ps"]
    assert paths_to_look({""}, {"server": "BaseHTTP/0.6"}) == ["/health", "/openapi.json", "/info", "/api/ps"]


async def test_a_row_is_all_that_a_new_server_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = EngineTraits(
        frozenset({"chat"}),
        probe=TRAITS["openai"].probe,
        signs=Signs(path="/about", keys=("product.name",)),
    )
    rows = MappingProxyType({**TRAITS, "made-up": made_up})
    monkeypatch.setattr(recognition, "TRAITS", rows)
    sim = SimVllm(generic=True, shows={"/about": {"product": {"name": "Made Up 1"}}})
    async with gateway_of(sim) as gateway:
        state = gateway.gateway.fleet["a"]
        assert (state.server, state.traits) == ("made-up", made_up)
        assert state.capabilities(0.0).required == "no"
        assert (await ask(gateway)).status_code == 200
        refused = await gateway.client.post("/v1/completions", json={"model": "a", "prompt": "hello"})
        assert "engine made-up does not serve /completions" in refused.json()["error"]["message"]
