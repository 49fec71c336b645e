"""Recognises the events of a stream that differ from an earlier one only in one text: a piece of the answer, of the
thoughts, or of a call's arguments. Nearly all events of a stream do. Pure."""

from __future__ import annotations

import re
from enum import Enum, auto

from gateway.transport.sse import CR, Choice, is_plain

_QUOTE, _BACKSLASH, _LF = 34, 92, 10
LESS = 60  # "<", with which the tags of thoughts begin
# A JSON string between its quotes. One with \u is read as JSON: half a surrogate pair is no text.
_STRING = re.compile(rb'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])+')


class TextKind(Enum):
    """The field of the delta whose value is the text."""

    CONTENT = auto()
    THOUGHTS = auto()
    ARGUMENTS = auto()


class EventFrame:
    """The bytes before and after the text of one event, with which the text of another is found without parsing. For
    that other event, its text between `sent_before` and `sent_after` is sent. `call`: the index of the call whose
    arguments the text goes on with. `matches`: how many events were recognised."""

    __slots__ = ("_after", "_around", "_before", "call", "kind", "matches", "sent_after", "sent_before")

    def __init__(self, kind: TextKind, event: tuple[bytes, bytes], sent: tuple[bytes, bytes], call: int = 0) -> None:
        self._before, self._after = event
        self._around = len(self._before) + len(self._after)
        self.sent_before, self.sent_after = sent
        self.kind = kind
        self.call = call
        self.matches = 0

    @classmethod
    def of(cls, event: bytes, sent: bytes, choice: Choice, before: EventFrame | None = None) -> EventFrame | None:
        """The frame of this event, whose only choice this is, and for which `sent` is sent. None unless it is a plain
        delta with nothing but one text; and where the frame `before`, of the same kind, has matched nothing: then the
        events of this server differ in more than their text, and a frame would be sought for each of them in vain."""
        found = _only_text(choice)
        if found is None or (before is not None and before.kind is found[0] and not before.matches):
            return None
        if not is_plain(event) or event.find(b"\n\n") != len(event) - 2 or CR in event or b'"usage"' in event:
            return None
        kind, key, call = found
        around, sent_around = _around_text(event, key, kind), _around_text(sent, key, kind)
        return None if around is None or sent_around is None else cls(kind, around, sent_around, call)

    def text_in(self, data: bytes) -> bytes | None:
        """The text in `data` as JSON writes it, if `data` is one whole event that otherwise equals the event of the
        frame. None for anything else, for an empty text, and for content with escapes, which has to be inspected."""
        if len(data) <= self._around or not (data.startswith(self._before) and data.endswith(self._after)):
            return None
        text = data[len(self._before) : -len(self._after)]
        if self.kind is TextKind.CONTENT:
            if _QUOTE in text or _BACKSLASH in text or _LF in text or CR in text:
                return None
        elif _STRING.fullmatch(text) is None or not (text.isascii() or _is_utf8(text)):
            return None
        self.matches += 1
        return text


def _only_text(choice: Choice) -> tuple[TextKind, bytes, int] | None:
    """(kind, name of the field, index of the call) of the only text in this delta; None if it has anything else."""
    delta = choice.delta
    if type(delta) is not dict or choice.index != 0 or choice.finish_reason is not None:
        return None
    said = [(name, value) for name, value in delta.items() if value is not None]
    if len(said) != 1 or not said[0][1]:
        return None
    name, value = said[0]
    if isinstance(value, str):
        if name == "content":
            return TextKind.CONTENT, b'"content"', 0
        return (TextKind.THOUGHTS, b'"%s"' % name.encode(), 0) if name in ("reasoning", "reasoning_content") else None
    if name != "tool_calls" or type(value) is not list or len(value) != 1 or type(value[0]) is not dict:
        return None
    call = dict(value[0])
    index, function, type_ = call.pop("index", None), call.pop("function", None), call.pop("type", None)
    if type(index) is not int or type(function) is not dict or type_ not in (None, "function") or any(call.values()):
        return None
    function = dict(function)
    arguments = function.pop("arguments", None)
    if not isinstance(arguments, str) or not arguments or any(function.values()):
        return None
    return TextKind.ARGUMENTS, b'"arguments"', index


def _around_text(event: bytes, key: bytes, kind: TextKind) -> tuple[bytes, bytes] | None:
    """The bytes before and after the text; None unless the key stands there once, with a text of simple escapes."""
    before, found, rest = event.partition(key + b':"')
    text = _STRING.match(rest)
    if not found or text is None or event.count(key) != 1 or not rest.startswith(b'"', text.end()):
        return None
    if kind is TextKind.CONTENT and _BACKSLASH in text.group():
        return None
    return before + found, rest[text.end() :]


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
