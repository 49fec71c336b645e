"""A chat answer as a message: its blocks, why it ended, and its tokens."""

from __future__ import annotations

from typing import Any

import msgspec

_STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Any).decode


class _Choice(msgspec.Struct):
    message: dict[str, Any] = {}
    finish_reason: Any = None
    stop_reason: Any = None  # vLLM's: the stop string that was met, or the id of a token


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    model: Any = None
    usage: Any = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


def to_message(body: bytes, id_: str) -> bytes:
    """The body of a chat answer as that of a message."""
    answer = _decode_answer(body)
    choice = answer.choices[0]
    why, sequence = stop_of(choice.finish_reason, choice.stop_reason)
    message = {**head(id_, answer.model), "content": _content(choice.message), "usage": usage_of(answer.usage)}
    return _encode({**message, "stop_reason": why, "stop_sequence": sequence})


def head(id_: str, model: object) -> dict[str, Any]:
    """A message that says nothing yet."""
    begun = {"id": id_, "type": "message", "role": "assistant", "model": model, "content": []}
    return {**begun, "stop_reason": None, "stop_sequence": None, "usage": usage_of(None)}


def stop_of(finish_reason: object, stop_reason: object) -> tuple[str, str | None]:
    """`stop_reason` and `stop_sequence` of a message."""
    if finish_reason == "stop" and isinstance(stop_reason, str):
        return "stop_sequence", stop_reason
    return _STOPS.get(finish_reason, "end_turn") if isinstance(finish_reason, str) else "end_turn", None


def usage_of(usage: Any) -> dict[str, int]:
    """Anthropic counts what came from the prefix cache apart. Where a backend does not say, nothing is said of it."""
    told = usage if isinstance(usage, dict) else {}
    prompt, answer = (told.get(name) or 0 for name in ("prompt_tokens", "completion_tokens"))
    details = told.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if not isinstance(cached, int):
        return {"input_tokens": prompt, "output_tokens": answer}
    return {"input_tokens": max(0, prompt - cached), "cache_read_input_tokens": cached, "output_tokens": answer}


def thoughts_of(said: dict[str, Any]) -> str:
    """The reasoning in a message or a delta, under either of its names."""
    thoughts = said.get("reasoning") or said.get("reasoning_content")
    return thoughts if isinstance(thoughts, str) else ""


def text_of(said: dict[str, Any]) -> str:
    text = said.get("content") or said.get("refusal")
    return text if isinstance(text, str) else ""


def _content(message: dict[str, Any]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if thoughts := thoughts_of(message):
        blocks.append({"type": "thinking", "thinking": thoughts, "signature": ""})
    text = text_of(message)
    if text and not text.isspace():
        blocks.append({"type": "text", "text": text})
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        named = {"id": call.get("id"), "name": function.get("name")}
        blocks.append({"type": "tool_use", **named, "input": _input(function)})
    return blocks


def _input(function: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments, which have to be an object here. Those that are none are kept as text, for the tool to refuse
    and the model to see."""
    text = function.get("arguments") or "{}"
    arguments = arguments_of(text)
    return arguments if arguments is not None else {"arguments": text}


def arguments_of(text: str) -> dict[str, Any] | None:
    """A call's arguments; None where they are not the whole of an object."""
    try:
        arguments = _decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None
