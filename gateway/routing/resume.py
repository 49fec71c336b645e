"""May a stream that breaks after content go on at another backend, at which one, and with which request? Pure.

The other backend gets the conversation with the text that the client has so far as its last message, and continues it.
That is the same answer only if the text is all that the model has written: not with tools, thoughts or log
probabilities, and not where a grammar shapes the text, which would start over at the join.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec
from msgspec import Raw

from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.body import value_of
from gateway.domain.endpoints import CHAT
from gateway.domain.request import InferenceRequest, is_limit
from gateway.inspection.sent_text import SentText

_encode = msgspec.json.Encoder().encode

# Fields of a request of which any value but null, false, 0 and an empty one rules out that its answer is continued.
RULING_OUT = frozenset(
    {
        "tools", "functions",
        "response_format", "structured_outputs", "structural_tag",
        "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_whitespace_pattern",
        "logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids",
        "use_beam_search", "echo", "continue_final_message", "truncate_prompt_tokens", "audio",
    }
)  # fmt: skip
# Fields whose `false` does.
_REFUSING = ("add_generation_prompt", "include_reasoning")
_PLAIN_TEXT = {"type": "text"}  # a response_format that asks for nothing
_THOUGHT_TAGS = ("<think>", "</think>")
_TRUE, _FALSE = Raw(b"true"), Raw(b"false")


class BrokenStream(NamedTuple):
    """A stream that broke: the fields that its backend got, and the text that the client has."""

    fields: Mapping[str, Raw]
    sent: SentText


class Continuation(NamedTuple):
    """How a stream goes on. `request`: with the text so far as its last message. `repeated`: the white space at the
    end of that text, which is left out of the message, because chat templates remove it there: the model writes it
    again. `prompt`: tokens of the original prompt, None if not known. `used`: tokens of the text in the message."""

    request: InferenceRequest
    repeated: str
    prompt: int | None
    used: int


def may_continue(request: InferenceRequest, alias: Alias, fields: Mapping[str, Raw], *, begun: bool) -> bool:
    """May the answer to this request be continued elsewhere? `fields` of the backend's request; `begun`: an attempt
    before has sent thoughts. Decided before the answer, so that only such answers are kept."""
    if not alias.resume or begun:
        return False
    if request.endpoint is not CHAT or request.choices > 1 or request.tools:
        return False
    if alias.reasoning_field == "none":  # thoughts would not be noticed
        return False
    if not asks_for_text(fields):
        return False
    return all(value_of(fields.get(name)) is not False for name in _REFUSING)


def asks_for_text(fields: Mapping[str, Raw]) -> bool:
    """Is its answer a text that may be written as it comes, of no given form?"""
    given = [value_of(fields[name]) for name in RULING_OUT.intersection(fields)]
    return not any(value and value != _PLAIN_TEXT for value in given)


def can_resume(broken: BrokenStream, *, suspected: bool) -> bool:
    """Can the text that the client got be continued? `suspected`: an earlier attempt of this request, or an earlier
    request with the same body, has failed too: a prompt that kills engines must not get another one."""
    sent = broken.sent
    if suspected or not sent.is_plain or not sent.text.strip():
        return False
    messages = value_of(broken.fields.get("messages"))
    if not isinstance(messages, list) or not messages:  # a server that answers without them has nothing to continue
        return False
    if any(tag in sent.text for tag in _THOUGHT_TAGS):
        return False
    limits = (value_of(broken.fields[name]) for name in CHAT.limits if name in broken.fields)
    return all(not is_limit(limit) or limit > sent.tokens for limit in limits)


def can_continue(state: BackendState, left: BackendState) -> bool:
    """Can this backend continue the answer of `left`? Only one in the LAN with the same model can."""
    return state.traits.continues_text is True and not state.backend.cloud and same_model(state, left)


def same_model(one: BackendState, other: BackendState) -> bool:
    """Do two backends serve the same model? Their launch commands decide, where both are known; else the checkpoint or
    the model name that requests carry."""
    if one.backend.launch is not None and other.backend.launch is not None:
        loaded = one.backend.launch.parsed.model, other.backend.launch.parsed.model
        if None not in loaded:
            return loaded[0] == loaded[1]
    return one.checkpoint is not None and one.checkpoint == other.checkpoint


def continuation(request: InferenceRequest, broken: BrokenStream) -> Continuation:
    """The request that continues the text, with the fields that the first backend got. Limits of tokens are reduced by
    those already used."""
    sent = broken.sent
    text, repeated, used = sent.text, "", sent.tokens
    kept = text.rstrip()
    if "\n" in text[len(kept) :]:
        text, repeated, used = kept, text[len(kept) :], max(0, used - sent.blank)
    fields = dict(broken.fields)
    fields["messages"] = with_message(fields["messages"], text)
    fields["continue_final_message"], fields["add_generation_prompt"] = _TRUE, _FALSE
    limits = {}
    for name in request.endpoint.limits:
        if is_limit(limit := value_of(fields.get(name))):
            limits[name] = limit - used
            fields[name] = Raw(_encode(limit - used))
    if is_limit(least := value_of(fields.get("min_tokens"))):
        fields["min_tokens"] = Raw(_encode(max(0, least - used)))
    size = request.prompt_bytes + len(memoryview(fields["messages"])) - len(memoryview(broken.fields["messages"]))
    again = replace(request, fields=fields, limits=limits, prompt_bytes=size, exact={}, refused=None)
    return Continuation(again, repeated, sent.prompt, used)


def with_message(messages: Raw, text: str) -> Raw:
    """The messages (a JSON list that is not empty) and one more, of the assistant, with this text."""
    listed = bytes(messages).rstrip()
    return Raw(listed[:-1] + b"," + _encode({"role": "assistant", "content": text}) + b"]")


def alias_for_continuation(alias: Alias) -> Alias:
    """The alias for the request that continues: its params are in the fields already, and once is enough."""
    return replace(alias, params={}, min_max_tokens=None, resume=False)
