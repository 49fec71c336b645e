"""Which requests a server is asked for at its own `/v1/responses`, and with which body.

Each attempt has the body of a chat, adapted to its backend (outgoing.py). What was adapted there is written into the
client's own body too. A request that would be answered worse so than as a chat is asked as a chat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gateway.apps.dialects.responses.own_answer import ResponseAsChatAnswer, ResponseAsChatStream
from gateway.domain.body import value_of
from gateway.domain.engine_traits import OwnResponses, Trouble
from gateway.domain.request import InferenceRequest, OwnForm
from gateway.domain.upstream import Response
from gateway.engines.outgoing import NOT_THE_CLIENTS

Fields = Mapping[str, Raw]

_encode = msgspec.json.Encoder().encode
_FALSE = Raw(b"false")
_LIMITS = ("max_completion_tokens", "max_tokens")
_WITHOUT = frozenset({"stream_options", "messages", "tools", "response_format"})  # no words of this API
_UNSENT = NOT_THE_CLIENTS | {"truncation"}
_MEDIA = ("input_image", "input_audio", "input_file")


class OwnResponsesForm(OwnForm):
    """A request of the Responses API. One that no chat can carry never becomes a chat. The server keeps nothing and
    cuts no prompt: conversations are kept here, or not at all."""

    def body(self, request: InferenceRequest, chat: dict[str, Raw], how: OwnResponses) -> dict[str, Raw] | None:
        if self.left_out and not how.hosted:
            return None
        fields = {name: value for name, value in self.fields.items() if name not in _UNSENT and bytes(value) != b"null"}
        fields["store"] = _FALSE
        worded = _adapt(fields, self.fields, request.fields, chat)
        if self.untranslatable is not None:
            return fields
        if not worded or not how.fields.issuperset(fields):
            return None
        return None if how.troubles and not how.troubles.isdisjoint(troubles(self)) else fields

    def as_chat(self, response: Response, stream: bool, memory: Any, sender: str) -> Response:
        return (ResponseAsChatStream if stream else ResponseAsChatAnswer)(response, memory, sender)


def _adapt(fields: dict[str, Raw], own: Fields, asked: Fields, sent: Fields) -> bool:
    """Write the differences between `asked` and `sent`, bodies of a chat, into `fields`. False: no words for one."""
    worded = True
    for name in asked.keys() | sent.keys():
        value = sent.get(name)
        if value == asked.get(name) and name not in NOT_THE_CLIENTS:
            continue
        if name in _LIMITS:
            name = "max_output_tokens"
        elif name == "reasoning_effort":
            reasoning = value_of(own.get("reasoning"))
            stated = {**reasoning} if isinstance(reasoning, dict) else {}
            fields["reasoning"] = Raw(_encode({**stated, "effort": value_of(value)}))
            continue
        elif name in _WITHOUT or (name == "tool_choice" and not isinstance(value_of(value), str)):
            worded = False
            continue
        if value is None:
            fields.pop(name, None)
        else:
            fields[name] = value
    return worded


def troubles(own: OwnForm) -> Iterator[Trouble]:
    """What of the request some servers answer worse than as a chat.

    allowed_tools: only some of the tools may be called. summary, encrypted: thoughts are
    wanted in that form, or come in. system_later: a system message is not the first one. neighbours: two messages of
    one side follow each other, which the translation joins. parts: an assistant's message, or a result, is not one
    text. unfinished: the last item is to be continued. media: pictures, sound or files."""
    fields = own.fields
    choice = value_of(fields.get("tool_choice"))
    if isinstance(choice, dict) and choice.get("type") != "function":
        yield "allowed_tools"
    reasoning = value_of(fields.get("reasoning"))
    if isinstance(reasoning, dict) and (reasoning.get("summary") or reasoning.get("generate_summary")):
        yield "summary"
    if value_of(fields.get("include")):
        yield "encrypted"
    given = value_of(fields.get("input"))
    if isinstance(given, list):
        yield from _troubles_of(given, bool(value_of(fields.get("instructions"))))


def _troubles_of(items: list[Any], instructed: bool) -> Iterator[Trouble]:
    before = "system" if instructed else ""
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            continue
        if any(kind in _MEDIA for kind in _kinds(item)):
            yield "media"
        if item.get("encrypted_content"):
            yield "encrypted"
        role = item.get("role")
        side = "system" if role in ("system", "developer") else str(role or item.get("type"))
        if side == "system" and (number or instructed):
            yield "system_later"
        if role is not None and side == before:
            yield "neighbours"
        before = side
        whole = item.get("output") if "output" in item else item.get("content")
        if role != "user" and isinstance(whole, list) and len(whole) != 1:
            yield "parts"
        if isinstance(item.get("output"), list):
            yield "parts"
    last = items[-1] if items else None
    if isinstance(last, dict) and (last.get("role") == "assistant" or last.get("type") == "reasoning"):
        yield "unfinished"


def _kinds(item: dict[str, Any]) -> Iterator[Any]:
    """The types of the parts of an item."""
    for content in (item.get("content"), item.get("output")):
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                yield part.get("type")
