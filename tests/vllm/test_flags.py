"""What a real engine reports of its flags and of its drafts is read, and compared with a launch block."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.config.snapshot import Launch
from gateway.domain.backend import BackendState
from gateway.domain.drift import drift
from gateway.launch.command import ServeCommand
from tests.support import RunningGateway, running_gateway

from .asks import CHAT, chat
from .servers import VllmServer

SPECULATION = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
FLAGS: dict[str, Any] = {
    "gpu-memory-utilization": 0.4,
    "block-size": 64,
    "prefix-caching-hash-algo": "sha256_cbor",
    "enable-prefix-caching": True,
    "speculative-config": SPECULATION,
    "max-model-len": 2048,
}
FAST = "defaults: {health: {every: 200ms}}\n"


@pytest.fixture(scope="module")
def drafting(venv: Path, pids: Path) -> Iterator[VllmServer]:
    flags = (
        *("--gpu-memory-utilization", "0.4", "--block-size", "64", "--enable-prefix-caching"),
        *("--prefix-caching-hash-algo", "sha256_cbor", "--speculative-config", json.dumps(SPECULATION)),
    )
    server = VllmServer("drafting", pids, flags, venv, window=2048, env={"UNSCRIPTED": "1"})
    server.up()
    yield server
    server.stop()


async def flags_of(gateway: RunningGateway) -> dict[str, Any]:
    told = (await gateway.client.get("/status")).json()["backends"]["a"]["flags"]
    assert isinstance(told, dict)
    return told


def declare(state: BackendState, **changed: Any) -> list[str]:
    """The drift of this backend from a launch block with the flags of the server, some of them changed."""
    flags = {**FLAGS, **{name.replace("_", "-"): value for name, value in changed.items()}}
    state.define(replace(state.backend, launch=Launch(parsed=ServeCommand(flags=flags))))
    return drift(state, 0.0)


async def test_the_flags_of_a_real_engine_are_read_and_compared_with_its_launch_block(drafting: VllmServer) -> None:
    async with running_gateway(f"{FAST}backends: {{{drafting.routes('a')}}}") as gateway:
        await gateway.until_ready("a")
        state = gateway.gateway.fleet["a"]
        await gateway.until(lambda: state.progress.last is not None)
        told = await flags_of(gateway)
        assert told.items() >= {name: FLAGS[name] for name in list(FLAGS)[:4]}.items()
        assert (told["kv-cache-dtype"], told["spec-tokens"], told["sleep-level"]) == ("auto", 3, 0)
        assert told["kv-cache-max-concurrency"] == pytest.approx(told["kv-cache-size-tokens"] / 2048, rel=0.01)
        assert told["num-gpu-blocks"] > 0
        assert declare(state) == []
        assert declare(state, gpu_memory_utilization=0.9, kv_cache_dtype="fp8") == [
            "gpu-memory-utilization: 0.9 is declared, it runs with 0.4",
            "kv-cache-dtype: fp8 is declared, it runs with auto",
        ]
        assert declare(state, enable_prefix_caching=False, max_model_len=4096) == [
            "max-model-len: 4096 is declared, it serves 2048",
            "enable-prefix-caching: false is declared, it runs with true",
        ]
        assert declare(state, speculative_config={**SPECULATION, "num_speculative_tokens": 2}) == [
            "speculative-config: 2 tokens are declared, it drafts 3"
        ]


async def test_the_drafts_of_a_real_engine_are_counted(drafting: VllmServer) -> None:
    async with running_gateway(f"{FAST}backends: {{{drafting.routes('a')}}}") as gateway:
        await gateway.until_ready("a")
        body = chat(max_tokens=300, temperature=0, ignore_eos=True)
        answer = await gateway.client.post(CHAT, json={**body, "model": "a"}, timeout=120)
        assert answer.status_code == 200, answer.text

        def told(name: str, **labels: str) -> float:
            return gateway.metric(f"gateway_backend_{name}_total", backend="a", **labels)

        await gateway.until(lambda: told("drafts") > 0)
        by_position = [told("accepted_position_tokens", position=str(position)) for position in range(3)]
        assert told("drafts") <= told("draft_tokens") <= 3 * told("drafts")
        assert sum(by_position) == told("accepted_tokens") <= told("draft_tokens")
        assert by_position == sorted(by_position, reverse=True)
        assert told("prefix_cache_queries") >= answer.json()["usage"]["prompt_tokens"]


async def test_an_engine_that_does_not_draft_reports_no_drafts(tools: VllmServer) -> None:
    async with running_gateway(f"{FAST}backends: {{{tools.routes('a')}}}") as gateway:
        await gateway.until_ready("a")
        state = gateway.gateway.fleet["a"]
        told = await flags_of(gateway)
        assert (told["gpu-memory-utilization"], told["spec-tokens"]) == (0.92, 0)
        state.define(replace(state.backend, launch=Launch(parsed=ServeCommand(flags={"spec-tokens": 2}))))
        assert drift(state, 0.0) == ["speculative-config: 2 tokens are declared, it drafts none"]
