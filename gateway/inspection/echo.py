"""Whose words are these? What a server quotes of a request says nothing about the server."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.request import InferenceRequest

READ_MOST = 2 * 1024 * 1024  # bytes of a body that are searched; of a larger one nothing is known

_decode = msgspec.json.Decoder(Any).decode


def says(request: InferenceRequest, phrase: str, unknown: bool) -> bool:
    """Does the client's body say this phrase, in a text or a key of any of its fields? `unknown` is the answer for a
    body that is too large to be searched. It reads the body again, so only after a refusal."""
    if sum(len(memoryview(raw)) for raw in request.fields.values()) > READ_MOST:
        return unknown
    wanted = phrase.casefold()
    return any(_within(raw, wanted) for raw in request.fields.values())


def asked_about(request: InferenceRequest, phrase: str) -> bool:
    """Do the messages of the client (not the model's own earlier turns) say this phrase?"""
    raw = request.fields.get("messages")
    if raw is None or len(memoryview(raw)) > READ_MOST:
        return raw is not None
    try:
        messages = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    wanted = phrase.casefold()
    return any(
        _found(message, wanted)
        for message in (messages if isinstance(messages, list) else [messages])
        if not (isinstance(message, dict) and message.get("role") == "assistant")
    )


def _within(raw: msgspec.Raw, wanted: str) -> bool:
    try:
        return _found(_decode(raw), wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True


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
