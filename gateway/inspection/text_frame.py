"""Recognises the events of a stream that differ from an earlier one only in their text, as nearly all do. Pure."""

from __future__ import annotations

from gateway.transport.sse import CR, is_plain

_KEY = b'"content"'
_QUOTE, _BACKSLASH, _LF = 34, 92, 10
LESS = 60  # "<", with which the tags of thoughts begin


class TextFrame:
    """The bytes before and after the text of one event, with which the text of another is found without parsing or
    searching. What is sent for that other event is its text between `sent_before` and `sent_after`."""

    __slots__ = ("_after", "_around", "_before", "sent_after", "sent_before")

    def __init__(self, event: tuple[bytes, bytes], sent: tuple[bytes, bytes]) -> None:
        self._before, self._after = event
        self._around = len(self._before) + len(self._after)
        self.sent_before, self.sent_after = sent

    @classmethod
    def of(cls, event: bytes, sent: bytes) -> TextFrame | None:
        """The frame of this event, for which `sent` is sent. None unless it is a plain delta with one text, whose bytes
        are the text's own."""
        found, told = _around_text(event), _around_text(sent)
        if found is None or told is None or not is_plain(event) or event.find(b"\n\n") != len(event) - 2 or CR in event:
            return None
        return cls(found, told)

    def text_in(self, data: bytes) -> bytes | None:
        """The text in `data`, if `data` is one whole event that otherwise equals the event of the frame. None = it is
        something else, or without text, or its text has to be decoded."""
        if len(data) <= self._around or not (data.startswith(self._before) and data.endswith(self._after)):
            return None
        text = data[len(self._before) : -len(self._after)]
        return None if _QUOTE in text or _BACKSLASH in text or _LF in text or CR in text else text


def _around_text(event: bytes) -> tuple[bytes, bytes] | None:
    before, found, rest = event.partition(_KEY + b':"')
    end = rest.find(b'"')
    if not found or end < 0 or event.count(_KEY) != 1 or rest.find(b"\\", 0, end) >= 0:
        return None
    return before + found, rest[end:]
