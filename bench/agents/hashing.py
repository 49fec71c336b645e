"""Consistent hashing of sessions to replicas, by rendezvous."""

from __future__ import annotations

from hashlib import blake2b


def by_hash(key: str, count: int) -> list[int]:
    """The replicas of a key, its own first."""
    return sorted(range(count), key=lambda at: blake2b(f"{key}/{at}".encode(), digest_size=8).digest())
