"""Server-sent events as bytes: splitting a stream into events, and reading their content. Events keep their bytes."""

from __future__ import annotations

import re
from typing import Any, Protocol

import msgspec

from gateway.domain.upstream import ProtocolFailure

# A blank line ends an event. The groups are atomic, because backtracking would read one CRLF as two line ends.
_END = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_LINES = re.compile(rb"\r\n|\r|\n")
# Of a byte, `in` costs a tenth of what it costs of bytes, which Python tries to read as a number first. A longer
# pattern is looked for with `find`, for the same reason.
CR = 13
_BOM = b"\xef\xbb\xbf"
EVENT_MOST = 16 * 1024 * 1024  # bytes of one event: a longer one is a protocol failure


class Framer:
    """Splits a byte stream, which arrives in pieces of any size, into events. Events keep their bytes, the blank
    line included. A byte order mark at the start of the stream is dropped: behind other bytes it would hide the
    first field. `between`: what has come so far are whole events, whose lines end in LF."""

    __slots__ = ("_begins", "_cr", "_head", "_lf", "_owed", "_rest", "_searched", "between")

    def __init__(self) -> None:
        self.between = False
        self._rest = bytearray()
        self._searched = 0  # no event ends before here
        self._begins = True  # the stream may still begin with a byte order mark
        self._cr = False  # lines of this stream end in CR or CRLF
        self._lf = False  # an LF was seen in this stream
        self._owed = False  # the last event was returned with CR CR: an LF that follows belongs to the same line end
        self._head = b""  # that LF: it is returned in front of the next event, and is no line end of it

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete now. Raises `ProtocolFailure` for an event of more than `EVENT_MOST` bytes."""
        if self.is_event(data):  # nearly always
            return [data]
        if self._begins:
            if self._rest or len(data) < len(_BOM) or data.startswith(_BOM):
                data = self._begin(data)
            else:
                self._begins = False
        self._cr = self._cr or CR in data
        self.between = False
        events = self._feed_any(data) if self._cr else self._feed_plain(data)
        self.between = self._lf and not (self._rest or self._cr)
        return events

    def is_event(self, data: bytes) -> bool:
        """Is `data`, which has come now, one whole event and nothing else? Then it need not be fed."""
        return self.between and CR not in data and 0 < data.find(b"\n\n") == len(data) - 2

    def _begin(self, data: bytes) -> bytes:
        """The stream's first bytes without its byte order mark; b"" while they may still become one."""
        data = bytes(self._rest) + data
        self._rest.clear()
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._rest += data
            return b""
        self._begins = False
        return data.removeprefix(_BOM)

    def _feed_any(self, data: bytes) -> list[bytes]:
        """`feed` for any line ends. A CR at the end of the received bytes may be the first half of a CRLF, and an event
        is returned with its whole end, so it waits for the next byte. Only in streams whose lines have ended in CR
        alone, CR CR is an end."""
        self._lf = self._lf or b"\n" in data
        if self._owed and data:
            self._owed = False
            if data[0] == 10:
                self._head, data = data[:1], data[1:]
        buffer = self._joined(data)
        events: list[bytes] = []
        start = 0
        for end in _END.finditer(buffer, self._searched):
            if end.end() == len(buffer) and buffer[-1] == 13:
                if self._lf or buffer[-2] != 13:
                    break
                self._owed = True
            events.append(bytes(buffer[start : end.end()]))
            start = end.end()
        self._keep(buffer[start:] if start else buffer)
        if events and self._head:
            events[0] = self._head + events[0]
            self._head = b""
        return events

    def _feed_plain(self, data: bytes) -> list[bytes]:
        """`feed` for streams whose lines end in LF alone, as nearly all do: faster, without a regular expression."""
        if not self._rest and data.endswith(b"\n\n") and not data.endswith(b"\n\n\n"):
            self._lf = True
            events = data[:-2].split(b"\n\n")
            return [event + b"\n\n" for event in events] if len(events) > 1 else [data]
        self._lf = self._lf or b"\n" in data
        buffer = self._joined(data)
        if buffer.find(b"\n\n", self._searched) < 0:
            self._keep(buffer)
            return []
        *events, rest = bytes(buffer).split(b"\n\n")
        self._keep(rest)
        return [event + b"\n\n" for event in events]

    def _joined(self, data: bytes) -> bytes | bytearray:
        if not self._rest:
            return data
        self._rest += data  # in place: an event in many small pieces is not copied for each of them
        return self._rest

    def _keep(self, rest: bytes | bytearray) -> None:
        if rest is not self._rest:
            self._rest = bytearray(rest)
        self._searched = max(0, len(rest) - 3)
        if len(rest) > EVENT_MOST:
            raise ProtocolFailure(f"an event of more than {EVENT_MOST} bytes")

    @property
    def unfinished(self) -> int:
        """The bytes that have come of the next event."""
        return len(self._rest)

    def finish(self) -> list[bytes]:
        """The last event of a stream that ended without a blank line, completed."""
        rest = bytes(self._rest)
        self._rest.clear()
        if not rest.strip():
            return []
        rest = self._head + rest
        if rest.endswith(b"\r\n\r"):
            return [rest + b"\n"]
        return [rest.rstrip(b"\r\n") + b"\n\n"]


def data_of(event: bytes) -> bytes | None:
    """The event's data, its lines joined by LF; None for a comment or an event without data."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and CR not in event:
        return event[6:-2]
    parts = []
    for line in _LINES.split(event.removeprefix(_BOM)):
        name, _, value = line.partition(b":")
        if name == b"data":
            parts.append(value.removeprefix(b" "))
    return b"\n".join(parts) if parts else None


def error_line(event: bytes) -> bytes | None:
    """The data of an event that has none, but a line `error: {...}`, as llama-server of 2025 tells an error."""
    name, _, told = event.strip().partition(b":")
    if name != b"error" or not told.strip():
        return None
    try:
        return b'{"error":%b}' % msgspec.json.encode(msgspec.json.decode(told))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return error_of(told.decode("utf-8", "replace").strip())


def error_of(words: str) -> bytes:
    """The data of an event that tells these words as an error."""
    return b'{"error":%b}' % msgspec.json.encode(words)


class Choice(msgspec.Struct):
    index: Any = 0
    delta: Any = None
    text: Any = None
    finish_reason: Any = None


class Chunk(msgspec.Struct):
    """The fields of a chunk that the request path reads. The bytes are passed on, so unknown fields are kept."""

    id: Any = None
    created: Any = None
    model: Any = None
    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None


# vLLM's finish_reason when it is stopped, and when it fails; those of Z.ai, DeepSeek and Gemini when they do.
BROKEN_ENDS = ("abort", "error", "network_error", "insufficient_system_resource", "malformed_function_call")
_decode_chunk = msgspec.json.Decoder(Chunk).decode
DONE = b"[DONE]"


def read_chunk(data: bytes) -> Chunk | None:
    """The data as a chunk; None if it is not one (it is then passed on unchanged)."""
    try:
        return _decode_chunk(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def has_content(choice: Choice) -> bool:
    """Does this choice carry content: text, refusal, or part of a tool call? (Role and reasoning are not content.)"""
    if choice.text:
        return True
    delta = choice.delta
    return isinstance(delta, dict) and (bool(delta.get("content")) or has_other_content(delta))


def has_other_content(delta: dict[str, Any]) -> bool:
    """Does this delta carry content other than text?"""
    return bool(delta.get("refusal") or delta.get("tool_calls") or delta.get("function_call") or delta.get("audio"))


def number_of(index: object) -> int:
    """The choice's index as a number. An index that is no number counts as 0, so that no stream fails because of it."""
    return index if isinstance(index, int) else 0


def content_of(choice: Choice) -> str:
    """The text of a chat delta; "" where it has none."""
    delta = choice.delta
    content = delta.get("content") if isinstance(delta, dict) else None
    return content if isinstance(content, str) else ""


def has_reasoning(choice: Choice) -> bool:
    """Does this choice carry reasoning, under either of its names?"""
    delta = choice.delta
    return isinstance(delta, dict) and bool(delta.get("reasoning") or delta.get("reasoning_content"))


def output_size(choice: Choice) -> int:
    """Bytes of the text, the thoughts and the calls that this choice carries."""
    delta = choice.delta if isinstance(choice.delta, dict) else {}
    texts = [choice.text, *(delta.get(name) for name in ("content", "refusal", "reasoning", "reasoning_content"))]
    calls = delta.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    for function in (*functions, delta.get("function_call")):
        if isinstance(function, dict):
            texts += function.get("name"), function.get("arguments")
    return sum(len(text.encode("utf-8", "replace")) for text in texts if isinstance(text, str))


def is_role(event: bytes) -> bool:
    """Does each choice of this event carry a `role`, and none a finish_reason?"""
    data = data_of(event)
    chunk = read_chunk(data) if data is not None else None
    if chunk is None or not chunk.choices:
        return False
    return all(isinstance(c.delta, dict) and "role" in c.delta and c.finish_reason is None for c in chunk.choices)


def is_plain(event: bytes) -> bool:
    """Is this event certainly a delta without a finish_reason or an error? Recognised without parsing; nearly all are.

    Inside JSON strings quotes are escaped, so these byte patterns can only be keys. Only compact JSON (vLLM's) is
    recognised; everything else is parsed. (A usage in such a delta is not the final one.)
    """
    end = event.find(b'"finish_reason":')
    return (
        end >= 0
        and event.startswith(b"data: {")
        and event.startswith(b"null", end + 16)
        and event.find(b'"finish_reason":"', end) < 0
        and event.find(b'"error":{') < 0
    )


# -- bytes that are kept while more of a body or an answer comes, and counted ------------------------------------------

UNCOUNTED = 64 * 1024  # bytes that a reader may keep without counting them: no more than a read brings


class Counted(Protocol):
    """What counts the bytes in memory; `add` may raise."""

    def add(self, size: int) -> None: ...

    def release(self, size: int) -> None: ...


class HeldBytes:
    """How many bytes a reader keeps, counted in `memory` (None = not at all) while they are more than UNCOUNTED."""

    __slots__ = ("_memory", "_size")

    def __init__(self, memory: Counted | None) -> None:
        self._memory = memory
        self._size = 0

    def set(self, size: int) -> None:
        """So many are kept now. Raises what counting raises."""
        size = size if size > UNCOUNTED else 0
        if self._memory is None or size == self._size:
            return
        if size > self._size:
            self._memory.add(size - self._size)
        else:
            self._memory.release(self._size - size)
        self._size = size
