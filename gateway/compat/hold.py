"""When to look again at a call that is not complete yet."""

from __future__ import annotations

import re

ALWAYS = 32  # characters up to which every new piece is a reason to look
EFFORT = 8  # characters read per character held, beyond those that are
FREE = 1 << 17
_TAIL = 32  # characters of what came before in which a closing string may have begun


class Hold:
    """Text held back from `offset` (of the whole text) on. Every look reads all of it, so looks are rationed: their
    cost stays within a fixed factor of the length. That delays a call at most, and what it is does not depend on it."""

    __slots__ = ("_again", "_closing", "_most", "_parts", "_seen", "_size", "_spent", "_tail", "offset")

    def __init__(self, offset: int, size: int, closing: re.Pattern[str], most: int) -> None:
        self.offset = offset
        self._size = self._seen = size
        self._closing = closing
        self._most = most
        self._spent = 0
        self._parts: list[str] = []
        self._tail = ""
        self._again = False  # what follows a closing string may be what completes a call

    def worth_a_look(self, text: str) -> bool:
        """Takes more text. True while it is short (prose is let go quickly), when something closes and once more after
        that, when it has grown by half, and when it is too long."""
        self._parts.append(text)
        self._size += len(text)
        recent = self._tail + text
        closed, again = self._closing.search(recent), self._again
        self._tail = recent[max(closed.end() if closed else 0, len(recent) - _TAIL) :]
        self._again = closed is not None
        if self._size <= ALWAYS or self._size >= self._most or self._size * 2 >= self._seen * 3:
            return True
        return (again or closed is not None) and self._spent + self._size <= EFFORT * self._size + FREE

    def take(self) -> str:
        """The text since the last look."""
        text = "".join(self._parts)
        self._parts.clear()
        self._seen = self._size
        if self._size > ALWAYS:
            self._spent += self._size
        return text
