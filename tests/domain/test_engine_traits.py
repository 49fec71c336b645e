"""What a server's row of traits says it cannot do decides who serves a request, and is told by the server's name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.config.snapshot import Alias, Backend
from gateway.domain.capabilities import conclude
from gateway.domain.endpoints import CHAT, COMPLETIONS
from gateway.domain.engine_traits import TRAITS
from gateway.domain.request import parse
from gateway.health.probes import probe
from gateway.routing.needs import NO_NEEDS, lacking, needs_of
from simulator import SimVllm
from tests.one_backend import ask
from tests.saying import event
from tests.scripted import Turn, scripted
from tests.support import running_gateway

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
ALIAS = Alias("a", (("a",),))
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("server", "fields", "lacks"),
    [
        ("transformers", {"logprobs": True}, ("logprobs",)),
        ("transformers", {"logprobs": False}, ()),
        ("transformers", {"logprobs": None}, ()),
        ("sglang", {"logprobs": True}, ()),
        ("transformers", {"response_format": SCHEMA}, ("json_schema",)),
        ("tgi", {"response_format": SCHEMA}, ()),
        ("mlx", {"tools": TOOLS, "tool_choice": "required"}, ("tool_choice",)),
        ("llamacpp", {"tools": TOOLS, "tool_choice": "required"}, ()),
        ("mlx", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, ("tool_choice",)),
        ("lmstudio", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, ()),
        ("llama-cpp-python", {"tools": TOOLS, "tool_choice": "required"}, ("tool_choice",)),
        ("llama-cpp-python", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, ()),
        ("mlx", {"tools": TOOLS}, ()),
        ("mlx", {"tools": TOOLS, "tool_choice": "none"}, ()),
    ],
)
def test_what_a_row_denies_is_lacking(server: str, fields: dict[str, Any], lacks: tuple[str, ...]) -> None:
    body = msgspec.json.encode({"model": "a", "messages": [{"role": "user", "content": "hello"}], **fields})
    backend = Backend("a", "openai", "http://127.0.0.1:1")
    able = conclude(backend, "m", None, frozenset(), {}, TRAITS[server])
    assert lacking(needs_of(parse(CHAT, body), ALIAS), able) == lacks


async def _hello_without_done(turn: Turn) -> None:
    await turn.stream(event({"content": "Hello"}), event({}, "stop"))
    turn.close()


def test_completions_may_want_logprobs_too() -> None:
    wants = msgspec.json.encode({"model": "a", "prompt": "hello", "logprobs": 0})
    assert needs_of(parse(COMPLETIONS, wants), ALIAS).logprobs
    assert needs_of(parse(COMPLETIONS, msgspec.json.encode({"model": "a", "prompt": "hello"})), ALIAS) is NO_NEEDS


async def test_another_backend_serves_what_the_first_cannot_and_alone_it_is_said_why() -> None:
    first, second = SimVllm(served=["m"], generic=True), SimVllm(served=["m"])
    async with first.serve() as one, second.serve() as two:
        routes = f"""
backends:
  a: {{url: "{one}", engine: openai, server: transformers}}
  b: {{url: "{two}"}}
aliases: {{both: [a, b], alone: [a]}}
"""
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            answer = await ask(gateway, "both", logprobs=True)
            assert answer.headers["x-gateway-backend"] == "b"
            assert (await ask(gateway, "both")).headers["x-gateway-backend"] == "a"
            refused = await ask(gateway, "alone", logprobs=True)
            assert "has no logprobs to give: it is a transformers" in refused.json()["error"]["message"]


async def test_auto_is_written_for_a_server_that_assumes_no_calls() -> None:
    sim = SimVllm(served=["m"], generic=True)
    async with sim.serve() as url:
        for server, written in (("sglang", None), ("tensorrt-llm", "auto")):
            routes = f'backends: {{a: {{url: "{url}", engine: openai, server: {server}}}}}'
            async with running_gateway(routes) as gateway:
                await gateway.until_ready("a")
                await ask(gateway, tools=TOOLS)
                assert sim.requests[-1].json.get("tool_choice") == written
                await ask(gateway, tools=TOOLS, tool_choice="none")
                assert sim.requests[-1].json["tool_choice"] == "none"


@pytest.mark.parametrize("server", ["transformers", "sglang"])
async def test_a_stream_without_done_is_whole_and_its_check_passes_where_the_row_says_so(server: str) -> None:
    async with scripted(_hello_without_done) as backend:
        routes = f'backends: {{a: {{url: "{backend.url}", engine: openai, server: {server}}}}}'
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            answer = await ask(gateway, stream=True)
            assert answer.text.endswith("data: [DONE]\n\n")
            seen = await probe(gateway.gateway.fleet["a"], ["stream"])
            assert seen["stream"].result == ("yes" if server == "transformers" else "mended")


async def test_usage_is_asked_for_only_where_asking_is_known() -> None:
    sim = SimVllm(served=["m"], generic=True)
    async with sim.serve() as url:
        for server, asked in (("sglang", True), ("transformers", False), ("llama-cpp-python", False)):
            routes = f'backends: {{a: {{url: "{url}", engine: openai, server: {server}}}}}'
            async with running_gateway(routes) as gateway:
                await gateway.until_ready("a")
                await ask(gateway, stream=True)
                assert (b"stream_options" in sim.requests[-1].body) is asked
