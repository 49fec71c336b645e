"""Bytes that a reader keeps until more of an answer has come."""

from __future__ import annotations

from gateway.transport.upload import Counted

FREE = 64 * 1024  # bytes that are not counted: no more than a read brings


class HeldBytes:
    """How many bytes a reader keeps, counted in `memory` (None = not at all) while they are more than FREE."""

    __slots__ = ("_memory", "_size")

    def __init__(self, memory: Counted | None) -> None:
        self._memory = memory
        self._size = 0

    def set(self, size: int) -> None:
        """So many are kept now. Raises what counting raises."""
        size = size if size > FREE else 0
        if self._memory is None or size == self._size:
            return
        if size > self._size:
            self._memory.add(size - self._size)
        else:
            self._memory.release(self._size - size)
        self._size = size
