"""Recognises a stream that goes as an earlier one of the same backend: a role, text, an end, the usage. All bytes
being equal but the id, the time, the texts and the usage, it needs no more than the earlier one did, which a
`StreamTrack` has followed. Pure; where it is not sure a `StreamTrack` goes on, and both come to the same
(tests/inspection/test_plain_stream.py)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from gateway.inspection.heuristics import begins_as_garbage, opened
from gateway.inspection.plain import PLAIN_ENDS
from gateway.inspection.reasoning import Thoughts
from gateway.inspection.rewrite import Rewrites
from gateway.inspection.stream_track import REPEATS, StreamTrack
from gateway.inspection.text_frame import LESS, TextFrame
from gateway.transport.sse import CR, Chunk, Framer, content_of, data_of, is_plain, read_chunk

DONE = b"data: [DONE]\n\n"
BEGINNING, READ_MOST = 4096, 16 * 1024  # bytes of an example's beginning, and of a read at its end
FRAMED = 3  # events that only go on with the text, of which the last is the pattern for further ones
ENDING = 4  # reads in which the end of a stream may come
TRIES = 8  # streams of which no form was found, until no further one is looked at
_ID = rb"(?P<id>[\w.:-]{1,80})"
_CREATED = rb"(?P<created>[0-9]{1,15})"

_encode = msgspec.json.Encoder().encode
_text = msgspec.json.Decoder(str).decode
_usage = msgspec.json.Decoder(dict[str, Any]).decode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode


class EventForm:
    """An event in which the id, the time and one further value differ."""

    __slots__ = ("_after", "_before")

    def __init__(self, before: bytes, after: bytes, chunk: Chunk) -> None:
        """`before`, `after`: the bytes around the further value in the event `chunk`."""
        self._before, self._after = _with_holes(before, chunk), _with_holes(after, chunk)

    def value_in(self, event: bytes, holes: Mapping[bytes, bytes]) -> bytes | None:
        """The value in an event of the stream with this id and this time; None = it is another event."""
        before, after = self._before % holes, self._after
        if b"%" in after:
            after = after % holes
        begin, end = len(before), len(event) - len(after)
        return event[begin:end] if begin <= end and event.startswith(before) and event.endswith(after) else None


def _with_holes(part: bytes, chunk: Chunk) -> bytes:
    part = part.replace(b"%", b"%%")
    return part.replace(_id_of(chunk), b'"id":"%(id)s"').replace(_created_of(chunk), b'"created":%(created)s')


class StreamForm(NamedTuple):
    """How streams of one backend go, for requests that are alike. `role`: matches the first event, with its `id` and
    its time (`created`). `rewrites`: made in each event; `wants_usage`: the client gets the event of the usage."""

    role: re.Pattern[bytes]
    text: EventForm
    end: EventForm
    usage: EventForm | None
    rewrites: Rewrites
    wants_usage: bool


# What has come of a stream. At its start it may still turn out to be garbage.
_NOTHING, _ROLE, _START, _TEXT, _END, _USAGE, _DONE = range(7)


class PlainStream:
    """Follows one stream of this form. `content`: some was sent; `done`: it is complete, with [DONE]; `usage`: the one
    that it named."""

    __slots__ = (
        "_form",
        "_frame",
        "_holes",
        "_kept",
        "_last",
        "_passed",
        "_same",
        "_stage",
        "_start",
        "_thoughts",
        "content",
        "done",
        "usage",
    )

    def __init__(self, form: StreamForm, thoughts: Thoughts | None) -> None:
        self._form = form
        self._thoughts = thoughts
        self._holes: Mapping[bytes, bytes] = {}  # its id and its time
        self._kept: list[bytes] = []  # the events but those that only go on with the text
        self._stage = _NOTHING
        self._passed = 0  # events that only went on with the text
        self._frame: TextFrame | None = None  # of one of these
        self._start = ""  # the text, as long as it may be garbage
        self._last = b""
        self._same = 0  # events in a row that equal `_last`
        self.content = self.done = False
        self.usage: dict[str, Any] | None = None

    def feed(self, data: bytes, *, last: bool) -> bytes | None:
        """What to send for `data`, without [DONE]. None = it is not whole events, or the stream goes another way:
        a track has to go on from where `replay` brings it. `last`: the answer ends with it."""
        if CR in data or not data.endswith(b"\n\n"):
            return None
        before = self._stage, self._last, self._same, self.content
        kept = len(self._kept)
        out: list[bytes] = []
        for event in data[:-2].split(b"\n\n"):
            sent = self._follow(event + b"\n\n")
            if sent is None:
                break
            out.append(sent)
        if sent is None or (last and not self.done):
            self._stage, self._last, self._same, self.content = before
            self.done = False
            del self._kept[kept:]
            return None
        return b"".join(out)

    def pass_event(self, data: bytes) -> bytes | None:
        """`feed` for one whole event that only goes on with the text. None = it is something else; nothing was done."""
        same = self._same + 1 if data == self._last else 0
        if self._stage != _TEXT or same == REPEATS:
            return None
        frame = self._frame
        if frame is not None and (text := frame.text_in(data)) is not None and LESS not in text:
            self._last, self._same = data, same
            return b"".join((frame.sent_before, text, frame.sent_after))
        if CR in data or data.find(b"\n\n") != len(data) - 2 or not is_plain(data) or data.find(b"</think>") >= 0:
            return None
        sent = self._renamed(data)
        if sent is not None:
            self._last, self._same = data, same
            self._passed += 1
            if self._passed == FRAMED:
                self._frame = TextFrame.of(data, sent)
        return sent

    def _follow(self, event: bytes) -> bytes | None:
        if self._stage == _TEXT and (sent := self.pass_event(event)) is not None:
            return sent
        same = self._same + 1 if event == self._last else 0
        if same == REPEATS:
            return None
        sent = self._advance(event)
        if sent is not None:
            self._last, self._same = event, same
        return sent

    def _advance(self, event: bytes) -> bytes | None:
        """Follow an event that begins something else."""
        stage, form, sent = self._stage, self._form, None
        if stage == _NOTHING:
            sent = self._begin(event)
        elif stage in (_ROLE, _START):
            return self._go_on_with_start(event)
        elif stage == _TEXT:
            text = self._text_in(form.end, event)
            if text is not None and "</think>" not in text:
                sent = self._renamed(event)
        elif event == DONE:
            self._stage, self.done = _DONE, True
            return b""
        elif stage == _END and form.usage is not None:
            sent = self._note_usage(form.usage, event)
        if sent is not None:
            self._stage = stage + 1
            self._kept.append(event)
        return sent

    def _begin(self, event: bytes) -> bytes | None:
        found = self._form.role.fullmatch(event)
        if found is None:
            return None
        self._holes = {b"id": found["id"], b"created": found["created"]}
        return b""  # it is held until there is content

    def _go_on_with_start(self, event: bytes) -> bytes | None:
        text = self._text_in(self._form.text, event)
        if not text or "</think>" in text:
            return None
        start = self._start + text if self._start else text.lstrip()
        is_garbage = begins_as_garbage(start)
        if not start or is_garbage or (not self._start and opened(start, self._thoughts) is not None):
            return None
        role = self._renamed(self._kept[0]) if self._stage == _ROLE else b""
        sent = self._renamed(event)
        if role is None or sent is None:
            return None
        self._start, self.content = start, True
        self._stage = _START if is_garbage is None else _TEXT
        self._kept.append(event)
        return role + sent

    def _text_in(self, form: EventForm, event: bytes) -> str | None:
        inner = form.value_in(event, self._holes)
        try:
            return _text(b'"%s"' % inner) if inner is not None else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _note_usage(self, form: EventForm, event: bytes) -> bytes | None:
        inner = form.value_in(event, self._holes)
        try:
            self.usage = _usage(inner) if inner is not None else self.usage
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if inner is None:
            return None
        return self._renamed(event) if self._form.wants_usage else b""

    def _renamed(self, event: bytes) -> bytes | None:
        for old, new in self._form.rewrites:
            renamed = event.replace(old, new, 1)
            if renamed is event:  # CPython returns the same object if there was nothing to replace
                return None
            event = renamed
        return event

    def replay(self, track: StreamTrack, framer: Framer) -> None:
        """Bring both to where the stream is."""
        track.feed(framer.feed(b"".join(self._kept)))
        track.repeat(self._last, self._same)


class Example:
    """What is kept of a stream to find its form: its beginning and its end."""

    __slots__ = ("_beginning", "_end")

    def __init__(self) -> None:
        self._beginning = bytearray()
        self._end: deque[bytes] = deque(maxlen=ENDING)

    def add(self, data: bytes) -> None:
        """The next read."""
        if len(data) > READ_MOST:
            self._end.clear()
        elif len(self._beginning) < BEGINNING:
            self._beginning += data
        else:
            self._end.append(data)

    def events(self) -> list[bytes]:
        """The events of both. Where one of them is cut it is none, and no form is found."""
        return [event for part in (bytes(self._beginning), b"".join(self._end)) for event in Framer().feed(part)]


class Forms:
    """The form of the streams of one backend, for requests that are alike, once one was seen. `form`: None = not yet.
    `wanted`: a further stream is to be looked at."""

    __slots__ = ("_tries", "form")

    def __init__(self) -> None:
        self.form: StreamForm | None = None
        self._tries = 0

    @property
    def wanted(self) -> bool:
        return self.form is None and self._tries < TRIES

    def learn(
        self, example: Example, track: Callable[[], StreamTrack], thoughts: Thoughts | None, *, wants_usage: bool
    ) -> None:
        """Find the form of a complete stream. `track` makes one as it was followed by."""
        self._tries += 1
        events = example.events()
        form = _form_of(events, track(), wants_usage)
        if form is not None and _goes_so(form, events, track(), thoughts):
            self.form = form


def _form_of(events: Sequence[bytes], track: StreamTrack, wants_usage: bool) -> StreamForm | None:
    if len(events) < 4 or events[-1] != DONE:
        return None
    chunks = [read_chunk(data_of(event) or b"") for event in events[:-1]]
    if any(chunk is None for chunk in chunks):
        return None
    role, text, *_, last = (chunk for chunk in chunks if chunk is not None)
    with_usage = not last.choices
    end_at = len(events) - (3 if with_usage else 2)
    end = chunks[end_at]
    if end_at < 2 or end is None or not isinstance(role.id, str) or type(role.created) is not int:
        return None
    if not end.choices or end.choices[0].finish_reason not in PLAIN_ENDS:
        return None
    track.feed(events[:end_at])
    role_form = _role_form(events[0], role)
    text_form, end_form = _text_form(events[1], text), _text_form(events[end_at], end)
    usage_form = _usage_form(events[-2], last) if with_usage else None
    if role_form is None or text_form is None or end_form is None or (with_usage and usage_form is None):
        return None
    return StreamForm(role_form, text_form, end_form, usage_form, track.rewrites, wants_usage)


def _goes_so(form: StreamForm, events: Sequence[bytes], track: StreamTrack, thoughts: Thoughts | None) -> bool:
    """Does following the example by its form come to the same?"""
    plain = PlainStream(form, thoughts)
    for event in events:
        if plain.feed(event, last=event == DONE) != track.feed([event]) or plain.content != track.content:
            return False
    track.conclude()
    found = track.failure, track.violations, track.mended, track.empty, track.stray_close, track.never_closed
    return track.complete and plain.done and plain.usage == track.usage and not any(found)


def _id_of(chunk: Chunk) -> bytes:
    return b'"id":' + _encode(chunk.id)


def _created_of(chunk: Chunk) -> bytes:
    return b'"created":' + _encode(chunk.created)


def _has_once(event: bytes, chunk: Chunk) -> bool:
    """Are the id and the time of the event found by their bytes?"""
    return event.count(_id_of(chunk)) == event.count(_created_of(chunk)) == 1


def _role_form(event: bytes, chunk: Chunk) -> re.Pattern[bytes] | None:
    if not _has_once(event, chunk):
        return None
    id_, created = _id_of(chunk), _created_of(chunk)
    pattern = re.escape(event).replace(re.escape(id_), b'"id":"' + _ID + b'"', 1)
    pattern = pattern.replace(re.escape(created), b'"created":' + _CREATED, 1)
    form = re.compile(pattern)
    return form if form.fullmatch(event) else None


def _text_form(event: bytes, chunk: Chunk) -> EventForm | None:
    choices = chunk.choices or []
    if len(choices) != 1 or not _has_once(event, chunk):
        return None
    content = b'"content":' + _encode(content_of(choices[0]))
    if event.count(content) != 1:
        return None
    before, _, after = event.partition(content)
    return EventForm(before + b'"content":"', b'"' + after, chunk)


def _usage_form(event: bytes, chunk: Chunk) -> EventForm | None:
    data = data_of(event)
    if data is None or not isinstance(chunk.usage, dict) or not _has_once(event, chunk):
        return None
    usage = b'"usage":' + bytes(_fields(data)["usage"])
    if event.count(usage) != 1:
        return None
    before, _, after = event.partition(usage)
    return EventForm(before + b'"usage":', after, chunk)
