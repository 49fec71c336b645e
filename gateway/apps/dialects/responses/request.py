"""A Responses body as the body of a chat request, and the fields of it that its answer repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec import Raw

from gateway.apps.dialects.fields import UntranslatableRequest, encoded, expected, invalid, put, value_in
from gateway.apps.dialects.responses.items import (
    CARRIED_SUMMARY,
    SUMMARIZE,
    asks_to_compact,
    is_item,
    is_part,
    kept_messages,
    to_messages,
)
from gateway.apps.dialects.responses.own_request import OwnResponsesForm
from gateway.apps.dialects.responses.tools import ToolName, chat_tools
from gateway.domain.body import read_fields
from gateway.domain.endpoints import RESPONSES
from gateway.domain.request import OwnForm, asks_for_stream
from gateway.errors import GatewayError

# Hints for OpenAI's servers, and fields whose only effect there is on what is stored or on tools that run there.
_HINTS = ("metadata", "service_tier", "safety_identifier", "client_metadata", "moderation", "max_tool_calls", "store")
_CACHES = ("prompt_cache_retention", "prompt_cache_options", "truncation", "stream_options")
_CHATS = ("n", "messages", "response_format", "functions", "function_call")  # of a chat only
_DROPPED = (*_HINTS, *_CACHES, *_CHATS)
_REFUSED = {
    "previous_response_id": "names an earlier response, and none is kept (`server.keep_responses` keeps them). Send "
    "the whole conversation as `input`.",
    "conversation": "names a conversation of OpenAI's servers. Send all of it as `input`.",
    "prompt": "names a prompt of OpenAI's servers. Send its text as `instructions` and `input`.",
    "background": "would be answered later, and the gateway answers at once. Leave it out.",
    "top_logprobs": "cannot be translated. Leave it out.",
}
_ECHOED = ("temperature", "top_p", "max_output_tokens", "max_tool_calls", "user", "prompt_cache_key")
_CHAT_TAKES = ("instructions", "input", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens")
_TAKEN = (*_CHAT_TAKES, "reasoning", "text", "include")
_THOUGHTS = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"
_USAGE = Raw(b'{"include_usage":true}')

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class RequestEcho:
    """The parts of the request that its answer depends on. `echo`: the fields of the response that repeat it, as one
    JSON object. `summary`: thoughts are given as their summary. `carried`: they are given as `encrypted_content` too,
    which clients send back. `names`, `left_out`: of `ChatTools`. `compacts`: the answer is a summary (compaction.py),
    at `/v1/responses` or at an endpoint `apart`; `kept`: the client's own messages, which go with it there."""

    model: str = ""
    echo: bytes = b"{}"
    summary: bool = False
    carried: bool = False
    names: Mapping[str, ToolName] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    compacts: Literal["", "here", "apart"] = ""
    kept: tuple[bytes, ...] = ()


def chat_request_of(
    body: bytes, previous: str | None = None, *, stored: bool = False, compacts: bool = False
) -> tuple[bytes, RequestEcho, OwnForm | None]:
    """The body of the same request for `/chat/completions`, what the answer needs, and the request as it came. Unknown
    fields are passed on unchanged. Where the request is untranslatable, the chat is what remains of it without these
    things: enough to choose a backend by. `stored`: the response will be kept; `previous`: the one it goes on from;
    `compacts`: it is to be compacted. Raises GatewayError (`invalid_request_body`, `input_unsupported`)."""
    fields = read_fields(body)
    untranslatable = None
    try:
        input_ = value_in(fields.get("input"), "input")
        if compacts or asks_to_compact(input_):
            return *_compacting(fields, input_, previous, apart=compacts), None
        try:
            chat, asked = _translated(dict(fields), previous, stored)
        except UntranslatableRequest as error:
            untranslatable = error
            chat, asked = _translated(translatable(fields), previous, stored)
        if CARRIED_SUMMARY in bytes(fields.get("input", b"")):
            return _encode(chat), asked, None  # which nobody else can read
        own = {name: value for name, value in fields.items() if name not in _REFUSED or value_in(value, name)}
        return _encode(chat), asked, OwnResponsesForm(RESPONSES, own, untranslatable, asked.left_out)
    except RecursionError:
        raise GatewayError("invalid_request_body", "The request body is nested too deeply.") from None


def _compacting(fields: dict[str, Raw], input_: Any, previous: str | None, *, apart: bool) -> tuple[bytes, RequestEcho]:
    """The chat that asks for a summary of the conversation. Its tools stay, which keeps the prefix the same."""
    items = input_ if isinstance(input_, list) else [{"role": "user", "content": input_ or ""}]
    wanted = {"type": "message", "role": "user", "content": SUMMARIZE}
    rest = {name: value for name, value in fields.items() if name not in ("text", "tool_choice", "max_output_tokens")}
    chat, asked = _translated(translatable({**rest, "input": encoded([*items, wanted])}), previous, stored=False)
    if "tools" in chat:
        chat["tool_choice"] = Raw(b'"none"')
    asked.compacts = "apart" if apart else "here"
    asked.kept = kept_messages(items) if apart else ()
    return _encode(chat), asked


def _translated(fields: dict[str, Raw], previous: str | None, stored: bool) -> tuple[dict[str, Raw], RequestEcho]:
    for name, why in _REFUSED.items():
        if name in fields and value_in(fields.pop(name), name):
            raise UntranslatableRequest(name, why) if name == "top_logprobs" else invalid(name, why, unsupported=True)
    taken = {name: value_in(fields.pop(name, None), name) for name in _TAKEN}
    asked = _asked(fields, taken, previous, stored)
    for name in _DROPPED:
        fields.pop(name, None)
    fields["messages"] = encoded(to_messages(taken["instructions"], taken["input"]))
    tools = chat_tools(taken["tools"], taken["tool_choice"])
    asked.names, asked.left_out = tools.names, tuple(dict.fromkeys(tools.left_out))
    if tools.functions:
        put(fields, "tools", tools.functions)
        put(fields, "tool_choice", tools.choice)
        put(fields, "parallel_tool_calls", taken["parallel_tool_calls"])
    put(fields, "max_completion_tokens", taken["max_output_tokens"])
    put(fields, "reasoning_effort", _effort(taken["reasoning"]))
    put(fields, "response_format", _response_format(taken["text"]))
    if asks_for_stream(fields.get("stream")):
        fields["stream_options"] = _USAGE  # the end of a response has its token counts
    return fields, asked


def _asked(fields: dict[str, Raw], taken: dict[str, Any], previous: str | None, stored: bool) -> RequestEcho:
    include = taken["include"] or []
    if not isinstance(include, list):
        raise expected("include", "a list", include)
    if _LOGPROBS in include:
        raise UntranslatableRequest("include", f"asks for `{_LOGPROBS}`, which cannot be translated. Leave it out.")
    reasoning, text = taken["reasoning"] or {}, taken["text"] or {}
    for name, value in (("reasoning", reasoning), ("text", text)):
        if not isinstance(value, dict):
            raise expected(name, "an object", value)
    summary = reasoning.get("summary") or reasoning.get("generate_summary")
    model = value_in(fields.get("model"), "model")
    stated = {name: value_in(fields.get(name), name) for name in (*_ECHOED, "metadata") if name in fields}
    parallel = taken["parallel_tool_calls"]
    echo = {
        **stated,
        "instructions": taken["instructions"],
        "max_output_tokens": taken["max_output_tokens"],
        "metadata": stated.get("metadata") or {},
        "parallel_tool_calls": True if parallel is None else parallel,
        "previous_response_id": previous,
        "reasoning": {"effort": reasoning.get("effort"), "summary": summary},
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        "tool_choice": taken["tool_choice"] or "auto",
        "tools": taken["tools"] or [],
        "truncation": "disabled",
        "background": False,
        "store": stored,
    }
    return RequestEcho(model if isinstance(model, str) else "", _encode(echo), bool(summary), _THOUGHTS in include)


def _effort(reasoning: Any) -> Any:
    effort = reasoning.get("effort") if reasoning else None
    if effort is not None and not isinstance(effort, str):
        raise expected("reasoning.effort", "a string", effort)
    return effort


def _response_format(text: Any) -> dict[str, Any] | None:
    form = text.get("format") if text else None
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else None
    translate = _FORMATS.get(kind) if isinstance(kind, str) else None
    if translate is None:
        raise expected("text.format.type", "text, json_object or json_schema", kind)
    return translate(form)


def _json_schema(form: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(form.get("schema"), dict):
        raise expected("text.format.schema", "an object", form.get("schema"))
    named = {name: form[name] for name in ("name", "description", "schema", "strict") if form.get(name) is not None}
    return {"type": "json_schema", "json_schema": {"name": "answer", **named}}


_FORMATS: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "text": lambda form: None,
    "json_object": lambda form: {"type": "json_object"},
    "json_schema": _json_schema,
}


# -- what remains of a request that no chat can carry ------------------------------------------------------------------

CALLABLE = ("function", "custom", "namespace")
_TEXT_ONLY = ("assistant", "system", "developer")  # roles


def translatable(fields: dict[str, Raw]) -> dict[str, Raw]:
    """The fields without the tools, items and parts that have no translation. Raises GatewayError."""
    rest = {name: value for name, value in fields.items() if name not in ("top_logprobs", "include")}
    tools, choice, given = (value_in(fields.get(name), name) for name in ("tools", "tool_choice", "input"))
    if isinstance(tools, list):
        functions = [tool for tool in tools if _type_of(tool) in (None, *CALLABLE)]
        rest["tools"] = Raw(_encode(functions))
        if isinstance(choice, dict) or not functions:  # it may name one of the others
            rest.pop("tool_choice", None)
    if isinstance(given, list):
        rest["input"] = Raw(_encode([_item(item) for item in given if not isinstance(item, dict) or is_item(item)]))
    return rest


def _type_of(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else None


def _item(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    return item | {name: _parts(item[name], item.get("role")) for name in ("content", "output") if name in item}


def _parts(content: Any, role: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [part for part in content if not isinstance(part, dict) or is_part(part, text_only=role in _TEXT_ONLY)]
