"""Rewrites a reply's bytes: the model's name; id and created in a stream that another attempt began; and the choices of
a mended event."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.body import value_of
from gateway.domain.upstream import ProtocolFailure
from gateway.transport.sse import Choice, Chunk, data_of, number_of

Rewrites = Sequence[tuple[bytes, bytes]]  # (exact bytes of a key and its value, their replacement)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Any).decode
_decode_choices = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_VALUE = rb'\s*:\s*("(?:[^"\\]|\\.)*"|[0-9]+)'
_KEYS = {name: re.compile(b'"' + name.encode() + b'"' + _VALUE) for name in ("model", "id", "created")}


class ReplyIdentity:
    """`id` and `created` of all chunks of one reply: those of the first chunk that is sent, of whichever attempt."""

    __slots__ = ("created", "id", "role_sent")

    def __init__(self) -> None:
        self.id: Any = None
        self.created: Any = None
        self.role_sent = False

    def fix(self, id_: Any, created: Any) -> None:
        """Set both from the first chunk; only a string as id and a number as time: later attempts get them too."""
        if self.id is None and isinstance(id_, str):
            self.id, self.created = id_, created if isinstance(created, int) else None


def learn(event: bytes, name: str, value: object, wanted: object) -> tuple[bytes, bytes] | None:
    """(the exact bytes of `"name": value` in this event, their replacement); None if nothing has to change."""
    if value == wanted or value is None:
        return None
    if isinstance(value, str):
        key = b'"' + name.encode() + b'":'
        old = key + _encode(value)
        if event.count(key) == 1 and old in event:  # nearly always; inside a text the quotes are escaped
            return old, key + _encode(wanted)
    for found in _KEYS[name].finditer(event):
        if value_of(found.group(1)) == value:
            old = found.group(0)
            return old, old[: found.start(1) - found.start(0)] + _encode(wanted)
    return None


class Rewriter:
    """Replaces model, id and created in the events of one attempt. The bytes to replace are learned from its first
    event, by `learn`, which is called before the first event is sent: `rewrites`."""

    __slots__ = ("_first", "_learned", "_model", "_wanted", "identity", "rewrites")

    def __init__(self, identity: ReplyIdentity, model: str) -> None:
        self.identity = identity
        self._model = model
        self._first: tuple[bytes, Chunk] | None = None
        self._learned = False  # something was sent
        self.rewrites: Rewrites = ()
        self._wanted: dict[str, object] = {}

    @property
    def served(self) -> object:
        """The model that the attempt's first event names."""
        return self._first[1].model if self._first is not None else None

    def note(self, event: bytes, chunk: Chunk) -> None:
        """Remember the first event, or the first one that names a model: one that is empty teaches nothing."""
        first = self._first
        if first is None:
            self._first = event, chunk
        elif first[1].model is None and chunk.model is not None:
            self._first = event, chunk
            if self._learned:
                self.learn()

    def learn(self) -> None:
        self._learned = True
        self._wanted = {}
        if self._first is None:
            return
        event, chunk = self._first
        identity = self.identity
        identity.fix(chunk.id, chunk.created)
        pairs = ("model", chunk.model, self._model), ("id", chunk.id, identity.id)
        rewrites: list[tuple[bytes, bytes]] = []
        for name, seen, wanted in (*pairs, ("created", chunk.created, identity.created)):
            if wanted is None:
                continue
            self._wanted[name] = wanted
            if seen != wanted and (pair := learn(event, name, seen, wanted)) is not None:
                rewrites.append(pair)
        self.rewrites = rewrites

    def apply(self, event: bytes) -> bytes:
        """The event with its replacements. Each is made once; if its bytes are not found, the event is parsed."""
        for old, new in self.rewrites:
            replaced = event.replace(old, new, 1)
            if replaced is event:  # CPython returns the same object if there was nothing to replace
                return _reparsed(event, self._wanted)
            event = replaced
        return event


def _reparsed(event: bytes, wanted: dict[str, object]) -> bytes:
    data = data_of(event)
    if data is None:
        return event
    try:
        fields = _decode_fields(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return event
    if fields.keys().isdisjoint(wanted):
        return event
    for name, value in wanted.items():
        if name in fields:
            fields[name] = Raw(_encode(value))
    return b"data: " + _encode(fields) + b"\n\n"


def rebuilt(event: bytes, choices: Sequence[Choice]) -> list[bytes]:
    """One event per choice, with all other fields of the original event except those that belonged to the original
    text: the logprobs, and, where the answer ends otherwise, the stop_reason. Raises ProtocolFailure if the event
    cannot be read."""
    data = data_of(event)
    assert data is not None  # it was read as a chunk before
    try:
        fields = _decode_fields(data)
        given = {number_of(_decode(one.get("index", b"0"))): one for one in _decode_choices(fields["choices"])}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError) as error:
        raise ProtocolFailure(f"sent an event that is no chunk: {error}") from None
    events = []
    for choice in choices:
        before = given.get(choice.index, {})
        kept = {k: v for k, v in before.items() if k != "logprobs"}
        if _decode(before.get("finish_reason", b"null")) != choice.finish_reason:
            kept.pop("stop_reason", None)
        changed = kept | {"index": choice.index, "delta": choice.delta, "finish_reason": choice.finish_reason}
        events.append(b"data: " + _encode({**fields, "choices": Raw(_encode([changed]))}) + b"\n\n")
    return events


def with_field(event: bytes, name: str, value: Raw) -> bytes:
    """The event with another value of a field. Raises ProtocolFailure if the event cannot be read."""
    data = data_of(event)
    assert data is not None  # it was read as a chunk before
    try:
        fields = _decode_fields(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolFailure(f"sent an event that is no chunk: {error}") from None
    return b"data: " + _encode({**fields, name: value}) + b"\n\n"


def with_ends(event: bytes, choices: Sequence[Choice]) -> bytes:
    """The event with the indexes and finish_reasons of `choices`, its own ones in turn. Raises ProtocolFailure."""
    data = data_of(event)
    assert data is not None  # it was read as a chunk before
    try:
        fields = _decode_fields(data)
        given = _decode_choices(fields["choices"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError) as error:
        raise ProtocolFailure(f"sent an event that is no chunk: {error}") from None
    for one, choice in zip(given, choices, strict=True):
        one["index"] = Raw(_encode(choice.index))
        if choice.finish_reason is not None:
            one["finish_reason"] = Raw(_encode(choice.finish_reason))
    return b"data: " + _encode({**fields, "choices": Raw(_encode(given))}) + b"\n\n"


def whole(body: bytes, served: object, model: str) -> bytes:
    """A whole reply with the requested name `model` in place of `served`. Other bytes stay the same, if possible."""
    if served is None or served == model:
        return body
    old = b'"model":' + _encode(served)
    at = body.find(b'"model"')
    if at >= 0 and body.startswith(old, at) and body.find(b'"model"', at + 7) < 0:  # in a text the quotes are escaped
        return b"".join((body[:at], b'"model":', _encode(model), body[at + len(old) :]))
    return _encode({**_decode_fields(body), "model": Raw(_encode(model))})
