"""The events of a chat stream as those of a response: its thoughts, text and calls are items. The last event repeats
all items, so their texts are kept until then."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from gateway.apps.dialects.chat import TEXT_MOST, ChatAnswer, ChatChoice, StreamTranslator, arguments_of, error_in
from gateway.apps.dialects.responses.answer import (
    COMPLETED,
    INCOMPLETE,
    Ids,
    call_item,
    message_item,
    reason_of,
    reasoning_item,
    response,
    text_part,
    usage_of,
)
from gateway.apps.dialects.responses.request import RequestEcho
from gateway.apps.dialects.responses.tools import custom_input
from gateway.domain.upstream import ProtocolFailure
from gateway.inspection.shape import brief

_PROGRESS = "in_progress"

_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode


@dataclass(slots=True)
class Item:
    """`kind`: rs | msg | fc. `delta`: the bytes of its delta events before the sequence number, and between that and
    the text. `text`: its text so far, as the inside of a JSON string."""

    kind: str
    index: int
    id: str
    delta: tuple[bytes, bytes]
    call_id: str = ""
    name: str = ""
    text: bytearray = field(default_factory=bytearray)
    ended: bool = False

    @property
    def string(self) -> bytes:
        return b'"%b"' % bytes(self.text)


class ResponseStream(StreamTranslator):
    """One response."""

    TEXT, THOUGHTS = "msg", "rs"

    def __init__(self, asked: RequestEcho, ids: Ids) -> None:
        super().__init__()
        self._asked = asked
        self._ids = ids
        self._sent = 0  # events, all numbered
        self._open: Item | None = None
        self._items: list[bytes] = []  # each as it was last sent
        self._calls: dict[object, Item] = {}  # by the call's index in the chat
        self._reason: str | None = None

    def _is_open(self, kind: str) -> bool:
        return self._open is not None and self._open.kind == kind

    def _open_text(self, kind: str) -> None:
        self._open_item(kind)

    def _go_on(self, raw: bytes) -> None:
        assert self._open is not None
        self._say(self._open, raw)

    def _say(self, item: Item, raw: bytes) -> None:
        """`raw`: the inside of a JSON string."""
        self._keep(item, raw)
        before, between = item.delta
        self._out.append(b'%b%d%b%b"}\n\n' % (before, self._sent, between, raw))
        self._sent += 1

    def _keep(self, item: Item, raw: bytes) -> None:
        self._size += len(raw)
        if self._size > TEXT_MOST:
            raise ProtocolFailure(f"sent more than {TEXT_MOST:,} bytes of text in one answer")
        item.text += raw

    def _begin(self, chunk: ChatAnswer | None = None) -> None:
        if not self._begun:
            self._begun = True
            created = Raw(response(self._asked, self._ids, _PROGRESS))
            self._send("response.created", response=created)
            self._send("response.in_progress", response=created)

    def _finish(self, choice: ChatChoice) -> None:
        self._reason = reason_of(choice.finish_reason)

    def _heartbeat(self) -> None:
        self._send("keepalive")

    def _delta_type(self, kind: str) -> tuple[str, dict[str, Any]]:
        """The type of the delta events of an item, and their fields beside the item's."""
        if kind == "fc":
            return "response.function_call_arguments.delta", {}
        if kind == "msg":
            return "response.output_text.delta", {"content_index": 0, "logprobs": []}
        if self._asked.summary:
            return "response.reasoning_summary_text.delta", {"summary_index": 0}
        return "response.reasoning_text.delta", {"content_index": 0}

    def _add_to_call(self, index: int, id_: str | None, function: dict[str, Any]) -> None:
        item = self._calls.get(index)
        if item is None:
            name = function.get("name")
            if name is None:
                raise ProtocolFailure("sent a tool call without a name")
            call_id = id_ or self._ids.item("call", len(self._items))
            item = self._calls[index] = self._open_item("fc", call_id, name)
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments and not item.ended:
            if self._is_custom(item):
                self._keep(item, _encode(arguments)[1:-1])  # told at its end, as the text that it is
            else:
                self._say(item, _encode(arguments)[1:-1])

    def _is_custom(self, item: Item) -> bool:
        tool = self._asked.names.get(item.name)
        return tool is not None and tool.custom

    def _open_item(self, kind: str, call_id: str = "", name: str = "") -> Item:
        """Begin an item, and end the one before it."""
        self._close()
        self._frame = None
        self._white = ""
        index = len(self._items)
        item = self._open = self._new_item(kind, index, self._ids.item(kind, index), call_id, name)
        self._items.append(self._told(item, _PROGRESS, None))
        self._send("response.output_item.added", output_index=index, item=Raw(self._items[index]))
        if kind != "fc":
            self._send_part(item, "added", b'""')
        return item

    def _new_item(self, kind: str, index: int, id_: str, call_id: str, name: str) -> Item:
        type_, more = self._delta_type(kind)
        fields = _encode({"item_id": id_, "output_index": index, **more})[1:-1]
        before = b'event: %b\ndata: {"type":"%b","sequence_number":' % (type_.encode(), type_.encode())
        return Item(kind, index, id_, (before, b"," + fields + b',"delta":"'), call_id, name)

    def _send_part(self, item: Item, what: str, text: bytes) -> None:
        """The part of a message, of thoughts or of their summary that an item has. `what`: added | done."""
        where = {"item_id": item.id, "output_index": item.index}
        if item.kind == "rs" and self._asked.summary:
            part = {"type": "summary_text", "text": Raw(text)}
            self._send(f"response.reasoning_summary_part.{what}", **where, summary_index=0, part=part)
            return
        part = text_part(text) if item.kind == "msg" else {"type": "reasoning_text", "text": Raw(text)}
        self._send(f"response.content_part.{what}", **where, content_index=0, part=part)

    def _told(self, item: Item, status: str, text: bytes | None) -> bytes:
        if item.kind == "fc":
            return call_item(item.id, item.call_id, item.name, b'""' if text is None else text, status, self._asked)
        if item.kind == "msg":
            return message_item(item.id, text, status)
        if text is None:
            return _encode({"id": item.id, "type": "reasoning", "summary": [], "status": status})
        return reasoning_item(item.id, text, self._asked, status)

    def _close(self) -> None:
        """End the open item, unless it is a call with incomplete arguments: the rest may come after other calls."""
        item, self._open = self._open, None
        if item is None or item.ended:
            return
        if item.kind != "fc" or arguments_of(_decode_text(item.string)) is not None:
            self._end_item(item, COMPLETED)

    def _end_item(self, item: Item, status: str) -> None:
        item.ended = True
        where = {"item_id": item.id, "output_index": item.index}
        if item.kind == "fc" and self._is_custom(item):
            text = custom_input(_decode_text(item.string))
            self._send("response.custom_tool_call_input.delta", **where, delta=text)
            self._send("response.custom_tool_call_input.done", **where, input=text)
        elif item.kind == "fc":
            if not item.text:
                self._say(item, b"{}")
            tool = self._asked.names.get(item.name)
            name = item.name if tool is None else tool.name
            self._send("response.function_call_arguments.done", **where, name=name, arguments=Raw(item.string))
        else:
            type_, more = self._delta_type(item.kind)
            self._send(type_.removesuffix("delta") + "done", **where, **more, text=Raw(item.string))
            self._send_part(item, "done", item.string)
        self._items[item.index] = self._told(item, status, item.string)
        item.text = bytearray()
        self._send("response.output_item.done", output_index=item.index, item=Raw(self._items[item.index]))

    def _end(self) -> None:
        self._begin()
        last = len(self._items) - 1
        status = INCOMPLETE if self._reason else COMPLETED
        unended = {item.index: item for item in self._calls.values() if not item.ended}
        if self._open is not None and not self._open.ended:
            unended[self._open.index] = self._open
        self._open = None
        for index in sorted(unended):
            self._end_item(unended[index], status if index == last else COMPLETED)
        whole = response(self._asked, self._ids, status, self._items, usage=usage_of(self._usage), reason=self._reason)
        self._send(f"response.{status}", response=Raw(whole))

    def _fail(self, data: bytes) -> None:
        """Two events, because some clients heed one of them, some the other."""
        self._begin()
        error = error_in(data)
        message, code, param = error.get("message"), error.get("code"), error.get("param")
        stated = {"code": code if isinstance(code, str) else "server_error"}
        stated["message"] = message if isinstance(message, str) else brief(message)
        self._send("error", **stated, param=param, error=error)
        failed = response(self._asked, self._ids, "failed", error=stated)
        self._send("response.failed", response=Raw(failed))

    def _send(self, type_: str, **fields: object) -> None:
        event = _encode({"type": type_, "sequence_number": self._sent, **fields})
        self._out.append(b"event: %b\ndata: %b\n\n" % (type_.encode(), event))
        self._sent += 1
