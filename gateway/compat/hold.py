"""When to look again at a call that is not complete yet."""

from __future__ import annotations

ALWAYS = 512  # characters up to which every new piece is a reason to look
EFFORT = 8  # characters read per character held, beyond those that are
FREE = 1 << 17
_TAIL = 64


class Hold:
    """Text held back from `offset` (of the whole text) on. Every look reads all of it, so looks are rationed: their
    cost stays within a fixed factor of the length. That delays a call at most, and what it is does not depend on it."""

    __slots__ = ("_closers", "_most", "_parts", "_seen", "_size", "_spent", "_tail", "offset")

    def __init__(self, offset: int, size: int, closers: tuple[str, ...], most: int) -> None:
        self.offset = offset
        self._size = self._seen = size
        self._closers = closers
        self._most = most
        self._spent = 0
        self._parts: list[str] = []
        self._tail = ""

    def worth_a_look(self, text: str) -> bool:
        """Takes more text. True while it is short (prose is let go quickly), when something closes, when it has grown
        by a quarter, and when it is too long."""
        self._parts.append(text)
        self._size += len(text)
        recent = self._tail + text
        self._tail = recent[-_TAIL:]
        if self._size <= ALWAYS or self._size >= self._most or self._size * 4 >= self._seen * 5:
            return True
        affordable = self._spent + self._size <= EFFORT * self._size + FREE
        return affordable and any(closer in recent for closer in self._closers)

    def take(self) -> str:
        """The text since the last look."""
        text = "".join(self._parts)
        self._parts.clear()
        self._seen = self._size
        if self._size > ALWAYS:
            self._spent += self._size
        return text
