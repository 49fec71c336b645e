"""The order of the members of one step that can serve: by health, free slots, and the step's way of balancing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from gateway.config.snapshot import Balance
from gateway.fleet import BackendState
from gateway.health.state import State
from gateway.routing.request import InferenceRequest

LEAD = 2  # a session leaves its replica when that has so many more in flight than the least busy one
KEY_BYTES = 8192  # of the first system and the first user message
SESSION_HEADERS = (b"x-claude-code-session-id", b"x-openwebui-chat-id")


def order(
    members: Sequence[BackendState], balance: Balance, turn: int, key: Callable[[], bytes], now: float = 0.0
) -> Sequence[BackendState]:
    """Best first. `turn` counts this alias' requests; `key` gives the session's affinity key and is only called when
    there is a choice to make."""
    if len(members) < 2:
        return members
    if balance == "affinity":
        ordered = _by_affinity(members, key())
    else:
        ordered = [members[(turn + i) % len(members)] for i in range(len(members))]
        if balance == "least_busy":
            ordered.sort(key=lambda m: m.under_way)
    # Stable: health first (one that is due for a trial gets this request), then a free slot, then the balancing above.
    ordered.sort(key=lambda m: (_doubt(m, now), m.under_way >= m.slots))
    return ordered


def _doubt(member: BackendState, now: float) -> int:
    if member.health.state is not State.SUSPECT:
        return 1
    return 0 if member.health.due(now) else 2


def _by_affinity(members: Sequence[BackendState], key: bytes) -> list[BackendState]:
    """Rendezvous hashing over names, so that a session stays where its prefix is cached and only the sessions of a
    replica that goes away move. A deviation under load does not re-pin: the hash is asked anew each time."""
    begun = blake2b(key, digest_size=8)  # the key may be long: it is hashed once for all members

    def score(member: BackendState) -> bytes:
        hashed = begun.copy()
        hashed.update(member.name.encode())
        return hashed.digest()

    ordered = sorted(members, key=score, reverse=True)
    least = min(m.under_way for m in members)
    if ordered[0].under_way - least >= LEAD:
        ordered.sort(key=lambda m: m.under_way)
    return ordered


def affinity_key(request: InferenceRequest, headers: Mapping[bytes, bytes], client: str, alias: str) -> bytes:
    """What stays the same over a session: the client's own session id where it sends one, else who asks, whom, and how
    the conversation began. (`traceparent` changes per request with many clients.)"""
    for name in SESSION_HEADERS:
        if session := headers.get(name):
            return session
    if (cache_key := request.fields.get("prompt_cache_key")) is not None:
        return bytes(cache_key)
    return b"\0".join((client.encode(), alias.encode(), *_beginnings(request)))


class _Message(msgspec.Struct):
    role: Any = None
    content: msgspec.Raw = msgspec.Raw(b"")


_decode_messages = msgspec.json.Decoder(list[_Message]).decode


def _beginnings(request: InferenceRequest) -> list[bytes]:
    raw = request.fields.get(request.endpoint.prompt[0])
    if raw is None:
        return []
    try:
        messages = _decode_messages(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [bytes(raw)[:KEY_BYTES]]
    found = []
    wanted = ["system", "user"]
    for message in messages:
        if message.role in wanted:
            wanted.remove(message.role)
            found.append(bytes(message.content)[:KEY_BYTES])
            if not wanted:
                break
    return found
