"""Conversations that the server is asked to compact, as Codex does: with a `compaction_trigger` at the end of the
input, or at `/v1/responses/compact`. The model writes a summary. The client keeps it as an item that it cannot read,
and sends it in the place of the history."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from gateway.apps.dialects.chat import answer_of, text_of
from gateway.apps.dialects.responses.answer import COMPLETED, Ids, response, usage_of
from gateway.apps.dialects.responses.items import CARRIED_SUMMARY
from gateway.apps.dialects.responses.request import RequestEcho
from gateway.apps.dialects.responses.stream import Item, ResponseStream
from gateway.domain.upstream import ProtocolFailure

COMPACTED = "response.compaction"  # the object at `/v1/responses/compact`

_encode = msgspec.json.Encoder().encode


def compaction_item(summary: bytes, ids: Ids) -> bytes:
    """`summary` is a JSON string."""
    if not summary.strip(b'"').strip():
        raise ProtocolFailure("wrote no summary of the conversation")
    item = {"id": ids.item("cmp", 0), "type": "compaction", "encrypted_content": Raw(CARRIED_SUMMARY + summary[1:])}
    return _encode(item)


def compacted(body: bytes, asked: RequestEcho, ids: Ids) -> bytes:
    """The whole answer of a chat, which is a summary, as the response that has it. Raises ProtocolFailure."""
    answer, _, message = answer_of(body, "a compaction")
    item = compaction_item(_encode(text_of(message)), ids)
    whole = response(asked, ids, COMPLETED, [item], usage=usage_of(answer.usage))
    if asked.compacts != "apart":
        return whole
    fields = msgspec.json.decode(whole, type=dict[str, Raw])
    output = Raw(b"[" + b",".join([*asked.kept, item]) + b"]")
    named = {name: fields[name] for name in ("id", "created_at", "usage")}
    return _encode({**named, "object": COMPACTED, "output": output})


class CompactionStream(ResponseStream):
    """The same as a stream, with the summary in one piece at its end."""

    whole: bytes | None = None
    _summary: Item | None = None  # None: no text has come

    def _open_item(self, kind: str, call_id: str = "", name: str = "") -> Item:
        self._frame = None
        self._open = self._new_item(kind, 0, "", call_id, name)
        if kind == self.TEXT:
            self._open = self._summary = self._summary or self._open
        return self._open

    def _say(self, item: Item, raw: bytes) -> None:
        if item is self._summary:
            self._keep(item, raw)

    def _add_to_call(self, index: int, id_: str | None, function: dict[str, Any]) -> None:
        """A summary calls nothing."""

    def _end(self) -> None:
        self._begin()
        item = compaction_item(self._summary.string if self._summary is not None else b'""', self._ids)
        for event in ("added", "done"):
            self._send(f"response.output_item.{event}", output_index=0, item=Raw(item))
        self.whole = response(self._asked, self._ids, COMPLETED, [item], usage=usage_of(self._usage))
        self._send("response.completed", response=Raw(self.whole))
