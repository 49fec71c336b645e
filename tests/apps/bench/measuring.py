"""`gateway bench` in this loop: what it asked the servers, and its JSON."""

from __future__ import annotations

from typing import Any

from gateway.apps.bench.benchmark import Benchmark, BenchSubject, Settings
from gateway.apps.bench.report import as_json
from gateway.cli.options import server_url
from gateway.config.snapshot import Snapshot
from simulator import SimOllama, SimVllm
from tests.support import RunningGateway

TOKENS = 64
QUICK = Settings((300, 900), TOKENS, (2,), 2, 1, limit=30.0)
FEW = "--prompt-tokens 300,900 --tokens 64 --concurrency 1,2 --repeats 1 --requests 1"
PER_TARGET = 3 + 2 * 2 + 2 * 2  # the warm-up, two lengths twice, two at a time twice
NOWHERE = "http://127.0.0.1:9"


def qwen(**more: Any) -> SimVllm:
    parsers = {"tool_parser": "qwen3_coder", "reasoning_parser": "qwen3"}
    rates = {"prefill": 2e5, "decode": 2000.0, "context": 8192, "prefix_cache": True}
    return SimVllm(**{"served": ["Qwen3.6-35B"], **parsers, **rates, **more})


async def measured(
    snapshot: Snapshot | None,
    gateway: RunningGateway | None,
    settings: Settings = QUICK,
    *,
    name: str = "chat",
    **more: Any,
) -> tuple[Benchmark, dict[str, Any]]:
    """The benchmark of an alias of the gateway, or without one of a URL, run in this loop; and its JSON."""
    subject = BenchSubject(server_url(name)) if gateway is None else BenchSubject(gateway.url, name)
    benchmark = Benchmark(subject._replace(**more), settings, snapshot)
    await benchmark.run()
    return benchmark, as_json("x", benchmark.settings, benchmark.results)


def chats(sim: SimVllm | SimOllama, path: str = "/v1/chat/completions") -> list[Any]:
    return [request for request in sim.requests if request.path == path]


def prompts(requests: list[Any]) -> list[str]:
    return [request.json["messages"][0]["content"] for request in requests]


def notes(told: dict[str, Any]) -> str:
    return "\n".join(told["notes"])
