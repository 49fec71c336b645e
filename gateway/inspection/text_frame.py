"""Recognises the events of a stream that differ from an earlier one only in their text, as nearly all do. Pure."""

from __future__ import annotations

from gateway.transport.sse import CR, is_plain

_CONTENT = b'"content":"'
_QUOTE, _BACKSLASH, _LF = 34, 92, 10
LESS = 60  # "<", with which the tags of thoughts begin


class TextFrame:
    """The bytes before and after the text of one event, and of what is sent for it: with them the text of another event
    is found, and what is sent for that, without parsing or searching."""

    __slots__ = ("_after", "_around", "_before", "_sent_after", "_sent_before")

    def __init__(self, event: tuple[bytes, bytes], sent: tuple[bytes, bytes]) -> None:
        self._before, self._after = event
        self._around = len(self._before) + len(self._after)
        self._sent_before, self._sent_after = sent

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

    def sent(self, text: bytes) -> bytes:
        """What is sent for the event with this text."""
        return b"".join((self._sent_before, text, self._sent_after))


def _around_text(event: bytes) -> tuple[bytes, bytes] | None:
    before, found, rest = event.partition(_CONTENT)
    end = rest.find(b'"')
    if not found or end < 0 or rest.find(_CONTENT) >= 0 or rest.find(b"\\", 0, end) >= 0:
        return None
    return before + found, rest[end:]
