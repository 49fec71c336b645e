"""A chat answer as a message: its blocks, stop reason and tokens; and errors in Anthropic's envelope, with the messages
that its clients act on."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.apps.dialects.chat import answer_of, arguments_of, call_id_of, error_in, text_of, thoughts_of
from gateway.domain.tokens import read_usage
from gateway.engines.call_ids import safe_id
from gateway.errors import CATALOGUE
from gateway.inspection.shape import brief

_STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}

_encode = msgspec.json.Encoder().encode


def to_message(body: bytes, id_: str) -> bytes:
    """The body of a chat answer (which `fault_in_message` has passed) as a message. Raises ProtocolFailure."""
    answer, choice, said = answer_of(body, "a message")
    why, sequence = stop_of(choice.finish_reason, choice.stop_reason)
    message = {**head(id_, answer.model), "content": _content(said), "usage": usage_of(answer.usage)}
    return _encode({**message, "stop_reason": why, "stop_sequence": sequence})


def head(id_: str, model: object) -> dict[str, Any]:
    """An empty message."""
    named = model if isinstance(model, str) else None
    begun: dict[str, Any] = {"id": id_, "type": "message", "role": "assistant", "model": named, "content": []}
    return {**begun, "stop_reason": None, "stop_sequence": None, "usage": usage_of(None)}


def message_id_of(id_: str | None) -> str | None:
    """A call's id that Anthropic's models take too, to which the conversation may move."""
    return id_ if id_ is None else safe_id(id_)


def stop_of(finish_reason: object, stop_reason: object) -> tuple[str, str | None]:
    """`stop_reason` and `stop_sequence` of a message."""
    if finish_reason == "stop" and isinstance(stop_reason, str):
        return "stop_sequence", stop_reason
    return _STOPS.get(finish_reason, "end_turn") if isinstance(finish_reason, str) else "end_turn", None


def usage_of(usage: Any) -> dict[str, int]:
    """Token counts in Anthropic's form, which counts cached tokens separately, where a valid count of them came."""
    used = read_usage(usage)
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if type(cached) is not int or cached != used.cached:  # not reported, or not plausible
        return {"input_tokens": used.prompt, "output_tokens": used.completion}
    fresh = max(0, used.prompt - cached)
    return {"input_tokens": fresh, "cache_read_input_tokens": cached, "output_tokens": used.completion}


def _content(message: dict[str, Any]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if thoughts := thoughts_of(message):
        blocks.append({"type": "thinking", "thinking": thoughts, "signature": ""})
    text = text_of(message)
    if text and not text.isspace():
        blocks.append({"type": "text", "text": text})
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        named = {"id": message_id_of(call_id_of(call)), "name": function.get("name")}
        blocks.append({"type": "tool_use", **named, "input": _input(function)})
    return blocks


def _input(function: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments, here an object. Others are kept as text: the tool refuses them, and the model sees why."""
    text = function.get("arguments") or "{}"
    arguments = arguments_of(text)
    return arguments if arguments is not None else {"arguments": text}


# -- errors ------------------------------------------------------------------------------------------------------------

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
# Claude Code compacts its history on exactly this form, and reads both numbers.
_OVERFLOW = re.compile(r"maximum context length is (\d+) tokens\D+?(\d+) input tokens")
_TOO_LONG = "prompt is too long: {tokens} tokens > {window} maximum"
_TOO_LONG_TOGETHER = "prompt is too long: {tokens} tokens and the room for an answer exceed the maximum of {window}"


def retry_header(status: int) -> dict[bytes, bytes]:
    """`x-should-retry: false` where a retry cannot help; without it Claude Code repeats even a 401 for minutes."""
    return {b"x-should-retry": b"false"} if 400 <= status < 500 and status != 429 else {}


def envelope(status: int | None, body: bytes, request_id: str) -> bytes:
    """OpenAI's envelope as Anthropic's. The gateway's `code` (docs/errors.md) is kept. Inside a stream there is no
    `status`: the code decides the type."""
    error = error_in(body)
    text, code = error.get("message"), error.get("code")
    message = text if isinstance(text, str) else brief(text)
    if status is None:
        status = CATALOGUE[code].status if isinstance(code, str) and code in CATALOGUE else 500
    if overflow := _OVERFLOW.search(message):
        window, tokens = int(overflow[1]), int(overflow[2])
        message = (_TOO_LONG if tokens > window else _TOO_LONG_TOGETHER).format(window=window, tokens=tokens)
    elif "maximum context length is not known" in message:
        message = "prompt is too long"
    fields = {"type": _TYPES.get(status, "api_error"), "message": message, "code": code}
    return _encode({"type": "error", "error": fields, "request_id": request_id})
