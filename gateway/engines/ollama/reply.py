"""Translates Ollama's answers into OpenAI's format: NDJSON lines into SSE chunks, whole answers into one object.
Pure."""

from __future__ import annotations

import re
import secrets
import time
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.tokens import count_of
from gateway.domain.upstream import ProtocolFailure
from gateway.engines.base import error_of
from gateway.inspection.shape import brief

REPEATED = 25  # times one piece at the end of an answer, from which on it is taken for stopped: Ollama does so after 30
STOPPED = "stopped by Ollama: one token again and again"
_CUT_CALL = re.compile(
    r"llama-server returned invalid tool call arguments for .{0,1000}: unexpected end of JSON input", re.DOTALL
)
_REPEATING = re.compile(rf"(.{{1,32}}?)\1{{{REPEATED},}}\Z", re.DOTALL)
LINE_MOST = 16 * 1024 * 1024  # bytes of one line: a longer one is a protocol failure

_encode = msgspec.json.Encoder().encode


class CalledFunction(msgspec.Struct):
    name: str
    arguments: Raw = Raw(b"{}")


class ToolCall(msgspec.Struct):
    function: CalledFunction


class OllamaMessage(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None


class OllamaLine(msgspec.Struct):
    """One line of a stream, or a whole answer. A chat has `message`, a completion `response`. Counters are absent
    before the last line (`done`), and when they are 0."""

    message: OllamaMessage | None = None
    response: str | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: Any = 0
    eval_count: Any = 0
    logprobs: list[dict[str, Any]] | None = None
    error: Any = None
    remote_host: Any = None  # another host has answered, through this Ollama

    def usage(self) -> dict[str, int]:
        prompt, answer = count_of(self.prompt_eval_count), count_of(self.eval_count)
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}

    def only_loaded(self) -> bool:
        """Was the model only loaded or unloaded, without an answer?"""
        return self.done_reason in ("load", "unload")


_decode_line = msgspec.json.Decoder(OllamaLine).decode


def read_line(line: bytes) -> OllamaLine:
    try:
        return _decode_line(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolFailure(f"Ollama sent something that is not its JSON: {error}") from None


class LineFramer:
    """Splits a byte stream, which arrives in pieces of any size, into lines."""

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without empty ones."""
        *complete, rest = data.split(b"\n")
        if complete:
            complete[0] = b"".join([*self._parts, complete[0]])
            self._parts.clear()
            self.size = 0
        if rest:
            self._parts.append(rest)
            self.size += len(rest)
            if self.size > LINE_MOST:
                raise ProtocolFailure(f"a line of more than {LINE_MOST} bytes")
        return [line for line in complete if line.strip()]

    def finish(self) -> list[bytes]:
        """The last line of a stream that ended without a line break."""
        rest = b"".join(self._parts)
        self._parts.clear()
        return [rest] if rest.strip() else []


class ReplyBuilder:
    """Builds one reply in OpenAI's format. Its id, time and model are the same in all chunks."""

    def __init__(self, request_id: str, model: str, *, chat: bool, wants_usage: bool = False) -> None:
        self.id = ("chatcmpl-" if chat else "cmpl-") + request_id
        self.created = int(time.time())
        self.model = model
        self.chat = chat
        self.wants_usage = wants_usage
        self.calls = 0  # tool calls so far
        self.stopped = ""  # why Ollama ended the answer before the model did
        self._head = self._envelope("chat.completion.chunk" if chat else "text_completion")
        self._begun = False

    def _envelope(self, kind: str) -> bytes:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return _encode(head)[:-1]

    # -- a stream -------------------------------------------------------------------------------------------------

    def events(self, line: OllamaLine) -> bytes:
        """The SSE events of one line: its thoughts, text and calls, and after the last line the end."""
        if line.error is not None:
            return b'data: {"error":' + _encode(error_of(error_text(line.error), 500)) + b"}\n\n"
        out = []
        if self.chat:
            if not self._begun:
                self._begun = True
                out.append(self._chunk(b'{"role":"assistant","content":""}'))
            if line.message is not None:
                self._add_message(line, line.message, out)
        elif line.response:
            out.append(self._text(line.response))
        if line.done:
            self._end(line, out)
        return b"".join(out)

    def keepalive_event(self) -> bytes:
        """An event without content, which shows that the server is still working."""
        return self._chunk(b'{"content":""}')

    def _add_message(self, line: OllamaLine, message: OllamaMessage, out: list[bytes]) -> None:
        if message.thinking:
            out.append(self._chunk(b'{"reasoning":' + _encode(message.thinking) + b"}"))
        if message.content or line.logprobs:
            out.append(self._chunk(b'{"content":' + _encode(message.content or "") + b"}", line.logprobs))
        for call in self.numbered(message):
            out.append(self._chunk(b'{"tool_calls":[' + _encode(call) + b"]}"))

    def _end(self, line: OllamaLine, out: list[bytes]) -> None:
        end = _encode(self.finish_reason(line))
        if self.chat:
            out.append(self._chunk(b"{}", finish=end, why=self.stopped))
        else:
            out.append(self._text("", finish=end))
        if self.wants_usage:
            out.append(b"data: " + self._head + b',"choices":[],"usage":' + _encode(line.usage()) + b"}\n\n")
        out.append(b"data: [DONE]\n\n")

    def _chunk(
        self, delta: bytes, logprobs: list[dict[str, Any]] | None = None, finish: bytes = b"null", why: str = ""
    ) -> bytes:
        finish += b',"stop_reason":' + _encode(why) if why else b""
        also = b',"logprobs":' + _encode(chat_logprobs(logprobs)) if logprobs else b""
        choice = b'{"index":0,"delta":' + delta + also + b',"finish_reason":' + finish + b"}"
        return b"data: " + self._head + b',"choices":[' + choice + b"]}\n\n"

    def _text(self, text: str, finish: bytes = b"null") -> bytes:
        choice = b'{"index":0,"text":' + _encode(text) + b',"logprobs":null,"finish_reason":' + finish + b"}"
        return b"data: " + self._head + b',"choices":[' + choice + b"]}\n\n"

    # -- in one piece ---------------------------------------------------------------------------------------------

    def whole(self, line: OllamaLine) -> bytes:
        """A whole answer as one object."""
        choice: dict[str, Any] = {"index": 0}
        if self.chat:
            received = line.message or OllamaMessage()
            message: dict[str, Any] = {"role": "assistant", "content": received.content}
            if received.thinking:
                message["reasoning"] = received.thinking
            if calls := self.numbered(received):
                message["content"] = received.content or None
                message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in calls]
            choice["message"] = message
            choice["logprobs"] = chat_logprobs(line.logprobs)
        else:
            choice |= {"text": line.response or "", "logprobs": None}
        choice["finish_reason"] = self.finish_reason(line)
        if self.stopped:
            choice["stop_reason"] = self.stopped
        body = {"choices": [choice], "usage": line.usage()}
        return self._envelope("chat.completion" if self.chat else "text_completion") + b"," + _encode(body)[1:]

    def numbered(self, message: OllamaMessage) -> list[dict[str, Any]]:
        """The calls of a line in OpenAI's format. Ollama sends each call whole. Older versions give it no id, and the
        indexes start at 0 again in every line."""
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

    def finish_reason(self, line: OllamaLine) -> str:
        if line.done_reason == "length":
            return "length"  # with or without calls: the turn was cut, and further calls may be missing
        return "tool_calls" if self.calls else "stop"


def chat_logprobs(logprobs: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    """Logprobs in OpenAI's format. Ollama's entries lack `top_logprobs` if none were requested."""
    return {"content": [{"bytes": None, "top_logprobs": [], **entry} for entry in logprobs]} if logprobs else None


def arguments_of(function: CalledFunction) -> str:
    """A call's arguments as JSON text, as in OpenAI's API. Raises ProtocolFailure if they are no object."""
    try:
        arguments = bytes(function.arguments).decode()
    except UnicodeDecodeError as error:
        raise ProtocolFailure(f"Ollama sent a call whose arguments are no text: {error}") from None
    if arguments == "null":
        return "{}"
    if not arguments.startswith("{"):
        raise ProtocolFailure("Ollama sent a call whose arguments are no object")
    return arguments


def is_cut_call(error: Any) -> bool:
    """Is this the error of a call that the limit of the answer has cut off? Of models with the chat template of their
    file; the others just end with `length`."""
    return isinstance(error, str) and _CUT_CALL.fullmatch(error) is not None


def is_repeating(line: OllamaLine) -> bool:
    """Does a whole answer end with one token again and again? Ollama then ends it without `done`."""
    message = line.message or OllamaMessage()
    text = message.content or message.thinking or line.response or ""
    return _REPEATING.search(text[-2000:]) is not None


def error_text(error: Any) -> str:
    """Ollama's error, usually a plain string, as text."""
    return error if isinstance(error, str) else brief(error)
