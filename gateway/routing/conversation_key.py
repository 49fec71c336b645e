"""The key of a conversation: the id of its session, as clients send it, or what is the same in all its requests. It is
compared whole, and only among the requests of one client. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.body import value_of
from gateway.domain.request import InferenceRequest

TRIES = 7  # attempts to find the end of the first user message in a part of the text
SHORT = 1024  # bytes of a conversation that is read whole: looking for its beginning would cost more
KEY_BYTES = 8192  # of the first system and the first user message
CLAUDE_CODE = b"x-claude-code-session-id"  # comes before the id in a body of the Messages API
HEADERS = (
    CLAUDE_CODE,
    b"session-id",  # Codex
    b"session_id",  # older ones, and pi
    b"x-openwebui-chat-id",
    b"x-session-affinity",  # opencode with a provider of one's own
    b"x-session-id",  # many routers
    b"x-opencode-session",
    b"x-smg-routing-key",
)
"""In their order; behind all of them come FIELDS."""
FIELDS = ("prompt_cache_key", "conversation")
SENT_MOST = 256  # characters of an id that is sent on as it is
_OLDER_USER_ID = re.compile(r"_session_([^\s]+)\Z")  # `user_HASH_account_UUID_session_UUID`
_PLAIN = re.compile(r"[\x21-\x7e]+")


def affinity_key(request: InferenceRequest, session: bytes | None, client: str, alias: str) -> bytes:
    """A key that is the same for all requests of a session, and of this client alone: the client with the id that it
    sends (`session_id`), else with the alias and the beginning of the conversation."""
    if session is not None:
        return b"\0".join((client.encode(), session))
    return b"\0".join((client.encode(), alias.encode(), *_beginnings(request)))


class _Message(msgspec.Struct):
    role: Any = None
    content: msgspec.Raw = msgspec.Raw(b"")


_decode_messages = msgspec.json.Decoder(list[_Message]).decode


def _beginnings(request: InferenceRequest) -> list[bytes]:
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


def session_in_headers(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The first id among the headers. (`traceparent` does not serve: many clients change it per request.)"""
    for name in HEADERS:
        if session := headers.get(name):
            return session
    return None


def session_in_user_id(metadata: Any) -> bytes | None:
    """The session in `metadata.user_id` of a Messages request: JSON with `session_id`, or the older text."""
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user_id, str):
        return None
    if (older := _OLDER_USER_ID.search(user_id)) is not None:
        return older[1].encode(errors="surrogatepass")
    if not user_id.startswith("{"):
        return None
    try:
        told = msgspec.json.decode(user_id)
    except (msgspec.DecodeError, RecursionError):
        return None
    return _text(told.get("session_id")) if isinstance(told, dict) else None


def session_id(
    headers: Mapping[bytes, bytes], named: bytes | None, translated: bytes | None, fields: Mapping[str, Raw]
) -> bytes | None:
    """The id of the request's session; None: the client sends none. `named`: what `session_in_headers` found;
    `translated`: the one in the body that was translated into `fields`."""
    if translated is not None and not headers.get(CLAUDE_CODE):
        return translated
    if named is not None:
        return named
    for name in FIELDS:
        if name not in fields:
            continue
        value = value_of(fields[name])
        if (session := _text(value.get("id") if isinstance(value, dict) else value)) is not None:
            return session
    return None


def _text(value: Any) -> bytes | None:
    return value.encode(errors="surrogatepass") if isinstance(value, str) and value else None


def sent_on(session: bytes | None, key: bytes) -> str:
    """The session's id for a server that reads one: the client's own where a header can carry it, else one made of the
    conversation's `key`."""
    text = (session or b"").decode("latin-1")
    if len(text) <= SENT_MOST and _PLAIN.fullmatch(text):
        return text
    return blake2b(session or key, digest_size=16).hexdigest()
