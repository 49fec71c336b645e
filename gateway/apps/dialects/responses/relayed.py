"""A request of the Responses API and its answer, for the exchange around them; and what a server answered at its own
`/v1/responses`, sent as it is.

Such an answer comes as one of a chat, each part with its original (own_answer.py). An original is
sent if the checks have changed nothing of its part. The first change ends this: what is open then is continued by the
translation. So is an answer that another server goes on with as a chat."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import time
from typing import Any, cast
from zlib import crc32

import msgspec
from msgspec import Raw

from gateway.apps.dialects.chat import TEXT_MOST
from gateway.apps.dialects.responses.answer import Ids, to_response
from gateway.apps.dialects.responses.compaction import CompactionStream, compacted
from gateway.apps.dialects.responses.own_answer import ORIGINAL
from gateway.apps.dialects.responses.request import RequestEcho, chat_request_of
from gateway.apps.dialects.responses.stream import Item, ResponseStream
from gateway.apps.dialects.translated import Translation
from gateway.domain.upstream import ProtocolFailure
from gateway.transport.sse import Choice, data_of

_MARK = b'"%b":' % ORIGINAL.encode()
_BEGINNINGS = ("response.created", "response.in_progress", "response.queued")
_ENDS = ("response.completed", "response.incomplete")
_PARTS = ("response.content_part.added", "response.reasoning_summary_part.added")
_ITEMS = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_FAILED = "sent a response that cannot be read: {}"

_encode = msgspec.json.Encoder().encode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode


class _OriginalEvent(msgspec.Struct):
    number: int
    choices: int
    data: Raw


class _Carrier(msgspec.Struct, rename={"original": ORIGINAL}):
    original: _OriginalEvent
    choices: Raw


class _ResponseEvent(msgspec.Struct):
    type: str
    sequence_number: Any = None
    output_index: Any = None
    item_id: Any = None
    delta: Any = None
    text: Any = None
    item: Raw = Raw(b"null")
    response: Raw = Raw(b"null")


class _ItemHead(msgspec.Struct):
    type: Any = None
    id: Any = None
    call_id: Any = None
    name: Any = None
    arguments: Any = None


_decode_carrier = msgspec.json.Decoder(_Carrier).decode
_decode_choices = msgspec.json.Decoder(list[Choice]).decode
_decode_event = msgspec.json.Decoder(_ResponseEvent).decode
_decode_item = msgspec.json.Decoder(_ItemHead).decode


@dataclass(slots=True)
class _RelayedAnswer:
    """The answer that is being relayed. `before`: items sent before it began; `opens`: nothing was sent before it;
    `next`: the number of its next part; `held`: beginnings of an item, until something of it is sent; `items`: those
    that were begun, by their index in it; `differs`: the text of the last one came in other pieces, so it is not known
    yet whether it is the same in the end."""

    before: int
    opens: bool
    next: int = 0
    held: list[tuple[_ResponseEvent, Raw]] = field(default_factory=list)
    items: dict[str, Item] = field(default_factory=dict)
    differs: bool = False

    @property
    def last(self) -> Item | None:
        return next(reversed(self.items.values()), None)


class RelayedStream(ResponseStream):
    """One response, relayed as far as possible."""

    def __init__(self, asked: RequestEcho, ids: Ids) -> None:
        super().__init__(asked, ids)
        self._answer: _RelayedAnswer | None = None  # None: what comes is translated
        self.whole: bytes | None = None  # the response as its end repeats it

    def _translate_event(self, event: bytes) -> None:
        carrier = _carrier_in(event)
        if carrier is not None and self._takes(carrier):
            return
        speaks = _says_something(event)
        if self._answer is not None and speaks:
            self._take_over(self._answer)
        if speaks or carrier is None:
            super()._translate_event(event)

    def _takes(self, carrier: _Carrier) -> bool:
        """Relay the part. False = it has to be translated."""
        original = carrier.original
        if original.number == 0:
            if self._answer is not None:
                self._take_over(self._answer)
            self._close()
            self._frame = None
            self._answer = _RelayedAnswer(len(self._items), not self._begun)
        answer = self._answer
        if answer is None or original.number < answer.next - 1:
            return False
        skipped, answer.next = original.number > answer.next, original.number + 1
        answer.differs = answer.differs or skipped  # the checks hold text back, or have taken it out
        try:
            if crc32(carrier.choices) != original.choices:
                return self._adjusts(answer, carrier.choices)
            event = _decode_event(original.data)
            if answer.differs and not self._agrees(answer, event):
                self._take_over(answer)
                return False
            self._relay(answer, event, original.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolFailure(_FAILED.format(error)) from None
        return True

    def _adjusts(self, answer: _RelayedAnswer, choices: Raw) -> bool:
        """Send text of the open message in the pieces that the checks release. False = another kind of change."""
        delta = _text_alone(choices)
        if delta is None:
            return False
        self._begin()
        self._flush(answer)
        item = answer.last
        if item is None or item.kind != "msg" or item.ended:
            return False
        answer.differs = True
        self._say(item, _encode(delta)[1:-1])
        return True

    def _agrees(self, answer: _RelayedAnswer, event: _ResponseEvent) -> bool:
        """Does the text sent of the last item agree with this event? Only an end of the item repeats the text."""
        if event.type == "response.output_text.done" and isinstance(event.text, str):
            item = None if answer.held else answer.last
            answer.differs = False
            return item is not None and _encode(event.text)[1:-1] == bytes(item.text)
        return event.type.endswith(".delta")

    def _relay(self, answer: _RelayedAnswer, event: _ResponseEvent, data: Raw) -> None:
        kind = event.type
        if kind in _BEGINNINGS:
            self._begun = True
            if answer.opens:
                self._send(kind, response=self._of_client(event.response, answer))
            return
        self._begin()
        if kind == "response.output_item.added" and _decode_item(event.item).type != "function_call":
            answer.held = [(event, data)]
        elif kind in _PARTS and answer.held:
            answer.held.append((event, data))
        elif kind in _ENDS:
            self._flush(answer)
            self._send(kind, response=self._of_client(event.response, answer))
        else:
            self._flush(answer)
            self._pass_on(answer, event, data)

    def _flush(self, answer: _RelayedAnswer) -> None:
        held, answer.held = answer.held, []
        for event, data in held:
            self._pass_on(answer, event, data)

    def _pass_on(self, answer: _RelayedAnswer, event: _ResponseEvent, data: Raw) -> None:
        """Send an event with its number and place in this stream, and note its effect on the items."""
        if event.type == "response.output_item.added":
            answer.items[str(event.output_index)] = self._begun_item(event)
        item = answer.items.get(str(event.output_index))
        fields: dict[str, Raw] = {}
        if event.sequence_number != self._sent:
            fields["sequence_number"] = Raw(b"%d" % self._sent)
        if item is not None and item.index != event.output_index:
            fields["output_index"] = Raw(b"%d" % item.index)
        sent = _encode({**_decode_fields(data), **fields}) if fields else bytes(data)
        self._out.append(b"event: %b\ndata: %b\n\n" % (event.type.encode(), sent))
        self._sent += 1
        if item is None:
            return
        if event.type == "response.output_item.done":
            item.ended, item.text = True, bytearray()
            self._items[item.index] = bytes(event.item)
        elif event.type.endswith(".delta") and isinstance(event.delta, str):
            text = _encode(event.delta)[1:-1]
            item.text += text
            self._size += len(text)
            if self._size > TEXT_MOST:
                raise ProtocolFailure(f"sent more than {TEXT_MOST:,} bytes of text in one answer")

    def _begun_item(self, event: _ResponseEvent) -> Item:
        """The item that begins, as the translation would go on with it."""
        head = _decode_item(event.item)
        kind = _ITEMS.get(head.type, "") if isinstance(head.type, str) else ""
        item = self._new_item(kind, len(self._items), str(head.id), str(head.call_id), str(head.name))
        self._items.append(bytes(event.item))
        if kind == "fc":
            self._calls[len(self._calls)] = item
            if isinstance(head.arguments, str):
                item.text += _encode(head.arguments)[1:-1]
        return item

    def _take_over(self, answer: _RelayedAnswer) -> None:
        """From here on the answer is translated: the item that is open stays so."""
        self._answer = None
        self._frame = None
        unended = [item for item in answer.items.values() if not item.ended and item.kind]
        self._open = unended[-1] if unended else None

    def _of_client(self, response: Raw, answer: _RelayedAnswer) -> Raw:
        before = self._items[: answer.before]
        return of_client(response, self._asked, self._ids, before)

    def _end(self) -> None:
        if self.whole is None:
            super()._end()

    def _send(self, type_: str, **fields: object) -> None:
        if type_ in _ENDS:
            self.whole = bytes(cast(Raw, fields["response"]))
        super()._send(type_, **fields)


def whole_response(body: bytes, asked: RequestEcho, ids: Ids) -> bytes:
    """The whole answer of a chat as a response: its original where nothing was changed. Raises ProtocolFailure."""
    if _MARK in body:
        try:
            carrier = _decode_carrier(body)
            if crc32(carrier.choices) == carrier.original.choices:
                return bytes(of_client(carrier.original.data, asked, ids))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolFailure(_FAILED.format(error)) from None
    return to_response(body, asked, ids)


def of_client(response: Raw, asked: RequestEcho, ids: Ids, before: Iterable[bytes] = ()) -> Raw:
    """The object `response` of a server with the id, the model and the kept items under the names its client knows.
    `before`: items of another server, sent earlier."""
    fields, echo = _decode_fields(response), _decode_fields(asked.echo)
    fields["id"], fields["model"] = Raw(_encode(ids.response)), Raw(_encode(asked.model))
    fields |= {name: echo[name] for name in ("store", "previous_response_id") if name in echo}
    if first := b",".join(before):
        output = bytes(fields.get("output", b"[]")).strip()
        fields["output"] = Raw(b"[" + first + (b"," if output[1:-1].strip() else b"") + output[1:])
    return Raw(_encode(fields))


def _carrier_in(event: bytes) -> _Carrier | None:
    data = data_of(event) if _MARK in event else None
    if data is None:
        return None
    try:
        return _decode_carrier(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _says_something(event: bytes) -> bool:
    """Is the event more than a comment or a heartbeat of the gateway, and can a chat express it?"""
    return event.startswith(b"data:") and b'"delta":{},"finish_reason":null' not in event


def _text_alone(choices: Raw) -> str | None:
    """The text of choices that say nothing else."""
    read = _decode_choices(choices)
    if len(read) != 1 or read[0].finish_reason is not None or not isinstance(read[0].delta, dict):
        return None
    text = read[0].delta.get("content")
    return text if isinstance(text, str) and text and len(read[0].delta) == 1 else None


class ResponseTranslation(Translation):
    """`ended`: the response as it was sent, at its end. `suffix` distinguishes its ids from the request's."""

    def __init__(self, *, compacts: bool = False) -> None:
        """`compacts`: what is asked for is a compaction, whatever the input says."""
        self._compacts = compacts
        self.previous: str | None = None  # the kept response that this one goes on from
        self.stored = False  # it will be kept itself
        self.suffix = ""
        self._whole: bytes | None = None
        self._asked = RequestEcho()
        self._ids = Ids("", 0)
        self._stream: RelayedStream | CompactionStream = RelayedStream(self._asked, self._ids)

    @property
    def id(self) -> str:
        return self._ids.response

    @property
    def ended(self) -> bytes | None:
        return self._whole if self._whole is not None else self._stream.whole

    def request(self, body: bytes) -> bytes:
        chat, self._asked, self.own = chat_request_of(body, self.previous, stored=self.stored, compacts=self._compacts)
        self.left_out = self._asked.left_out if self.own is None else ()
        return chat

    def held(self) -> int:
        own = 0 if self.own is None else sum(len(memoryview(value)) for value in self.own.fields.values())
        return len(self._asked.echo) + own

    def begin(self, request_id: str) -> list[tuple[bytes, bytes]]:
        self._ids = Ids(request_id + self.suffix, int(time()))
        made = CompactionStream if self._asked.compacts else RelayedStream
        self._stream = made(self._asked, self._ids)
        return super().begin(request_id)

    def whole(self, body: bytes) -> bytes:
        made = compacted if self._asked.compacts else whole_response
        self._whole = made(body, self._asked, self._ids)
        return self._whole

    def events(self, events: Iterable[bytes], hold: Callable[[int], object]) -> bytes:
        return self._stream.translate(events, hold)
