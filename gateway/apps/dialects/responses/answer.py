"""A chat answer as a response: its items, status and tokens. Texts are JSON strings, so that a stream can join them
without reading them again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from gateway.apps.dialects.chat import answer_of, call_id_of, text_of, thoughts_of
from gateway.apps.dialects.responses.items import CARRIED
from gateway.apps.dialects.responses.request import RequestEcho
from gateway.apps.dialects.responses.tools import custom_input
from gateway.domain.tokens import read_usage

COMPLETED, INCOMPLETE = "completed", "incomplete"
_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
_CARRIED = b'"' + CARRIED.encode()

_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of a response and its items, from the id of the request. `created_at` in Unix seconds."""

    request_id: str
    created_at: int

    @property
    def response(self) -> str:
        return "resp_" + self.request_id

    def item(self, kind: str, index: int) -> str:
        """`kind`: rs | msg | fc | call."""
        return f"{kind}_{self.request_id}_{index}"


def to_response(body: bytes, asked: RequestEcho, ids: Ids) -> bytes:
    """The body of a chat answer (which `fault_in_message` has passed) as a response. Raises ProtocolFailure."""
    answer, choice, message = answer_of(body, "a response")
    reason = reason_of(choice.finish_reason)
    output = _output(message, asked, ids, INCOMPLETE if reason else COMPLETED)
    return response(
        asked, ids, INCOMPLETE if reason else COMPLETED, output, usage=usage_of(answer.usage), reason=reason
    )


def response(
    asked: RequestEcho,
    ids: Ids,
    status: str,
    output: Iterable[bytes] = (),
    *,
    usage: dict[str, Any] | None = None,
    reason: str | None = None,
    error: dict[str, Any] | None = None,
) -> bytes:
    """The object `response`. `reason`: why it is incomplete. It repeats the request as the API does."""
    head = {
        "id": ids.response,
        "object": "response",
        "created_at": ids.created_at,
        "status": status,
        "error": error,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": asked.model,
        "output": [Raw(item) for item in output],
        "usage": usage,
    }
    return _encode(head)[:-1] + (b"," if len(asked.echo) > 2 else b"") + asked.echo[1:]


def reason_of(finish_reason: object) -> str | None:
    """Why a response is incomplete; None if it is complete."""
    return _REASONS.get(finish_reason) if isinstance(finish_reason, str) else None


def usage_of(usage: object) -> dict[str, Any] | None:
    """Token counts in the form of this API; None when the backend reported none."""
    if not isinstance(usage, dict):
        return None
    used = read_usage(usage)
    return {
        "input_tokens": used.prompt,
        "input_tokens_details": {"cached_tokens": used.cached},
        "output_tokens": used.completion,
        "output_tokens_details": {"reasoning_tokens": used.reasoning},
        "total_tokens": used.total,
    }


def reasoning_item(id_: str, text: bytes, asked: RequestEcho, status: str) -> bytes:
    """Thoughts, as their summary where one was asked for. `text` is a JSON string."""
    stated: dict[str, Any] = {"summary": [], "content": [{"type": "reasoning_text", "text": Raw(text)}]}
    if asked.summary:
        stated = {"summary": [{"type": "summary_text", "text": Raw(text)}]}
    if asked.carried:
        stated["encrypted_content"] = Raw(_CARRIED + text[1:])
    return _encode({"id": id_, "type": "reasoning", **stated, "status": status})


def text_part(text: bytes) -> dict[str, Any]:
    return {"type": "output_text", "text": Raw(text), "annotations": [], "logprobs": []}


def message_item(id_: str, text: bytes | None, status: str) -> bytes:
    """`text` is a JSON string; None before the first piece."""
    content = [] if text is None else [text_part(text)]
    return _encode({"id": id_, "type": "message", "role": "assistant", "status": status, "content": content})


def call_item(id_: str, call_id: str, name: str, arguments: bytes, status: str, asked: RequestEcho) -> bytes:
    """A call of the tool that the function `name` stands for. `arguments` is a JSON string."""
    tool = asked.names.get(name)
    named: dict[str, Any] = {"call_id": call_id, "name": name if tool is None else tool.name}
    if tool is not None and tool.namespace is not None:
        named["namespace"] = tool.namespace
    if tool is not None and tool.custom:
        said: dict[str, Any] = {"type": "custom_tool_call", "input": custom_input(_decode_text(arguments))}
    else:
        said = {"type": "function_call", "arguments": Raw(arguments)}
    return _encode({"id": id_, **said, **named, "status": status})


def _output(message: dict[str, Any], asked: RequestEcho, ids: Ids, status: str) -> list[bytes]:
    """The items of the output. `status` is that of the last one; the others are complete."""
    items: list[tuple[str, Any]] = []
    if thoughts := thoughts_of(message):
        items.append(("rs", thoughts))
    text = text_of(message)
    if text and not text.isspace():
        items.append(("msg", text))
    items += [("fc", call) for call in message.get("tool_calls") or []]
    last = len(items) - 1
    return [
        _item(kind, stated, asked, ids, index, status if index == last else COMPLETED)
        for index, (kind, stated) in enumerate(items)
    ]


def _item(kind: str, stated: Any, asked: RequestEcho, ids: Ids, index: int, status: str) -> bytes:
    id_ = ids.item(kind, index)
    if kind == "rs":
        return reasoning_item(id_, _encode(stated), asked, status)
    if kind == "msg":
        return message_item(id_, _encode(stated), status)
    function = stated.get("function") or {}
    call_id = call_id_of(stated) or ids.item("call", index)
    arguments = _encode(function.get("arguments") or "{}")
    return call_item(id_, call_id, function.get("name") or "", arguments, status, asked)
