"""A Messages body as the body of a chat request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from gateway.dialects.anthropic.blocks import blocks_of, expected, invalid, text_of
from gateway.dialects.anthropic.tools import chat_tool_choice, chat_tools
from gateway.dialects.anthropic.turns import Turns
from gateway.domain.request import read_fields
from gateway.errors import GatewayError

# Anthropic's own, of no meaning to any other server: hints for its cache and its billing, and edits of the history that
# its server would make before the model reads it.
_HINTS = ("metadata", "service_tier", "cache_control", "context_management", "inference_geo", "speed", "betas")
_DROPPED = (*_HINTS, "n")  # a chat's number of answers: a message is one
# These change what the answer is, and nobody but Anthropic can do it.
_REFUSED = ("mcp_servers", "container")
# Claude Code's attribution: it differs from version to version and would be the first words of every prompt, so that
# no prefix cache could ever be shared.
_BILLING = "x-anthropic-billing-header"
_USAGE = Raw(b'{"include_usage":true}')

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Any).decode


def to_chat(body: bytes) -> bytes:
    """The same request for `/chat/completions`. What both APIs call alike, and what neither of them knows, goes on as
    it is. Raises `invalid_request_body`, `input_unsupported`."""
    try:
        return _encode(_translated(read_fields(body)))
    except RecursionError:  # what could just be read may not be written one level deeper
        raise GatewayError("invalid_request_body", "The request body is nested too deeply.") from None


def _translated(fields: dict[str, Raw]) -> dict[str, Raw]:
    for name in _REFUSED:
        if name in fields and _value(fields.pop(name), name):
            raise invalid(name, "is run by Anthropic's servers; no backend here can. Leave it out.", unsupported=True)
    for name in _DROPPED:
        fields.pop(name, None)
    turns = Turns(_list(fields.pop("messages", None), "messages"))
    messages = [*_system(fields.pop("system", None)), *turns.chat]
    fields["messages"] = Raw(_encode(messages))
    tools = _list(fields.pop("tools"), "tools") if "tools" in fields else []
    _put(fields, "tools", chat_tools(tools, turns))
    for name, translate in _TRANSLATED.items():
        if name in fields:
            for becomes, value in translate(_value(fields.pop(name), name)).items():
                _put(fields, becomes, value)
    if b'"disabled"' in bytes(fields.get("thinking", b"")):
        fields.pop("reasoning_effort", None)  # none is wanted, however hard
    if "tools" not in fields:
        fields.pop("tool_choice", None)
        fields.pop("parallel_tool_calls", None)
    if fields.get("stream") == Raw(b"true"):
        fields["stream_options"] = _USAGE  # a message's end tells its tokens
    return fields


def _put(fields: dict[str, Raw], name: str, value: object) -> None:
    if value not in (None, [], {}):
        fields[name] = Raw(_encode(value))


def _value(raw: Raw, name: str) -> Any:
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(name, f"is not valid JSON: {error}") from None


def _list(raw: Raw | None, name: str) -> list[Any]:
    value = _value(raw, name) if raw is not None else None
    if not isinstance(value, list):
        raise expected(name, "a list", value)
    return value


def _system(raw: Raw | None) -> list[dict[str, Any]]:
    """The system prompt as the first message; none where it says nothing."""
    said = _value(raw, "system") if raw is not None else None
    blocks = blocks_of(said, "system") if said is not None else []
    texts = [text_of(block, where) for where, block in blocks]
    text = "\n".join(text for text in texts if text and not text.startswith(_BILLING))
    return [{"role": "system", "content": text}] if text else []


def _stop(sequences: Any) -> dict[str, Any]:
    return {"stop": sequences}


def _thinking(thinking: Any) -> dict[str, Any]:
    """As it is: `engines/thinking.py` knows these words. (`display: omitted` is not heeded: thoughts must come back
    with the calls that they led to.)"""
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if thinking is not None and kind not in ("enabled", "disabled", "adaptive"):
        raise expected("thinking.type", "enabled, disabled or adaptive", kind)
    return {"thinking": thinking}


def _output_config(config: Any) -> dict[str, Any]:
    """`effort` is a wish for thinking; `format` a JSON schema for the answer."""
    if not isinstance(config, dict):
        return {}
    return {"reasoning_effort": config.get("effort"), **_output_format(config.get("format"))}


def _output_format(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict):
        return {}
    schema = {"name": "answer", "schema": said.get("schema"), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


_TRANSLATED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "tool_choice": chat_tool_choice,
    "stop_sequences": _stop,
    "output_config": _output_config,
    "output_format": _output_format,  # the name it had before
    "thinking": _thinking,
}
