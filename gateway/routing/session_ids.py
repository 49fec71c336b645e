"""The id of a session, as clients send it: a header, or a field of the body. It is compared whole, and only among the
requests of one client. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.body import value_of

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
        if name in fields and (session := _of_field(value_of(fields[name]))) is not None:
            return session
    return None


def _of_field(value: Any) -> bytes | None:
    return _text(value.get("id") if isinstance(value, dict) else value)


def _text(value: Any) -> bytes | None:
    return value.encode(errors="surrogatepass") if isinstance(value, str) and value else None


def sent_on(session: bytes | None, key: bytes) -> str:
    """The session's id for a server that reads one: the client's own where a header can carry it, else one made of the
    conversation's `key`."""
    text = (session or b"").decode("latin-1")
    if len(text) <= SENT_MOST and _PLAIN.fullmatch(text):
        return text
    return blake2b(session or key, digest_size=16).hexdigest()
