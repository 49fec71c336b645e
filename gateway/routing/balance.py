"""The order of the members of one step that can serve: by health, free slots, and the step's `balance`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from gateway.config.snapshot import Balance
from gateway.domain.backend import BackendState
from gateway.domain.health_state import SUSPECT

LEAD = 2  # a session leaves its replica when that has so many more in flight than the least busy one


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
        and (member.under_way if member.siblings else member.inflight + member.shared.elsewhere) < member.slots
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
