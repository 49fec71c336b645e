"""The workloads: what is sent, and how. Shared by the runner, the load and the report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

SMALL_BYTES = 328
AGENTIC_BYTES = 112 * 1024
TURN_EVENTS = 50  # of an agent's turn, its end included and its role not
EVENT_BYTES = 235  # one SSE event as the upstream sends it, both newlines included
KEY = "bench-key-0123456789abcdef"
UPSTREAM_MODEL = "bench-model"
ALIAS = "bench-pair"
TRACED = "traced"


@dataclass(frozen=True)
class Scenario:
    """One workload.

    mode: `closed` (every connection sends its next request when the last is answered), `paced` (long streams, a window
    in their middle is measured), `hold` (streams opened and kept, memory is read), `rate` (open loop, latencies).
    pace: how the mock sends a stream, see there.
    events: content events per stream, 0 = not a stream. A stream carries one more, the role event.
    per: what the CPU figure is divided by.
    message: the gateway is asked by Anthropic's Messages API; the others, which have none, for the same chat.
    """

    name: str
    title: str
    mode: Literal["closed", "paced", "hold", "rate"]
    connections: int
    events: int = 0
    interval_ms: int = 0
    pace: Literal["burst", "each", "steps", "alone", "turn"] = "burst"
    body_bytes: int = SMALL_BYTES
    messages: int = 1
    tools: int = 0
    per: Literal["request", "chunk"] = "request"
    rate: int = 0
    message: bool = False

    @property
    def stream(self) -> bool:
        return self.events > 0

    def asks_for_message(self, model: str) -> bool:
        """Is a target that serves this model asked for a message?"""
        return self.message and model == ALIAS


SCENARIOS = (
    # First, while the process is fresh: its memory is compared with the idle one.
    Scenario("open", "500 open streams", "hold", 500, events=3600, interval_ms=1000, pace="alone"),
    Scenario("small", "small 328 B, c16", "closed", 16),
    Scenario("agentic", "agentic 112 KB, c8", "closed", 8, body_bytes=AGENTIC_BYTES, messages=50, tools=20),
    Scenario(
        "turn",
        "agent turn, 50 events at 100/s, c8",
        "closed",
        8,
        events=TURN_EVENTS,
        interval_ms=10,
        pace="turn",
        body_bytes=AGENTIC_BYTES,
        messages=50,
        tools=20,
    ),
    Scenario("stream", "stream of 3, c16", "closed", 16, events=2, pace="each"),
    Scenario("paced", "chunk paced, 20 x 100/s", "paced", 20, events=1, interval_ms=10, pace="steps", per="chunk"),
    # The same, but the proxy is woken for every single chunk: the machine's price of a wake-up dominates.
    Scenario("alone", "chunk paced, spread out", "paced", 20, events=1, interval_ms=10, pace="alone", per="chunk"),
    Scenario(
        "mending",
        "chunk paced, mending armed",
        "paced",
        20,
        events=1,
        interval_ms=10,
        pace="steps",
        body_bytes=4096,
        tools=4,
        per="chunk",
    ),
    Scenario("burst", "chunk in bursts of 200, c4", "closed", 4, events=199, per="chunk"),
    Scenario(
        "agentic_message",
        "agentic 112 KB as a message, c8",
        "closed",
        8,
        body_bytes=AGENTIC_BYTES,
        messages=50,
        tools=20,
        message=True,
    ),
    Scenario(
        "paced_message",
        "chunk paced, as a message",
        "paced",
        20,
        events=1,
        interval_ms=10,
        pace="steps",
        per="chunk",
        message=True,
    ),
    # The same as `small`, at a gateway that traces every request.
    Scenario(TRACED, "small, every request traced", "closed", 16),
    Scenario("latency", "added latency at 50/s", "rate", 16, rate=50),
)
NAMES = tuple(scenario.name for scenario in SCENARIOS)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def body(scenario: Scenario, model: str, events: int | None = None) -> bytes:
    """The request body, compact JSON of exactly `scenario.body_bytes` bytes, the same in every run.

    `bench` tells the mock what to stream. It stands in `metadata`, which every proxy passes on (sglang-router drops
    unknown fields); a message's metadata stays with the gateway, so there it is a field that nobody knows.
    """
    message = {"role": "user", "content": ""}
    document: dict[str, Any] = {"model": model, "messages": [message], "max_tokens": 256, "temperature": 0.7}
    if scenario.stream:
        document["stream"] = True
    bench = {"bench": f"{scenario.events if events is None else events}/{scenario.interval_ms}/{scenario.pace}"}
    document |= bench if scenario.asks_for_message(model) else {"metadata": bench}
    if scenario.tools:
        tools = [_tool(i) for i in range(scenario.tools)]
        as_message = scenario.asks_for_message(model)
        document["tools"] = [_message_tool(tool) for tool in tools] if as_message else tools
        document["tool_choice"] = {"type": "auto"} if as_message else "auto"
    if scenario.messages > 1:
        document["messages"] = _history(scenario, document)
    missing = scenario.body_bytes - len(_compact(document))
    if missing < 0:
        raise ValueError(f"scenario {scenario.name}: the body is {-missing} bytes longer than {scenario.body_bytes}")
    document["messages"][-1]["content"] += ("Plain words of a question, over and over. " * (missing // 42 + 1))[
        :missing
    ]
    return _compact(document)


def _compact(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _tool(i: int) -> dict[str, Any]:
    properties = {
        f"field_{n}": {"type": "string", "description": f"Value number {n} that this function needs."} for n in range(5)
    }
    return {
        "type": "function",
        "function": {
            "name": f"function_{i}",
            "description": f"Function number {i}: reads files, runs commands or searches, as an agent's tools do.",
            "parameters": {"type": "object", "properties": properties, "required": ["field_0"]},
        },
    }


def _message_tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = dict(tool["function"])
    return {"input_schema": function.pop("parameters"), **function}


def _history(scenario: Scenario, document: dict[str, Any]) -> list[dict[str, str]]:
    """A conversation that fills the body: code-like text, so that quotes, newlines and non-ASCII have to be escaped."""
    line = 'def step(name: str) -> None:\n\tprint("größer", name, \'{"a": [1, 2]}\')\n'
    room = (scenario.body_bytes - len(_compact(document))) // scenario.messages - 64
    text = line * (room // len(_compact(line)))
    roles = ("user", "assistant")
    history = [{"role": roles[i % 2], "content": text} for i in range(1, scenario.messages)]
    return [{"role": "system", "content": text}, *history[:-1], {"role": "user", "content": text}]


def request(scenario: Scenario, host: str, model: str, events: int | None = None) -> bytes:
    """A whole HTTP/1.1 request on a kept connection."""
    content = body(scenario, model, events)
    path = "/v1/messages" if scenario.asks_for_message(model) else "/v1/chat/completions"
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {KEY}\r\n"
        f"accept: */*\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
