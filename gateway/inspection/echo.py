"""Does the client's own request contain a phrase? A phrase that a server quotes from the request is no evidence about
the server."""

from __future__ import annotations

from typing import Any

from gateway.domain.body import value_of
from gateway.domain.request import InferenceRequest

READ_MOST = 2 * 1024 * 1024  # bytes; a larger body is not searched


def mentions(request: InferenceRequest, phrase: str, unknown: bool) -> bool:
    """Does the client's body contain this phrase, in a string or a key of any field? `unknown` is the result for a body
    that is too large to be searched. It decodes the body again, so it is called only after a refusal."""
    if sum(len(memoryview(raw)) for raw in request.fields.values()) > READ_MOST:
        return unknown
    wanted = phrase.casefold()
    values = ((raw, value_of(raw)) for raw in request.fields.values())
    return any(bytes(raw) != b"null" if value is None else _found(value, wanted) for raw, value in values)


def client_mentions(request: InferenceRequest, phrase: str) -> bool:
    """Do the client's messages (not the model's own turns) contain this phrase? True if they are too large."""
    raw = request.fields.get("messages")
    if raw is None or len(memoryview(raw)) > READ_MOST:
        return raw is not None
    messages = value_of(raw)
    if messages is None:
        return True
    wanted = phrase.casefold()
    return any(
        _found(message, wanted)
        for message in (messages if isinstance(messages, list) else [messages])
        if not (isinstance(message, dict) and message.get("role") == "assistant")
    )


def _found(value: Any, wanted: str) -> bool:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if wanted in one.casefold():
                return True
        elif isinstance(one, dict):
            waiting.extend(one.keys())
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
    return False
