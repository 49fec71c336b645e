"""The key of a conversation: what is the same in all its requests. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from gateway.domain.request import Endpoint

TRIES = 7  # attempts to find the end of the first user message in a part of the text
SHORT = 1024  # bytes of a conversation that is read whole: looking for its beginning would cost more
KEY_BYTES = 8192  # of the first system and the first user message


class PromptRequest(Protocol):
    """A request, as far as its prompt goes."""

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def fields(self) -> Mapping[str, msgspec.Raw]: ...


def affinity_key(request: PromptRequest, session: bytes | None, client: str, alias: str) -> bytes:
    """A key that is the same for all requests of a session, and of this client alone: the client with the id that it
    sends (session_ids.py), else with the alias and the beginning of the conversation."""
    if session is not None:
        return b"\0".join((client.encode(), session))
    return b"\0".join((client.encode(), alias.encode(), *_beginnings(request)))


class _Message(msgspec.Struct):
    role: Any = None
    content: msgspec.Raw = msgspec.Raw(b"")


_decode_messages = msgspec.json.Decoder(list[_Message]).decode


def _beginnings(request: PromptRequest) -> list[bytes]:
    """The contents of the first user message and of the first system message before it."""
    raw = request.fields.get(request.endpoint.prompt[0])
    if raw is None:
        return []
    text = bytes(raw)
    try:
        messages = (_first_messages(text) if len(text) > SHORT else None) or _decode_messages(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [text[:KEY_BYTES]]
    found: list[bytes] = []
    for message in messages:
        if message.role == "user":
            found.append(bytes(message.content)[:KEY_BYTES])
            break
        if message.role == "system" and not found:
            found.append(bytes(message.content)[:KEY_BYTES])
    return found


def _first_messages(text: bytes) -> list[_Message] | None:
    """The messages up to the first of the user, without reading the rest of a long conversation; None if their end is
    not found within a few attempts.

    A part of the list that ends with `}`, and is valid JSON when a `]` is appended, holds whole messages only: a
    part that was cut inside a message or a string would not be valid.
    """
    at = text.find(b'"user"')
    if at < 0:
        return None
    end = _end_before_next_role(text, at)
    for _ in range(TRIES):
        if not end:
            end = at = text.find(b"}", at) + 1
        if not end or 2 * end > len(text):  # reading a part would save little
            return None
        try:
            messages = _decode_messages(text[:end] + b"]")
            if messages[-1].role == "user":
                return messages
        except msgspec.DecodeError:
            pass
        end = 0
    return None


def _end_before_next_role(text: bytes, at: int) -> int:
    """Where the message at `at` ends by the role of the next one, which nearly always comes first in it; 0 = there is
    none."""
    following = text.find(b'"role"', at)
    return text.rfind(b"}", at, following) + 1 if following >= 0 else 0
