"""The text of a stream that the client has got so far, for answers that may have to be continued elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from gateway.domain.tokens import count_of
from gateway.errors import GatewayError
from gateway.transport.sse import (
    DONE,
    Choice,
    Framer,
    content_of,
    data_of,
    has_other_content,
    has_reasoning,
    read_chunk,
)

UNREAD_MOST = 64 * 1024  # bytes of events that are kept before their text is taken out
TEXT_MOST = 1024 * 1024  # characters: a longer text is not kept


class SentText:
    """`add` takes what was sent, whole events. `count` is called with the size of the text that is kept, in characters;
    if it raises a GatewayError, no more is kept. The other attributes read the events first.

    `is_plain`: nothing but text was sent, and its end was not."""

    def __init__(self, count: Callable[[int], object]) -> None:
        self._count = count
        self._unread: list[bytes] = []
        self._waiting = 0  # bytes of them
        self._parts: list[str] = []
        self._size = 0  # characters of the text
        self._events = 0  # with text
        self._blank = 0
        self._prompt = 0  # tokens of the prompt, as the last usage in the stream says
        self._reported = 0  # the same for the answer
        self._plain = True

    def add(self, data: bytes) -> None:
        """Add events that were sent."""
        self._unread.append(data)
        self._waiting += len(data)
        if self._waiting > UNREAD_MOST:
            self._read()

    @property
    def is_plain(self) -> bool:
        self._read()
        return self._plain

    @property
    def text(self) -> str:
        self._read()
        return "".join(self._parts)

    @property
    def tokens(self) -> int:
        """Tokens of the text: the engine's count where the stream has one, else one for each event with text."""
        self._read()
        return self._reported or self._events

    @property
    def blank(self) -> int:
        """How many of the last events with text had only white space."""
        self._read()
        return self._blank

    @property
    def prompt(self) -> int | None:
        """Tokens of the prompt by the engine's count; None where the stream has none."""
        self._read()
        return self._prompt or None

    def _read(self) -> None:
        if not self._unread:
            return
        data = b"".join(self._unread)
        self._unread.clear()
        self._waiting, before = 0, self._size
        framer = Framer()
        for event in (*framer.feed(data), *framer.finish()):
            if self._plain:
                self._read_event(event)
        try:
            self._count(self._size - before)
        except GatewayError:
            self._plain = False
        if not self._plain or self._size > TEXT_MOST:
            self._plain = False
            self._parts.clear()

    def _read_event(self, event: bytes) -> None:
        data = data_of(event)
        if not data:
            return  # a comment
        chunk = read_chunk(data) if data != DONE else None
        if chunk is None or len(chunk.choices or ()) > 1:
            self._plain = False
            return
        if isinstance(chunk.usage, dict):
            self._prompt = count_of(chunk.usage.get("prompt_tokens")) or self._prompt
            self._reported = count_of(chunk.usage.get("completion_tokens")) or self._reported
        for choice in chunk.choices or ():
            self._read_choice(choice)

    def _read_choice(self, choice: Choice) -> None:
        delta = choice.delta if isinstance(choice.delta, dict) else {}
        text = content_of(choice)
        odd = choice.index != 0 or choice.finish_reason is not None or (delta.get("content") and not text)
        if odd or has_reasoning(choice) or has_other_content(delta):
            self._plain = False
        elif text:
            self._parts.append(text)
            self._size += len(text)
            self._events += 1
            self._blank = self._blank + 1 if text.isspace() else 0
