"""The model in the memory of a server that loads on demand, and a load of it."""

from __future__ import annotations

from math import inf
from typing import NamedTuple, Protocol

LOOKS_APART = 0.4  # seconds between two looks at what is in memory that show whether an expiry moves


class HeldModel(NamedTuple):
    """A model in the memory of a server that loads on demand. `window`: tokens, 0 = not told. `until`: Unix seconds at
    which the server unloads it if nobody uses it before; infinite = never. `bytes`: what it takes of the memory.
    `seen`: Unix seconds."""

    window: int
    until: float
    bytes: int = 0
    seen: float = 0.0

    def is_loading(self, before: HeldModel | None) -> bool:
        """Is it still being loaded? Its expiry then moves with the time. `before`: as it was seen before."""
        if before is None or self.seen - before.seen < LOOKS_APART or self.until == inf:
            return False
        return abs((self.until - before.until) - (self.seen - before.seen)) < LOOKS_APART / 4


class ModelLoad(Protocol):
    """A load of a model that the gateway has asked for. `window`: tokens, None = the server's own default. `since`:
    monotonic seconds."""

    window: int | None
    since: float

    def cancel(self) -> None: ...
