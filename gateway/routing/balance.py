"""The order of the members of one step that can serve: by health, free slots, and the step's `balance`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from gateway.config.snapshot import Balance
from gateway.domain.backend import BackendState
from gateway.domain.health_state import SUSPECT
from gateway.domain.request import Endpoint

LEAD = 2  # a session leaves its replica when that has so many more in flight than the least busy one
TRIES = 7  # attempts to find the end of the first user message in a part of the text
SHORT = 1024  # bytes of a conversation that is read whole: looking for its beginning would cost more
KEY_BYTES = 8192  # of the first system and the first user message
SESSION_HEADERS = (b"x-claude-code-session-id", b"x-openwebui-chat-id")


def order(
    members: Sequence[BackendState], balance: Balance, turn: int, key: Callable[[], bytes], now: float = 0.0
) -> Sequence[BackendState]:
    """Best first. `turn` counts this alias' requests; `key` gives the conversation's affinity key and is only called
    when there is a choice to make."""
    if len(members) < 2:
        return members
    if balance == "affinity":
        ordered = _by_affinity(members, key())
    else:
        ordered = [members[(turn + i) % len(members)] for i in range(len(members))]
        if balance == "least_busy":
            ordered.sort(key=lambda m: m.under_way)
    for member in members:
        if not _only_balanced(member):
            break
    else:
        return ordered
    # Stable: health first (one that is due for a trial gets this request), then one whose model is loaded, then a free
    # slot, then the balancing above.
    ordered.sort(key=lambda m: (_doubt(m, now), m.reported.loaded is False, m.under_way >= m.slots))
    return ordered


def _only_balanced(member: BackendState) -> bool:
    """Does nothing but the balancing decide its place?"""
    return (
        member.health.state is not SUSPECT
        and member.reported.loaded is not False
        and member.inflight + member.shared.elsewhere < member.slots
    )


def _doubt(member: BackendState, now: float) -> int:
    if member.health.state is not SUSPECT:
        return 1
    return 0 if member.health.due(now) else 2


def _by_affinity(members: Sequence[BackendState], key: bytes) -> list[BackendState]:
    """Rendezvous hashing over names, so that a session stays where its prefix is cached and only the sessions of a
    replica that goes away move. A deviation under load moves a session for one request only: the next request is
    hashed again."""
    begun = blake2b(key, digest_size=8)  # the key may be long: it is hashed once for all members

    def score(member: BackendState) -> bytes:
        hashed = begun.copy()
        hashed.update(member.name.encode())
        return hashed.digest()

    ordered = sorted(members, key=score, reverse=True)
    lead = ordered[0].under_way - LEAD
    if lead >= 0 and min([m.under_way for m in members]) <= lead:
        ordered.sort(key=lambda m: m.under_way)
    return ordered


def session_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The client's session id, if it sends one. (`traceparent` does not serve: many clients change it per request.)"""
    return next((session for name in SESSION_HEADERS if (session := headers.get(name))), None)


class PromptRequest(Protocol):
    """A request, as far as its prompt goes."""

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def fields(self) -> Mapping[str, msgspec.Raw]: ...


def affinity_key(request: PromptRequest, session: bytes | None, client: str, alias: str) -> bytes:
    """A key that is the same for all requests of a session: its id where the client sends one (`session_of`), else the
    client, the alias and the beginning of the conversation."""
    if session:
        return session
    if (cache_key := request.fields.get("prompt_cache_key")) is not None:
        return bytes(cache_key)
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
