"""`gateway bench` in this loop, and what it asked and said."""

from __future__ import annotations

from typing import Any

from gateway.benching.report import as_json
from gateway.benching.session import Settings
from gateway.cli.benching import Bench, Wanted
from gateway.config.snapshot import Snapshot
from simulator import SimOllama, SimVllm
from tests.support import RunningGateway

TOKENS = 64
QUICK = Settings((300, 900), TOKENS, (2,), 2, 1, limit=30.0)
WANTED = Wanted("chat", None, None, None, True, False, False, None, True)
FEW = "--prompt-tokens 300,900 --tokens 64 --concurrency 1,2 --repeats 1 --requests 1"
PER_WAY = 3 + 2 * 2 + 2 * 2  # the warm-up, two lengths twice, two at a time twice
NOWHERE = "http://127.0.0.1:9"


def qwen(**more: Any) -> SimVllm:
    parsers = {"tool_parser": "qwen3_coder", "reasoning_parser": "qwen3"}
    rates = {"prefill": 2e5, "decode": 2000.0, "context": 8192, "prefix_cache": True}
    return SimVllm(**{"served": ["Qwen3.6-35B"], **parsers, **rates, **more})


async def measured(
    snapshot: Snapshot | None, gateway: RunningGateway | None, settings: Settings = QUICK, **wanted: Any
) -> tuple[Bench, dict[str, Any]]:
    """The benchmark, run in this loop, and its JSON."""
    if gateway is not None:
        wanted = {"gateway": gateway.url, **wanted}
    bench = Bench(WANTED._replace(**wanted), settings, snapshot)
    await bench.run()
    return bench, as_json("x", bench.settings, bench.results)


def chats(sim: SimVllm | SimOllama, path: str = "/v1/chat/completions") -> list[Any]:
    return [request for request in sim.requests if request.path == path]


def prompts(requests: list[Any]) -> list[str]:
    return [request.json["messages"][0]["content"] for request in requests]


def notes(told: dict[str, Any]) -> str:
    return "\n".join(told["notes"])
