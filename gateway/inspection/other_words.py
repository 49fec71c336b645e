"""What some servers call the parts and the ends of an answer, in the words of OpenAI's API. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

ENDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("eos_token", "eos", "end", "end_turn", "stop_sequence", "STOP", "complete"), "stop"),
        **dict.fromkeys(("max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length"), "length"),
        **dict.fromkeys(("model_context_window_exceeded", "LENGTH"), "length"),
        **dict.fromkeys(("tool_use", "tool_call", "TOOL_CALLS"), "tool_calls"),
        **dict.fromkeys(("SAFETY", "RECITATION", "sensitive", "refusal"), "content_filter"),
    }
)
"""A finish_reason -> the one that clients know."""
OTHER_THOUGHTS = frozenset(("thinking", "reasoning_text", "reasoning_details"))
"""Names of thoughts that clients of this API do not read."""
_TEXTS = ("text", "output_text")


def usual_delta(delta: dict[str, Any]) -> dict[str, Any]:
    """The delta with its content as one text, and its thoughts under a name that clients read; itself where it has
    parts that are neither."""
    content, thoughts = delta.get("content"), _other_thoughts(delta)
    if isinstance(content, list):
        if not all(
            isinstance(part, dict) and part.get("type") in (*_TEXTS, "thinking", "reference") for part in content
        ):
            return delta
        thoughts += "".join(_text(part.get("thinking")) for part in content)
        content = "".join(_text(part.get("text")) for part in content if part["type"] in _TEXTS)
    if delta.get("reasoning") or delta.get("reasoning_content"):
        thoughts = ""
    if not thoughts and content is delta.get("content"):
        return delta
    rest = {name: value for name, value in delta.items() if name not in ("content", "thinking", "reasoning_text")}
    return rest | ({"reasoning": thoughts} if thoughts else {}) | ({"content": content} if "content" in delta else {})


def as_tool_call(delta: dict[str, Any]) -> dict[str, Any]:
    """The delta with its `function_call`, the one call of the API of 2023, as the first of its `tool_calls`."""
    rest = {name: value for name, value in delta.items() if name not in ("function_call", "tool_calls")}
    calls = delta.get("tool_calls") or [{"index": 0, "type": "function", "function": {**delta["function_call"]}}]
    return {**rest, "tool_calls": calls}


def _other_thoughts(delta: dict[str, Any]) -> str:
    named = next((delta[name] for name in ("thinking", "reasoning_text") if isinstance(delta.get(name), str)), "")
    return named or _text(delta.get("reasoning_details"))


def _text(value: Any) -> str:
    """A text, or what the items of a list say."""
    if isinstance(value, list):
        return "".join(_text(one.get("text") or one.get("summary")) for one in value if isinstance(one, dict))
    return value if isinstance(value, str) else ""
