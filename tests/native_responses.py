"""What a server with `/v1/responses` of its own sends, as vLLM 0.32.0 does: a stream's events, a whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 60},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 107,
}

Item = dict[str, Any]


def thoughts(text: str) -> Item:
    return {"id": "rs_up", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def message(text: str) -> Item:
    part: Item = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
    return {"id": "msg_up", "type": "message", "role": "assistant", "content": [part], "status": "completed"}


def call(arguments: dict[str, Any], name: str = "get_weather") -> Item:
    named = {"call_id": "call-up", "name": name, "arguments": json.dumps(arguments)}
    return {"id": "fc_up", "type": "function_call", **named, "status": "completed"}


def whole(*items: Item, status: str = "completed", **more: Any) -> dict[str, Any]:
    head = {"id": "resp_up", "object": "response", "created_at": 2, "model": "served/model", "status": status}
    return {**head, "output": list(items), "usage": USAGE, "own_field": 1, "store": False, **more}


def event(kind: str, number: int, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, "sequence_number": number, **fields}, separators=(",", ":"), ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()


def stream(*items: Item, status: str = "completed", piece: int = 4, **more: Any) -> list[bytes]:
    """The events of a whole response, its texts in deltas of `piece` characters."""
    written = []
    begun = whole(status="in_progress", usage=None)
    kinds = [("response.created", {"response": begun}), ("response.in_progress", {"response": begun})]
    for index, item in enumerate(items):
        kinds += _of_item(index, item, piece)
    kinds.append((f"response.{status}", {"response": whole(*items, status=status, **more)}))
    for number, (kind, fields) in enumerate(kinds):
        written.append(event(kind, number, **fields))
    return written


def _of_item(index: int, item: Item, piece: int) -> Iterator[tuple[str, dict[str, Any]]]:
    where = {"item_id": item["id"], "output_index": index}
    if item["type"] == "function_call":
        part: Item | None = None
        begun, text, kind = {**item, "arguments": ""}, item["arguments"], "function_call_arguments"
    elif item["type"] in ("message", "reasoning"):
        part = item["content"][0]
        begun, text, kind = {**item, "content": []}, part["text"], part["type"].removeprefix("response.")
    else:
        yield "response.output_item.added", {"output_index": index, "item": item}
        yield "response.output_item.done", {"output_index": index, "item": item}
        return
    place = where if part is None else {**where, "content_index": 0}
    yield "response.output_item.added", {"output_index": index, "item": {**begun, "status": "in_progress"}}
    if part is not None:
        yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
    for at in range(0, len(text), piece):
        yield f"response.{kind}.delta", {**place, "delta": text[at : at + piece]}
    yield f"response.{kind}.done", {**place, ("text" if part is not None else "arguments"): text}
    if part is not None:
        yield "response.content_part.done", {**place, "part": part}
    yield "response.output_item.done", {"output_index": index, "item": item}
