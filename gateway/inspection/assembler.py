"""The chunks of a stream as objects: read, and joined into the answer that the server would have sent without `stream`;
and a whole answer as the events of a stream. Pure.

For servers that answer in another form than was asked for, and for those that go on computing a whole answer after its
client has left, but stop when a stream is closed."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.body import value_of
from gateway.domain.endpoints import Endpoint
from gateway.domain.upstream import ErrorTold, PoolFull, ProtocolFailure, TooLarge, UpstreamFailure
from gateway.inspection.known_errors import is_pool_full
from gateway.inspection.shape import brief, error_in
from gateway.transport.sse import DONE, Framer, data_of, error_line, number_of

_TEXTS = frozenset({"content", "reasoning", "reasoning_content", "refusal"})  # fields whose parts are joined
_PART_COST = 64  # bytes that a part of a text takes besides its characters

Object = dict[str, Any]

_decode = msgspec.json.Decoder(Object).decode
_encode = msgspec.json.Encoder().encode


def read_object(data: bytes) -> Object:
    """The chunk in the data of an event, its `choices` a list of objects. Raises ProtocolFailure for what is no chunk,
    UpstreamFailure for an error event, PoolFull for that of a memory that is full."""
    try:
        chunk = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProtocolFailure("sent an event that is no chunk") from None
    error = chunk.get("error")
    if error is None and "choices" not in chunk:
        error = error_in(data)
    if error is not None:
        message = error.get("message") if type(error) is dict else error
        words = f"sent an error event: {brief(message)}"
        raise PoolFull(words) if is_pool_full(message) else ErrorTold(words, data)
    choices = chunk["choices"] = chunk.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise ProtocolFailure("sent an event that is no chunk")
    return chunk


class Assembler:
    """`add` takes the chunks in turn, as `read_object` returns them, and `finish` returns the body. `most`: bytes that
    are kept, and `kept`: so far. `endpoint` tells the shape of the choices: chats have a `message`, text completions a
    `text`."""

    def __init__(self, endpoint: Endpoint, most: int) -> None:
        self._object = endpoint.chunk_object.removesuffix(".chunk")
        self._chat = self._object != endpoint.chunk_object
        self._most = most
        self.kept = 0  # bytes
        self._head: Object = {}  # `id`, `model` and whatever else the chunks say of the whole answer
        self._usage: Any = None
        self._choices: dict[int, _ArrivingChoice] = {}

    def add(self, chunk: Object) -> None:
        """Raises ProtocolFailure for a call that is none, TooLarge beyond `most`."""
        self._usage = chunk.get("usage") or self._usage
        if not self._head:
            self._head = {name: value for name, value in chunk.items() if name not in ("choices", "usage")}
            self.kept += len(_encode(self._head))
        for choice in chunk["choices"]:
            joined = self._choices.setdefault(number_of(choice.get("index")), _ArrivingChoice())
            self.kept += joined.add(choice, chat=self._chat)
        if self.kept > self._most:
            raise TooLarge(f"the answer is larger than {self._most} bytes")

    def finish(self) -> bytes:
        """The whole answer. Raises UpstreamFailure if it is not complete."""
        if not self._choices or any(choice.finish_reason is None for choice in self._choices.values()):
            raise UpstreamFailure("the stream ended without a finish_reason")
        choices = [{"index": index, **self._choices[index].whole(chat=self._chat)} for index in sorted(self._choices)]
        return _encode({**self._head, "object": self._object, "choices": choices, "usage": self._usage})


class _ArrivingChoice:
    """One choice, as far as it has arrived."""

    __slots__ = ("_calls", "_message", "_others", "_parts", "finish_reason")

    def __init__(self) -> None:
        self.finish_reason: Any = None
        self._parts: dict[str, list[str]] = {}  # the parts of each text
        self._message: Object = {}  # the delta's other fields; the last value counts
        self._others: Object = {"logprobs": None}  # the same for the choice's
        self._calls: dict[object, Object] = {}

    def add(self, choice: Object, *, chat: bool) -> int:
        """Returns about how many bytes were kept of it."""
        kept = _PART_COST
        if (reason := choice.get("finish_reason")) is not None:
            self.finish_reason = reason
        delta = (choice.get("delta") or choice.get("message")) if chat else {"text": choice.get("text")}
        for name, value in (delta if isinstance(delta, dict) else {}).items():
            if name == "tool_calls":
                kept += self._add_calls(value)
            elif (name in _TEXTS or not chat) and isinstance(value, str):
                self._parts.setdefault(name, []).append(value)
                kept += len(value.encode(errors="replace")) + _PART_COST
            elif value is not None:
                self._message[name] = value
                kept += len(name) + len(_encode(value))
        for name, value in choice.items():
            if name == "logprobs" and isinstance(value, dict):
                kept += self._add_logprobs(value)
            elif name not in ("index", "delta", "message", "text", "finish_reason") and value is not None:
                self._others[name] = value
                kept += len(name) + len(_encode(value))
        return kept

    def _add_calls(self, calls: Any) -> int:
        """Calls are distinguished by their index. A call without one is a new call."""
        kept = 0
        for call in calls if isinstance(calls, list) else ():
            if not isinstance(call, dict):
                raise ProtocolFailure("sent a tool call that is no object")
            index = call.get("index")
            key = index if type(index) is int else f"call {len(self._calls)}"
            joined = self._calls.setdefault(key, {"id": None, "type": "function", "function": {}})
            kept += len(_encode(call)) + _PART_COST
            joined.update({name: value for name, value in call.items() if name not in ("index", "function") and value})
            function = call.get("function")
            for name, value in (function if isinstance(function, dict) else {}).items():
                if name == "arguments" and isinstance(value, str):
                    joined["function"].setdefault("arguments", []).append(value)
                elif value:
                    joined["function"][name] = value
        return kept

    def _add_logprobs(self, logprobs: Object) -> int:
        """The lists of all events are joined."""
        joined = self._others["logprobs"] = self._others["logprobs"] or {}
        for name, value in logprobs.items():
            if isinstance(value, list) and isinstance(joined.get(name), list):
                joined[name] += value
            elif value is not None or name not in joined:
                joined[name] = value
        return len(_encode(logprobs))

    def whole(self, *, chat: bool) -> Object:
        texts = {name: "".join(parts) for name, parts in self._parts.items()}
        ends = {**self._others, "finish_reason": self.finish_reason}
        if not chat:
            return {"text": "", **texts, **ends}
        message = {"role": "assistant", "content": None if self._calls else "", **self._message}
        message |= {name: text for name, text in texts.items() if text}
        if self._calls:
            message["tool_calls"] = [self._whole_call(call) for call in self._calls.values()]
        return {"message": message, **ends}

    @staticmethod
    def _whole_call(call: Object) -> Object:
        function = call["function"]
        arguments = function.get("arguments")
        if isinstance(arguments, list):
            function = {**function, "arguments": "".join(arguments)}
        return {**call, "function": function}


# -- answers in another form than was asked for ------------------------------------------------------------------------

_BEGINNINGS = (b"data:", b"event:", b"id:", b"error:", b": ", b":\n")
_DONE_EVENT = b"data: %b\n\n" % DONE


def begins_events(data: bytes) -> bool:
    """Is this the beginning of a stream of events, whatever its content type says?"""
    return data[:16].lstrip().startswith(_BEGINNINGS)


def events_of(body: bytes, endpoint: Endpoint) -> bytes | None:
    """A whole answer, or an error, as the events of a stream; None if the body is neither."""
    answer = value_of(body)
    if not isinstance(answer, dict):
        lines = bare_objects(body)
        return b"".join(b"data: %b\n\n" % line for line in lines) + _DONE_EVENT if lines else None
    error = answer.get("error") if answer.get("error") is not None else error_in(body)
    if error is not None:
        return b"data: %b\n\n" % _encode({"error": error})
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        return None
    head = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    head["object"] = endpoint.chunk_object
    chunks = [chunk for i, choice in enumerate(choices) for chunk in _chunks_of(choice, i)]
    if answer.get("usage") is not None:
        chunks.append({"choices": [], "usage": answer["usage"]})
    return b"".join(b"data: %b\n\n" % _encode({**head, **chunk}) for chunk in chunks) + _DONE_EVENT


def whole_as_events(data: bytes, endpoint: Endpoint) -> list[bytes]:
    """What an event says whose choices have messages, as whole answers do, as events. Empty where they have none."""
    choices = _decode(data).get("choices")
    if not isinstance(choices, list) or not choices or not all(_has_message(choice) for choice in choices):
        return []
    return list(Framer().feed(events_of(data, endpoint) or b""))


def _has_message(choice: Any) -> bool:
    return isinstance(choice, dict) and choice.get("delta") is None and isinstance(choice.get("message"), dict)


def bare_objects(text: bytes) -> list[bytes]:
    """The JSON objects that make up this text: it as a whole, or each of its lines. Empty: it is something else."""
    text = text.strip()
    if text[:1] != b"{":
        return []
    for parts in ([text], text.split(b"\n")):
        lines = [part for part in parts if part.strip()]
        if all(isinstance(value_of(line), dict) for line in lines):
            return lines
    return []


def _chunks_of(choice: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The choice without its end, and its end."""
    said = {name: value for name, value in choice.items() if name not in ("message", "finish_reason")}
    said["index"] = number
    end: dict[str, Any] = {"index": number, "finish_reason": choice.get("finish_reason")}
    if "message" in choice:
        said["delta"], end["delta"] = _numbered(choice["message"]), {}
    else:
        end["text"] = ""
    return [{"choices": [said | {"finish_reason": None}]}, {"choices": [end]}]


def _numbered(message: Any) -> Any:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return message
    return {
        **message,
        "tool_calls": [{**call, "index": i} if isinstance(call, dict) else call for i, call in enumerate(calls)],
    }


def whole_of(body: bytes, endpoint: Endpoint, most: int) -> bytes:
    """The whole answer that these events make up. Raises UpstreamFailure where they make up none."""
    framer, assembler = Framer(), Assembler(endpoint, most)
    for event in (*framer.feed(body), *framer.finish()):
        data = data_of(event) or error_line(event)
        if data == DONE:
            break
        if data:
            assembler.add(read_object(data))
    return assembler.finish()
