"""What Ollama says, in OpenAI's shape: lines of NDJSON become SSE chunks, whole answers whole objects. Pure."""

from __future__ import annotations

import secrets
import time
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.upstream import ProtocolFailure
from gateway.domain.usage import count_of
from gateway.engines.base import error_of
from gateway.inspection.shape import brief

LINE_MOST = 16 * 1024 * 1024  # bytes of one line: beyond this it is not a stream of lines

_encode = msgspec.json.Encoder().encode


class Function(msgspec.Struct):
    name: str
    arguments: Raw = Raw(b"{}")


class ToolCall(msgspec.Struct):
    function: Function


class Message(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None


class Line(msgspec.Struct):
    """One line of a stream, or a whole answer. `message` is a chat's, `response` a completion's. Counters are absent
    until `done`, and where they are 0."""

    message: Message | None = None
    response: str | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: Any = 0
    eval_count: Any = 0
    logprobs: list[dict[str, Any]] | None = None
    error: Any = None

    def usage(self) -> dict[str, int]:
        prompt, answer = count_of(self.prompt_eval_count), count_of(self.eval_count)
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}

    def said_nothing(self) -> bool:
        """The model was loaded or unloaded, and that was all."""
        return self.done_reason in ("load", "unload")


_decode_line = msgspec.json.Decoder(Line).decode


def read_line(line: bytes) -> Line:
    try:
        return _decode_line(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolFailure(f"Ollama sent something that is not its JSON: {error}") from None


class LineFramer:
    """Cuts a byte stream into lines, however it arrives."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without empty ones."""
        *complete, rest = data.split(b"\n")
        if complete:
            complete[0] = b"".join([*self._parts, complete[0]])
            self._parts.clear()
            self._size = 0
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > LINE_MOST:
                raise ProtocolFailure(f"a line of more than {LINE_MOST} bytes")
        return [line for line in complete if line.strip()]

    def finish(self) -> list[bytes]:
        """The last line of a stream that ended without a line break."""
        rest = b"".join(self._parts)
        self._parts.clear()
        return [rest] if rest.strip() else []


class Reply:
    """One reply in OpenAI's shape: what all of its chunks have in common, and what is made for it."""

    def __init__(self, request_id: str, model: str, *, chat: bool, wants_usage: bool = False) -> None:
        self.id = ("chatcmpl-" if chat else "cmpl-") + request_id
        self.created = int(time.time())
        self.model = model
        self.chat = chat
        self.wants_usage = wants_usage
        self.calls = 0  # tool calls so far
        self._head = self._envelope("chat.completion.chunk" if chat else "text_completion")
        self._begun = False

    def _envelope(self, kind: str) -> bytes:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return _encode(head)[:-1]

    # -- a stream -------------------------------------------------------------------------------------------------

    def events(self, line: Line) -> bytes:
        """The SSE events of one line: at most thoughts, text, calls; with the last line the end."""
        if line.error is not None:
            return b'data: {"error":' + _encode(error_of(error_text(line.error), 500)) + b"}\n\n"
        out = []
        if self.chat:
            if not self._begun:
                self._begun = True
                out.append(self._chunk(b'{"role":"assistant","content":""}'))
            if line.message is not None:
                self._say(line, line.message, out)
        elif line.response:
            out.append(self._text(line.response))
        if line.done:
            self._end(line, out)
        return b"".join(out)

    def nothing_yet(self) -> bytes:
        """An event that says nothing but that the server is at work."""
        return self._chunk(b'{"content":""}')

    def _say(self, line: Line, message: Message, out: list[bytes]) -> None:
        if message.thinking:
            out.append(self._chunk(b'{"reasoning":' + _encode(message.thinking) + b"}"))
        if message.content or line.logprobs:
            out.append(self._chunk(b'{"content":' + _encode(message.content or "") + b"}", line.logprobs))
        for call in self.numbered(message):
            out.append(self._chunk(b'{"tool_calls":[' + _encode(call) + b"]}"))

    def _end(self, line: Line, out: list[bytes]) -> None:
        end = _encode(self.finish_reason(line))
        if self.chat:
            out.append(self._chunk(b"{}", finish=end))
        else:
            out.append(self._text("", finish=end))
        if self.wants_usage:
            out.append(b"data: " + self._head + b',"choices":[],"usage":' + _encode(line.usage()) + b"}\n\n")
        out.append(b"data: [DONE]\n\n")

    def _chunk(self, delta: bytes, logprobs: list[dict[str, Any]] | None = None, finish: bytes = b"null") -> bytes:
        also = b',"logprobs":' + _encode(chat_logprobs(logprobs)) if logprobs else b""
        choice = b'{"index":0,"delta":' + delta + also + b',"finish_reason":' + finish + b"}"
        return b"data: " + self._head + b',"choices":[' + choice + b"]}\n\n"

    def _text(self, text: str, finish: bytes = b"null") -> bytes:
        choice = b'{"index":0,"text":' + _encode(text) + b',"logprobs":null,"finish_reason":' + finish + b"}"
        return b"data: " + self._head + b',"choices":[' + choice + b"]}\n\n"

    # -- in one piece ---------------------------------------------------------------------------------------------

    def whole(self, line: Line) -> bytes:
        """A whole answer as one object."""
        choice: dict[str, Any] = {"index": 0}
        if self.chat:
            said = line.message or Message()
            message: dict[str, Any] = {"role": "assistant", "content": said.content}
            if said.thinking:
                message["reasoning"] = said.thinking
            if calls := self.numbered(said):
                message["content"] = said.content or None
                message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in calls]
            choice["message"] = message
            choice["logprobs"] = chat_logprobs(line.logprobs)
        else:
            choice |= {"text": line.response or "", "logprobs": None}
        choice["finish_reason"] = self.finish_reason(line)
        body = {"choices": [choice], "usage": line.usage()}
        return self._envelope("chat.completion" if self.chat else "text_completion") + b"," + _encode(body)[1:]

    def numbered(self, message: Message) -> list[dict[str, Any]]:
        """The calls of a line in OpenAI's shape. Ollama sends a call whole; older versions give it no id, and its
        indexes begin anew with every line."""
        calls = []
        for call in message.tool_calls or ():
            function = {"name": call.function.name, "arguments": arguments_of(call.function)}
            calls.append(
                {
                    "index": self.calls,
                    "id": f"call_{secrets.token_hex(12)}",
                    "type": "function",
                    "function": function,
                }
            )
            self.calls += 1
        return calls

    def finish_reason(self, line: Line) -> str:
        if line.done_reason == "length":
            return "length"  # calls or not: the turn was cut, and more may have been meant to follow
        return "tool_calls" if self.calls else "stop"


def chat_logprobs(logprobs: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    """Ollama's entries lack `top_logprobs` where none were asked for."""
    return {"content": [{"bytes": None, "top_logprobs": [], **entry} for entry in logprobs]} if logprobs else None


def arguments_of(function: Function) -> str:
    """A call's arguments as the text that OpenAI's API has for them. Raises ProtocolFailure for what is no object."""
    try:
        arguments = bytes(function.arguments).decode()
    except UnicodeDecodeError as error:
        raise ProtocolFailure(f"Ollama sent a call whose arguments are no text: {error}") from None
    if arguments == "null":
        return "{}"
    if not arguments.startswith("{"):
        raise ProtocolFailure("Ollama sent a call whose arguments are no object")
    return arguments


def error_text(error: Any) -> str:
    """Ollama's error: a plain string."""
    return error if isinstance(error, str) else brief(error)
