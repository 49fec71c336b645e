"""Chat answers, whole and in pieces, and what their messages say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2

from gateway.apps.dialects.anthropic.answer import to_message
from gateway.apps.dialects.anthropic.stream import MessageStream
from tests.apps.dialects.parts import DATA

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 12, "completion_tokens": 14, "total_tokens": 26}


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
    """One event of a chat stream, written as vLLM writes it; without a delta it has no choices."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    stop = {"stop_reason": more.pop("stop_reason")} if "stop_reason" in more else {}
    said = {"id": "chatcmpl-1", "model": "main", "choices": [] if delta is None else [choice | stop], **more}
    return b"data: " + json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def respaced(event: bytes) -> bytes:
    """The same as other servers write it."""
    if event == DONE or not event.startswith(b"data: "):
        return event
    return b"data: " + json.dumps(json.loads(event[6:])).encode() + b"\n\n"


def called(index: int, id_: str | None = None, name: str | None = None, arguments: str | None = None) -> dict[str, Any]:
    """A delta with a part of one call."""
    function = {key: said for key, said in (("name", name), ("arguments", arguments)) if said is not None}
    head = {"id": id_, "type": "function"} if id_ is not None else {}
    return {"tool_calls": [{"index": index, **head, "function": function}]}


@dataclass
class Answer:
    """What a model said: `calls` are (id, name, arguments as they were written)."""

    reasoning: str = ""
    text: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    finish: str = "stop"
    stop_reason: str | int | None = None
    usage: dict[str, Any] | None = field(default_factory=lambda: dict(USAGE))

    def whole(self) -> bytes:
        """As one chat answer."""
        calls = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in self.calls
        ]
        said = {"role": "assistant", "content": self.text or None, "reasoning": self.reasoning, "tool_calls": calls}
        choice = {"index": 0, "message": said, "finish_reason": self.finish, "stop_reason": self.stop_reason}
        return json.dumps({"id": "chatcmpl-1", "model": "main", "choices": [choice], "usage": self.usage}).encode()

    def end(self) -> list[bytes]:
        """The last events of its stream."""
        last = [] if self.usage is None else [chunk(None, usage=self.usage)]
        return [chunk({}, self.finish, stop_reason=self.stop_reason), *last, DONE]


def message(answer: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_message(answer, "msg_r"))
    return found


def streamed(events: Sequence[bytes]) -> bytes:
    return MessageStream("r").translate(events)


def told(stream: bytes) -> list[dict[str, Any]]:
    """The events of a message's stream; each is named by its type. Comments are left out."""
    assert stream.endswith(b"\n\n")
    found = []
    for event in stream.split(b"\n\n")[:-1]:
        if not event.startswith(b":"):
            name, data = event.decode().split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
    return found


def kinds(stream: bytes) -> list[str]:
    return [event["type"] for event in told(stream)]


def well_formed(stream: bytes, *, beside: bool = False) -> None:
    """Begun, block by block, ended. `beside`: a call's block may stay open while others begin."""
    first, *events, last = [event for event in told(stream) if event["type"] != "ping"]
    assert (first["type"], last) == ("message_start", {"type": "message_stop"})
    assert (first["message"]["content"], first["message"]["stop_reason"]) == ([], None)
    open_: dict[int, str] = {}
    begun = 0
    for event in events[:-1]:
        index = event["index"]
        if event["type"] == "content_block_start":
            assert index == begun
            assert beside or not open_
            open_[index] = event["content_block"]["type"]
            begun += 1
        elif event["type"] == "content_block_delta":
            kind = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
            assert event["delta"]["type"] == kind[open_[index]]
        else:
            assert event["type"] == "content_block_stop"
            del open_[index]
    assert open_ == {}
    assert events[-1]["type"] == "message_delta"


_stream = b""


def _serve(_: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=_stream)


_client = anthropic.Anthropic(api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(_serve)))


def accumulated(stream: bytes) -> dict[str, Any]:
    """What the anthropic SDK makes of it: the message's own fields, as they come over the wire."""
    global _stream
    _stream = stream
    with _client.messages.stream(model="main", max_tokens=1, messages=[]) as events:
        final = events.get_final_message()
    found: dict[str, Any] = final.to_dict(mode="json")
    found.pop("stop_details", None)
    for block in found["content"]:
        block.pop("parsed_output", None)
    return found


def same(stream: bytes, answer: bytes) -> None:
    """The stream says what the whole answer does."""
    assert accumulated(stream) == message(answer)


# -- what a real vLLM said --------------------------------------------------------------------------------------------


def captured(name: str) -> bytes:
    """The body of an answer of vLLM 0.32 on /v1/messages."""
    raw = (DATA / f"{name}.txt").read_bytes().replace(b"\r\n", b"\n")
    return raw.partition(b"### ---- response, verbatim ----\n")[2].partition(b"\n\n")[2].strip(b"\n") + b"\n\n"
