"""A Messages body as the body of a chat request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gateway.apps.dialects.anthropic.tools import chat_tool_choice, chat_tools
from gateway.apps.dialects.anthropic.turns import ChatMessages, blocks_of, text_of
from gateway.apps.dialects.fields import encoded, expected, invalid, list_in, put, value_in
from gateway.domain.body import read_fields, value_of
from gateway.domain.request import FILE_AT, asks_for_stream
from gateway.errors import GatewayError
from gateway.routing.conversation_key import session_in_user_id

# Without a meaning to other servers: hints for Anthropic's cache and billing, and edits of the history by its server.
_HINTS = ("metadata", "service_tier", "cache_control", "context_management", "inference_geo", "speed", "betas")
_DROPPED = (*_HINTS, "n")  # the number of answers of a chat; a message has one
# They change the answer, and only Anthropic can serve them.
_REFUSED = ("mcp_servers", "container")
# Claude Code's attribution differs between versions; at the beginning of every prompt it would defeat the prefix cache.
_BILLING = "x-anthropic-billing-header"
_USAGE = Raw(b'{"include_usage":true}')
# A last message of the assistant is continued, as engines with `continues_text` (domain/engine_traits.py) are asked to.
# A thought would come behind text: the template has it before, and the reasoning parser takes the text for a thought.
_CONTINUED = {
    "continue_final_message": Raw(b"true"),
    "add_generation_prompt": Raw(b"false"),
    "thinking": Raw(b'{"type":"disabled"}'),
}

_encode = msgspec.json.Encoder().encode


def to_chat(body: bytes) -> bytes:
    """As `chat_of`, the body alone."""
    return chat_of(body)[0]


def chat_of(body: bytes) -> tuple[bytes, list[str], bytes | None]:
    """(the body of the same request for `/chat/completions`, the types of the tools that are left out of it, the id of
    its session). Fields that both APIs share, and unknown fields, are passed on unchanged. Raises GatewayError
    (`invalid_request_body`, `input_unsupported`)."""
    try:
        fields = read_fields(body)
        session = session_in_user_id(value_of(fields.get("metadata")))
        chat, left_out = _translated(fields)
        return _encode(chat), left_out, session
    except RecursionError:  # reading succeeded, but the translation is one level deeper
        raise GatewayError("invalid_request_body", "The request body is nested too deeply.") from None


def _translated(fields: dict[str, Raw]) -> tuple[dict[str, Raw], list[str]]:
    for name in _REFUSED:
        if name in fields and value_in(fields.pop(name), name):
            raise invalid(name, "is run by Anthropic's servers; no backend here can. Leave it out.", unsupported=True)
    for name in _DROPPED:
        fields.pop(name, None)
    given = list_in(fields.pop("messages", None), "messages")
    turns = ChatMessages(given)
    begun = turns.begun()
    messages = [*_system(fields.pop("system", None)), *turns.chat]
    fields["messages"] = encoded(messages)
    put(fields, FILE_AT, turns.file_at or None)
    tools = list_in(fields.pop("tools"), "tools") if "tools" in fields else []
    put(fields, "tools", chat_tools(tools, turns, value_in(fields.get("tool_choice"), "tool_choice")))
    for name, translate in _TRANSLATED.items():
        if name in fields:
            for becomes, value in translate(value_in(fields.pop(name), name)).items():
                put(fields, becomes, value)
    if begun is not None:
        fields |= _continued(fields, begun, f"messages.{len(given) - 1}.content")
    if b'"disabled"' in bytes(fields.get("thinking", b"")):
        fields.pop("reasoning_effort", None)  # thinking is switched off
    if "tools" not in fields:
        fields.pop("tool_choice", None)
        fields.pop("parallel_tool_calls", None)
    if asks_for_stream(fields.get("stream")):
        fields["stream_options"] = _USAGE  # the end of a message has its token counts
    return fields, turns.left_out


def _continued(fields: Mapping[str, Raw], begun: Mapping[str, Any], where: str) -> dict[str, Raw]:
    """The fields with which `begun`, the last message, is continued. Raises where Anthropic's API refuses it too."""
    if not begun["content"]:
        raise invalid(where, "ends with thoughts. Add the text that the model is to continue, or leave it out.")
    if begun["content"][-1].isspace():
        raise invalid(where, "ends with white space, behind which a model does not continue. Remove that white space.")
    if b'"enabled"' in bytes(fields.get("thinking", b"")) and "reasoning_content" not in begun:
        raise invalid("thinking", "is enabled, and the last message is the beginning of the answer: disable one.")
    if "response_format" in fields:
        raise invalid(where, "begins the answer, and a JSON format begins anew behind it. Leave one of them out.")
    return _CONTINUED


def _system(raw: Raw | None) -> list[dict[str, Any]]:
    """The system prompt as the first message; no message when it is empty."""
    content = value_in(raw, "system")
    blocks = blocks_of(content, "system") if content is not None else []
    texts = [text_of(block, where) for where, block in blocks]
    text = "\n".join(text for text in texts if text and not text.startswith(_BILLING))
    return [{"role": "system", "content": text}] if text else []


def _thinking(thinking: Any) -> dict[str, Any]:
    """Passed on: `gateway/engines/thinking.py` understands it. (`display: omitted` is ignored, because the thoughts
    must come back with the calls that they led to.)"""
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if thinking is not None and kind not in ("enabled", "disabled", "adaptive"):
        raise expected("thinking.type", "enabled, disabled or adaptive", kind)
    return {"thinking": thinking}


def _output_config(config: Any) -> dict[str, Any]:
    """`effort`: how much thinking; `format`: a JSON schema for the answer."""
    if not isinstance(config, dict):
        return {}
    return {"reasoning_effort": config.get("effort"), **_output_format(config.get("format"))}


def _output_format(form: Any) -> dict[str, Any]:
    if not isinstance(form, dict):
        return {}
    schema = {"name": "answer", "schema": form.get("schema"), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


_TRANSLATED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "tool_choice": chat_tool_choice,
    "stop_sequences": lambda sequences: {"stop": sequences},
    "output_config": _output_config,
    "output_format": _output_format,  # the older name of `output_config.format`
    "thinking": _thinking,
}
