"""Remembers heads beyond their connection: some clients open a new one for each request, and send the same head on it.

Only a head that an admitted client has sent twice is kept, so that heads which never come again (with a trace in them)
displace none that do.
"""

from __future__ import annotations

from gateway.config.snapshot import Snapshot
from gateway.http.request_head import RepeatedHead, around_length

KEPT = 64  # heads, and as many that were seen once

Key = tuple[str, bytes, bytes]  # (the client's address, the head before the number of its length, and behind it)


class KnownHeads:
    """The heads of one listener's connections, for one snapshot. The ones used last stay. `at_once`: a head that
    has come once is kept."""

    def __init__(self, *, at_once: bool = False) -> None:
        self._at_once = at_once
        self._snapshot: Snapshot | None = None
        self._known: dict[Key, RepeatedHead] = {}
        self._once: dict[Key, None] = {}

    def find(self, snapshot: Snapshot, peer: str, raw: bytes) -> RepeatedHead | None:
        """What recognises the head `raw` (everything before the empty line), if this address has sent it before."""
        self._follow(snapshot)
        if not self._known or (parts := around_length(raw)) is None:
            return None
        key = (peer, *parts)
        found = self._known.pop(key, None)
        if found is not None:
            self._known[key] = found
        return found

    def note(self, snapshot: Snapshot, peer: str, repeated: RepeatedHead) -> None:
        """A client that was admitted has sent this head, which was not known."""
        self._follow(snapshot)
        key = (peer, *repeated.parts)
        if key not in self._once and not self._at_once:
            self._once[key] = None
            _drop_oldest(self._once)
            return
        self._once.pop(key, None)
        self._known[key] = repeated
        _drop_oldest(self._known)

    def _follow(self, snapshot: Snapshot) -> None:
        """Who may do what has changed: what was found out about heads is forgotten, and the old snapshot with it."""
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            self._known.clear()
            self._once.clear()


def _drop_oldest(heads: dict[Key, RepeatedHead] | dict[Key, None]) -> None:
    if len(heads) > KEPT:
        del heads[next(iter(heads))]
