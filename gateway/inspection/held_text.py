"""When to look again at a call that is not complete yet."""

from __future__ import annotations

import re

ALWAYS = 16  # characters up to which every new piece is a reason to look
LONG = 4096  # characters from which it must grow fourfold, not only double
EFFORT = 1  # characters read per character held because something closes, beyond the first `FREE`
FREE = 1 << 16
_NOTHING = re.compile(r"(?!)")
_TAIL = 32  # characters of what came before in which a closing string may have begun


class Hold:
    """Text held back from `offset` (of the whole text) on. Every look reads all of it, so looks are rationed: their
    cost stays within a fixed factor of the length. That delays a call at most, and what it is does not depend on it."""

    __slots__ = ("_again", "_most", "_parts", "_seen", "_size", "_spent", "_tail", "closing", "offset")

    def __init__(self, offset: int, size: int, most: int) -> None:
        self.offset = offset
        self._size = self._seen = size
        self.closing = _NOTHING  # what may complete the call
        self._most = most
        self._spent = 0
        self._parts: list[str] = []
        self._tail = ""
        self._again = False  # what follows a closing string may be what completes a call

    def worth_a_look(self, text: str) -> bool:
        """Takes more text. True while it is short (prose is let go quickly), when something closes and at what
        comes after that, when it has grown much, and when it is too long."""
        self._parts.append(text)
        size = self._size = self._size + len(text)
        recent = self._tail + text
        closed = self.closing.search(recent)
        if closed is not None:
            self._tail = recent[max(closed.end(), len(recent) - _TAIL) :]
            look = self._again = True
        else:
            self._tail = recent[-_TAIL:]
            look = False
            if self._again:
                self._again = text.isspace()
                look = not self._again
        if size <= ALWAYS or size >= self._most or size >= self._seen * (2 if size < LONG else 4):
            return True
        return look and self._spent + size <= EFFORT * size + FREE

    def take(self) -> str:
        """The text since the last look."""
        text = "".join(self._parts)
        self._parts.clear()
        self._seen = self._size
        if self._size > ALWAYS:
            self._spent += self._size
        return text
