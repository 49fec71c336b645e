"""The memory that `server.memory` limits: the bytes of request bodies and of whole answers that the gateway holds.

A request's bytes are counted as they arrive, not by its content-length, and are released at its end. Streams are not
counted, because only a bounded part of each is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.errors import GatewayError

SMALL = 64 * 1024  # bytes; smaller requests may use the reserve
TINY = 4 * 1024  # bytes; of smaller requests no account is kept
RESERVE_MOST = 16 * 1024 * 1024  # bytes of the reserve at most
RETRY_AFTER = 2.0  # seconds
FULL = "The gateway holds as many bytes of requests and answers as it may (`server.memory`); try again shortly."


class Sender(Protocol):
    @property
    def sender(self) -> str:
        """The name of the client whose request it is, or its address."""
        ...


class Memory:
    """The memory of all requests. `limit` in bytes (None = no limit), `used`: bytes in use. The last sixteenth is
    reserved for small requests, so that large ones cannot lock them out; the quarter before it for clients whose other
    requests hold less than a quarter, so that one client cannot lock out the others. `held`: bytes by client, without
    tiny requests. `on_full` is called at each refusal."""

    __slots__ = ("held", "large", "limit", "on_full", "quarter", "refused", "used")

    def __init__(self, limit: int | None, on_full: Callable[[], None] = lambda: None) -> None:
        self.limit = limit
        self.large = limit if limit is None else limit - min(limit // 16, RESERVE_MOST)
        self.quarter = 0 if limit is None else limit // 4
        self.used = 0
        self.held: dict[str, int] = {}
        self.refused = 0
        self.on_full = on_full

    def add(self, size: int, limit: int | None) -> None:
        """Count `size` more bytes. Raises `memory_full` if that would be more than `limit`."""
        used = self.used + size
        if limit is not None and used > limit:
            self.refused += 1
            self.on_full()
            raise GatewayError("memory_full", FULL, retry_after=RETRY_AFTER)
        self.used = used

    def hold(self, sender: str, size: int) -> None:
        """`sender` holds `size` more bytes, or less where that is negative."""
        held = self.held.get(sender, 0) + size
        if held:
            self.held[sender] = held
        else:
            self.held.pop(sender, None)

    def describe(self) -> dict[str, int | None]:
        """For `/status`, in bytes; `refused`: requests that were refused for lack of memory."""
        return {"used": self.used, "limit": self.limit, "refused": self.refused}


class Share:
    """The memory of one request; without a `client` it is charged to nobody. Released by `close`, or when the object is
    collected."""

    __slots__ = ("_client", "_held", "_memory", "_sender", "size")

    def __init__(self, memory: Memory, client: Sender | None = None) -> None:
        self._memory = memory
        self._client = client
        self._sender = ""
        self._held = 0  # bytes that are counted for the client
        self.size = 0

    @property
    def memory(self) -> Memory:
        return self._memory

    def sibling(self) -> Share:
        """An empty share of the same memory, for the same client."""
        return Share(self._memory, self._client)

    def add(self, size: int) -> None:
        """Count `size` more bytes. Raises `memory_full` if they exceed the limit; then nothing is counted."""
        own = self.size + size
        if own <= TINY:
            self._memory.add(size, self._memory.limit)
        else:
            self._add_counted(size, own)
        self.size = own

    def _add_counted(self, size: int, own: int) -> None:
        memory = self._memory
        limit = memory.limit if own <= SMALL else memory.large
        if limit is None or memory.large is None or self._client is None:
            memory.add(size, limit)
            return
        self._sender = self._sender or self._client.sender
        if memory.held.get(self._sender, 0) - self._held >= memory.quarter:
            limit = memory.large - memory.quarter
        memory.add(size, limit)
        self._hold(own)

    def _hold(self, size: int) -> None:
        """So many bytes are counted for the client."""
        self._memory.hold(self._sender, size - self._held)
        self._held = size

    def release(self, size: int) -> None:
        """Release `size` bytes."""
        self._memory.used -= size
        self.size -= size
        if self._held:
            self._hold(self.size)

    def close(self) -> None:
        self._memory.used -= self.size
        self.size = 0
        if self._held:
            self._hold(0)

    __del__ = close  # for a request that was dropped before it was handled
