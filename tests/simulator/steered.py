"""What the tests of faults ask."""

from __future__ import annotations

from simulator import SimVllm
from tests.simulator.wire import Reply, chat

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def sim(**options: object) -> SimVllm:
    return SimVllm("spark", served=["m"], **{"tool_parser": "hermes", "reasoning_parser": "qwen3", **options})  # type: ignore[arg-type]  # test options


def streamed(text: str = "hi", **more: object) -> dict[str, object]:
    return chat(text, stream=True, **more)


def tokens(reply: Reply) -> int:
    """Deltas with something in them; the first event is the role chunk."""
    choices = [c for e in reply.events[1:] if e != "[DONE]" for c in e.get("choices", [])]
    return sum(any(c["delta"].values()) for c in choices)


def finish(reply: Reply) -> str | None:
    reasons = [c["finish_reason"] for e in reply.events if e != "[DONE]" for c in e.get("choices", [])]
    return next((r for r in reasons if r), None)
