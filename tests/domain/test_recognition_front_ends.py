"""The front end of an engine: which one it shows, and what follows from that."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apps.fleet.checking.live import ask_fleet
from gateway.cli.options import server_shown
from gateway.config.load import load_text
from gateway.domain.drift import drift
from gateway.domain.engine_traits import FRONT_ENDS, TRAITS
from gateway.domain.recognition import front_end_of, row_of
from simulator import SimRustFrontEnd, SimVllm
from tests.health.test_recogniser import gateway_of
from tests.one_backend import ask, one_backend

RUST = FRONT_ENDS["vllm"]["rust"].traits


@pytest.mark.parametrize(
    ("server", "owner", "version", "front_end"),
    [
        ("vllm", "vllm", {"version": "0.33.0"}, "python"),
        ("vllm", "vllm-frontend-rs", None, "rust"),
        ("vllm", "me", {"version": "0.33.0", "rust_frontend_version": "0.33.0"}, "rust"),  # behind a proxy
        ("vllm", "vllm", {"rust_frontend_version": "0.33.0"}, "rust"),
        ("vllm", "vllm", {"rust_frontend_version": None}, "python"),
        ("vllm", "me", ["rust_frontend_version"], None),
        ("sglang", "vllm-frontend-rs", {"rust_frontend_version": "1"}, None),
    ],
)
def test_a_front_end_is_known_by_its_signs(server: str, owner: str, version: Any, front_end: str | None) -> None:
    assert front_end_of(server, {owner}, version) == front_end


def test_without_a_known_front_end_the_row_is_the_servers() -> None:
    assert row_of("vllm", None) is row_of("vllm", "python") is TRAITS["vllm"]
    assert row_of("sglang", "rust") is TRAITS["sglang"]
    assert row_of("vllm", "rust") is RUST


@pytest.mark.parametrize("engine", ["vllm", "openai"])
async def test_the_rust_front_end_is_recognised_and_shown(engine: str) -> None:
    async with gateway_of(SimRustFrontEnd(version="0.33.0"), f"engine: {engine}") as gateway:
        state = gateway.gateway.fleet["a"]
        assert (state.server, state.reported.front_end, state.traits) == ("vllm", "rust", RUST)
        assert drift(state, 0.0) == []
        shown = (await gateway.client.get("/status")).json()["backends"]["a"]
        assert (shown["server"], shown["front_end"]) == ("vllm", "rust")
        assert server_shown(shown).endswith("rust front end)")


async def test_the_python_front_end_is_told_in_data_but_not_written_everywhere() -> None:
    async with one_backend(SimVllm()) as gateway:
        await gateway.until_ready("a")
        shown = (await gateway.client.get("/status")).json()["backends"]["a"]
        assert shown["front_end"] == "python"
        assert server_shown(shown) == "vllm"


async def test_another_front_end_before_the_same_engine_forgets_what_was_learned() -> None:
    async with one_backend(SimVllm(tool_parser=None)) as gateway:
        await gateway.until_ready("a")
        await ask(gateway, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
        state = gateway.gateway.fleet["a"]
        assert state.facts.lacks
        state.saw_front_end("rust")
        assert not state.facts.lacks
        assert state.traits is not TRAITS["vllm"]


async def test_a_live_check_names_the_rust_front_end() -> None:
    rust, python = SimRustFrontEnd(), SimVllm()
    async with rust.serve() as one, python.serve() as two:
        snapshot = load_text(f"backends: {{a: {{url: '{one}'}}, b: {{url: '{two}'}}}}").snapshot
        found = {answer.name: answer for answer in await ask_fleet(snapshot)}
    assert found["a"].result == "health 200, serves model, rust front end"
    assert found["b"].result == "health 200, serves model"
    assert not found["a"].problems
