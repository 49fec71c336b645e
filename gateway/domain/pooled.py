"""Requests for vectors and scores: how many inputs they have, how many results they get, and what is known of the
backends that serve them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw

from gateway.domain.body import UNREADABLE, value_of
from gateway.domain.endpoints import EMBEDDINGS, RERANK
from gateway.domain.request import InferenceRequest

_decode_items = msgspec.json.Decoder(list[Raw]).decode
_LISTED = (0x22, 0x5B)  # a text, or a list of tokens or of messages: one input each
_BRACKET, _BRACE = ord("["), ord("{")
_NUMBER = frozenset(b"-0123456789")
_PAIRS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
_TRUNCATES = ("truncate_prompt_tokens", "truncate")  # vLLM's; that of Ollama, TEI and Cohere


class PooledFacts(NamedTuple):
    """What answers and refusals of one backend have shown. `dimensions`: numbers in one of its embeddings;
    `most_inputs`: inputs that it takes in one request; `served`: names of the endpoints that it has answered."""

    dimensions: int | None = None
    most_inputs: int | None = None
    served: frozenset[str] = frozenset()


NO_POOLED_FACTS = PooledFacts()


def count_inputs(request: InferenceRequest) -> int | None:
    """The texts to embed, the documents to rank, the pairs to score; None = cannot be counted (the backend says what is
    wrong with them)."""
    fields = request.fields
    if request.endpoint is EMBEDDINGS:
        return _texts(fields.get("input", fields.get("messages")))
    if request.endpoint is RERANK:
        return _members(fields.get("documents"))
    first, second = next(((a, b) for a, b in _PAIRS if a in fields and b in fields), ("", ""))
    sides = _members(fields.get(first)), _members(fields.get(second))
    return None if sides[0] is None or sides[1] is None else max(sides[0], sides[1])


def is_cut_to_fit(fields: Mapping[str, Raw]) -> bool:
    """Does the request ask that an input over the window is cut instead of refused?"""
    return any(value_of(fields.get(name)) not in (None, False, 0, "NONE", "none") for name in _TRUNCATES)


def _items(raw: Raw) -> list[Raw] | None:
    try:
        return _decode_items(raw)
    except UNREADABLE:
        return None


def _texts(raw: Raw | None) -> int | None:
    """A string, a list of tokens (llama-server takes texts among them) and one conversation are one text; a list of any
    of them is many, and so is one of objects that are no messages: Jina's `{"text"}` and `{"image"}`."""
    if raw is None:
        return None
    if memoryview(raw)[0] != _BRACKET:
        return 1
    items = _items(raw)
    if not items:
        return None
    first = memoryview(items[0])[0]
    if first == _BRACE:
        return 1 if _is_message(items[0]) else len(items)
    return len(items) if first in _LISTED and not any(memoryview(item)[0] in _NUMBER for item in items) else 1


def _is_message(raw: Raw) -> bool:
    found = value_of(raw)
    return isinstance(found, dict) and "role" in found


def _members(raw: Raw | None) -> int | None:
    """A list's members; anything else is one."""
    if raw is None:
        return None
    if memoryview(raw)[0] != _BRACKET:
        return 1
    items = _items(raw)
    return len(items) if items else None
