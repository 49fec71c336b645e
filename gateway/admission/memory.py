"""The memory that `server.memory` limits: the bytes of request bodies and of whole answers that the gateway holds.

A request's bytes are counted as they arrive, not by its content-length, and are released at its end. Streams are not
counted, because only a bounded part of each is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.errors import GatewayError

SMALL = 64 * 1024  # bytes; smaller requests may use the reserve
RESERVE_MOST = 16 * 1024 * 1024  # bytes of the reserve at most
RETRY_AFTER = 2.0  # seconds
FULL = "The gateway holds as many bytes of requests and answers as it may (`server.memory`); try again shortly."


class Memory:
    """The memory of all requests. `limit` in bytes (None = no limit), `used`: bytes in use. The last sixteenth is
    reserved for small requests, so that large ones cannot lock them out. `on_full` is called at each refusal."""

    __slots__ = ("drop_kept", "large", "limit", "on_full", "refused", "used")

    def __init__(self, limit: int | None, on_full: Callable[[], None] = lambda: None) -> None:
        self.limit = limit
        self.large = limit if limit is None else limit - min(limit // 16, RESERVE_MOST)
        self.used = 0
        self.refused = 0
        self.on_full = on_full
        self.drop_kept: Callable[[], None] = lambda: None  # drops bytes that are held for no request (joins.py)

    def has_room(self, size: int) -> bool:
        """Is there room for so many bytes that are held for no request?"""
        return self.large is None or self.used + size <= self.large

    def used_without_kept(self) -> int:
        self.drop_kept()
        return self.used

    def describe(self) -> dict[str, int | None]:
        """For `/status`, in bytes; `refused`: requests that were refused for lack of memory."""
        return {"used": self.used, "limit": self.limit, "refused": self.refused}


class Share:
    """The memory of one request. Released by `close`, or when the object is collected."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.size = 0

    def sibling(self) -> Share:
        """An empty share of the same memory."""
        return Share(self._memory)

    def add(self, size: int) -> None:
        """Count `size` more bytes. Raises `memory_full` if they exceed the limit; then nothing is counted."""
        memory = self._memory
        used, own = memory.used + size, self.size + size
        limit = memory.large if own > SMALL else memory.limit
        if limit is not None and used > limit and (used := memory.used_without_kept() + size) > limit:
            memory.refused += 1
            memory.on_full()
            raise GatewayError("memory_full", FULL, retry_after=RETRY_AFTER)
        memory.used, self.size = used, own

    def release(self, size: int) -> None:
        """Release `size` bytes."""
        self._memory.used -= size
        self.size -= size

    def close(self) -> None:
        self._memory.used -= self.size
        self.size = 0

    __del__ = close  # for a request that was dropped before it was handled
