"""Since when each backend with `run: on_request` runs, and since when it is idle. Kept in `server.data`, so that a
restart of the gateway goes on counting."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from gateway.config.sources import read_file, replace_file
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State

log = logging.getLogger("gateway")

FILE = "on_request.json"
FILE_MOST = 64 * 1024  # bytes; a longer one was not written by a gateway
_RUNNING = frozenset({State.READY, State.BUSY, State.SUSPECT, State.MISCONFIGURED})
_GONE = frozenset({State.PARKED, State.DRAINING})


class Use(msgspec.Struct):
    """Unix seconds: when it became ready, and when it last had work."""

    ran_since: float
    used_at: float


class UseTracker:
    """`known`: backend -> its use, of those that run. `changed`: something is known that was not stored."""

    def __init__(self, folder: Path) -> None:
        self.known: dict[str, Use] = {}
        self.changed = False
        self._folder = folder

    def load(self) -> None:
        """Read what was stored. Blocks. A file that cannot be read counts as none: what runs has just become idle."""
        try:
            stored = msgspec.json.decode(read_file(self._folder / FILE, FILE_MOST, patience=0.0), type=dict[str, Use])
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            log.warning("%s cannot be read (%s): idle times begin at 0", self._folder / FILE, error)
            return
        now = time.time()  # the clock may have been set back
        self.known = {name: Use(min(use.ran_since, now), min(use.used_at, now)) for name, use in stored.items()}

    def save(self, encoded: bytes) -> None:
        """Store `encode()`. Blocks. A failed write is logged and ignored."""
        try:
            replace_file(self._folder / FILE, encoded)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._folder / FILE, error)

    def encode(self) -> bytes:
        self.changed = False
        return msgspec.json.encode(self.known)

    def look(self, states: Iterable[BackendState], waiting: Mapping[str, int]) -> None:
        """Note which of these backends have work now. `waiting`: backend -> requests in its queue."""
        now, present = time.time(), set()
        for state in states:
            present.add(state.name)
            use = self.known.get(state.name)
            if state.health.state in _GONE:
                self.changed |= self.known.pop(state.name, None) is not None
            elif state.health.state in _RUNNING and use is None:
                self.known[state.name] = Use(now, now)
                self.changed = True
            elif use is not None and (used := _used_at(state, waiting, now)) > use.used_at:
                use.used_at = used
                self.changed = True
        for name in self.known.keys() - present:
            del self.known[name]
            self.changed = True

    def idle(self, name: str) -> float | None:
        """Seconds since it last had work; None = it does not run."""
        use = self.known.get(name)
        return None if use is None else max(0.0, time.time() - use.used_at)


def has_work(state: BackendState, waiting: Mapping[str, int]) -> bool:
    """Does it have a request, of this gateway, another one or another client of the engine, or one that waits?"""
    return bool(state.under_way or state.shared.elsewhere_lately or state.foreign or waiting.get(state.name, 0))


def _used_at(state: BackendState, waiting: Mapping[str, int], now: float) -> float:
    """When it last had work, as far as is known here. Between two looks a request may have come and gone."""
    if has_work(state, waiting):
        return now
    answered = state.evidence.answered_at
    return now - (time.monotonic() - answered) if answered else 0.0
