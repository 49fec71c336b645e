"""What `server.memory` bounds: the bytes of request bodies and of answers in one piece that the gateway holds.

A request's bytes are counted as they arrive, so nobody reserves what it does not send, and are given back at its end.
Streams are not counted: of each of them a bounded part is here at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.errors import GatewayError

SMALL = 64 * 1024  # bytes: requests up to here may use the reserve
RESERVE_MOST = 16 * 1024 * 1024  # bytes that are kept for them, of large budgets
RETRY_AFTER = 2.0  # seconds
FULL = "The gateway holds as many bytes of requests and answers as it may (`server.memory`); try again shortly."


class Memory:
    """`limit` in bytes, None = there is none; `used` of them now. The last sixteenth is for small requests: large ones
    cannot keep them out. `on_full` is called with each refusal."""

    __slots__ = ("large", "limit", "on_full", "refused", "used")

    def __init__(self, limit: int | None, on_full: Callable[[], None] = lambda: None) -> None:
        self.limit = limit
        self.large = limit if limit is None else limit - min(limit // 16, RESERVE_MOST)
        self.used = 0
        self.refused = 0
        self.on_full = on_full

    def describe(self) -> dict[str, int | None]:
        """For `/status`, in bytes; `refused`: how many requests it has cost."""
        return {"used": self.used, "limit": self.limit, "refused": self.refused}


class Share:
    """What one request holds. Given back by `close`, or when nothing refers to it any more."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.size = 0

    def take(self, size: int) -> None:
        """Count so many bytes more. Raises `memory_full` when they have no room; what it had stays its own."""
        memory = self._memory
        used, own = memory.used + size, self.size + size
        limit = memory.large if own > SMALL else memory.limit
        if limit is not None and used > limit:
            memory.refused += 1
            memory.on_full()
            raise GatewayError("memory_full", FULL, retry_after=RETRY_AFTER)
        memory.used, self.size = used, own

    def give(self, size: int) -> None:
        """So many of its bytes are held no longer."""
        self._memory.used -= size
        self.size -= size

    def close(self) -> None:
        self._memory.used -= self.size
        self.size = 0

    __del__ = close  # of a request that was thrown away before anything was made of it
