"""`/v1/chat/completions` and `/v1/completions` as vLLM 0.32 writes them, whole and streamed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from simulator.answer import CUTS, Answer
from simulator.engine import EngineDied, PoolFull, Sequence
from simulator.faults import Fault
from simulator.formats import Format, Schemas
from simulator.parsers import Delta, Message, Reasoning, ReasoningSplitter, ToolStream, parse
from simulator.server import Exchange
from simulator.validation import ENGINE_DEAD
from simulator.wire import DONE, EventStream, break_off, send_body

CONTENT_TYPE = "text/event-stream; charset=utf-8"
_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Shape:
    """How one chat answer is parsed and written."""

    id: str
    model: str
    fingerprint: str
    thinking: bool  # as the reasoning parser sees it
    rules: Reasoning | None  # the reasoning parser
    form: Format | None  # the tool parser; None = text goes out as it is
    schemas: Schemas
    tools_live: bool  # false under tool_choice none
    choice: Any  # the request's tool_choice
    new_id: Callable[[], str]
    include_usage: bool
    continuous_usage: bool
    include_reasoning: bool = True
    created: int = 0

    @property
    def plain(self) -> bool:
        return self.rules is None and self.form is None

    def finish(self, outcome: str, calls: int, streaming: bool) -> str:
        """The finish_reason: named ends with stop, required without stream with tool_calls even when there are none, a
        cut call is `length` only in a stream."""
        if isinstance(self.choice, dict) and (calls or outcome == "stop"):
            return "stop" if outcome in ("stop", "length") and not (streaming and outcome == "length") else outcome
        if calls and (outcome == "stop" or (outcome == "length" and not streaming)):
            return "tool_calls"
        if self.choice == "required" and outcome == "stop" and not streaming and self.form is not None:
            return "tool_calls"
        return outcome


class _Choice:
    """The stream state of one choice."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.splitter = ReasoningSplitter(shape.rules, shape.thinking)
        live = shape.tools_live
        form = shape.form if shape.form and (live or not shape.form.keeps_markup_on_none) else None
        self.tools = ToolStream(form, shape.schemas, shape.new_id, live) if form else None
        self.seen = 0
        self.closed = False

    def feed(self, token: str) -> list[Delta]:
        thought, text = self.splitter.feed(token)
        deltas: list[Delta] = [{"reasoning": thought}] if thought and self.shape.include_reasoning else []
        if text:
            deltas += self.tools.feed(text) if self.tools else [{"content": text}]
        return deltas

    def last(self) -> list[Delta]:
        return self.tools.finish() if self.tools else []

    @property
    def calls(self) -> int:
        return self.tools.calls if self.tools and self.shape.tools_live else 0


POOL_FULL_TEXT = "Context size has been exceeded."  # llama-server's, for every request that it runs


def error_event(fault: Fault) -> bytes:
    """With the fault's `body` as its message, else the one of a vLLM whose engine has died."""
    message = fault.body if isinstance(fault.body, str) else ENGINE_DEAD
    error = {"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}
    return b"data: " + json.dumps(error).encode() + b"\n\n"  # with spaces, as vLLM writes this event only


def broken(died: EngineDied) -> Fault:
    return Fault("error_event", body=POOL_FULL_TEXT if isinstance(died, PoolFull) else None)


class ChatStream:
    """Writes one chat answer as events."""

    def __init__(self, exchange: Exchange, faults: Mapping[str, Fault], shape: Shape, answer: Answer) -> None:
        self.faults, self.shape, self.answer = faults, shape, answer
        self.exchange = exchange
        self.stream = EventStream(exchange, faults, CONTENT_TYPE)
        self.choices = [_Choice(shape) for _ in answer.plans]
        self.cut = next((faults[k] for k in CUTS if k in faults), None)
        self.emitted = 0
        self.opened = False
        self._head = _encode(
            {"id": shape.id, "object": "chat.completion.chunk", "created": shape.created, "model": shape.model}
        )[:-1]

    async def run(self, keep_alive: Callable[[], Any]) -> None:
        """Stream the whole answer. `keep_alive` waits for progress and sends comments while the request is queued.

        Raises EngineDied when the engine dies before the head is sent."""
        if "hang_before" in self.faults:
            await self.answer.begun()
        await self.stream.open()
        try:
            await self._write_events(keep_alive)
        except EngineDied as died:
            await self._break(broken(died))

    async def _write_events(self, keep_alive: Callable[[], Any]) -> None:
        if "hang_before_content" in self.faults or (self.cut and self.cut.after == 0) or self._held_at_once():
            await self.stream.send(self._roles())
            self.opened = True
        while True:
            events = self._ready()
            await self.stream.send(events)
            if self.cut and self.emitted >= self.cut.after:
                await self._break(self.cut)
                return
            if all(c.closed for c in self.choices):
                break
            if not events:
                await keep_alive()
        await self._end()

    def _held_at_once(self) -> bool:
        return all(p.hold_at == 0 for p in self.answer.plans)

    async def _break(self, cut: Fault) -> None:
        self.answer.cancel()
        await break_off(self.exchange, self.stream, cut, [error_event(cut), DONE])

    async def _end(self) -> None:
        tail = [self._usage_event()] if self.shape.include_usage or "unasked_usage" in self.faults else []
        if "no_done" not in self.faults:
            tail.append(DONE)
        await self.stream.send(tail)
        await self.stream.end()

    def _ready(self) -> list[bytes]:
        """The events of the tokens since the last call."""
        events: list[bytes] = []
        if not self.opened and any(s.made or s.finish for s in self.answer.sequences):
            events += self._roles()
            self.opened = True
        fresh = True
        while fresh and not (self.cut and self.emitted >= self.cut.after):
            fresh = False
            for index, choice in enumerate(self.choices):
                sequence = self.answer.sequences[index]
                if not choice.closed and (choice.seen < sequence.made or sequence.finish is not None):
                    events += self._advance(index, choice, sequence)
                    fresh = True
        return events

    def _advance(self, index: int, choice: _Choice, sequence: Sequence) -> list[bytes]:
        """The events of a choice's next token, or of its end without one."""
        deltas: list[Delta] = []
        if choice.seen < sequence.made:
            token = self.answer.plans[index].tokens[choice.seen]
            choice.seen += 1
            self.emitted += 1
            deltas = choice.feed(token)
        if sequence.finish is not None and choice.seen == sequence.made:
            return self._close(index, choice, deltas)
        return [self._delta(index, delta) for delta in deltas]

    def _close(self, index: int, choice: _Choice, deltas: list[Delta]) -> list[bytes]:
        """The last deltas of a choice; the very last one carries the finish_reason."""
        choice.closed = True
        deltas = deltas + choice.last()
        last = deltas.pop() if deltas else ({"content": ""} if self.shape.plain else {})
        sequence = self.answer.sequences[index]
        reason = self.shape.finish(sequence.finish or "stop", choice.calls, streaming=True)
        stop_reason = self.answer.plans[index].stop_reason if sequence.finish == "stop" else None
        final = {
            "index": index,
            "delta": last,
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": stop_reason,
            "token_ids": None,
        }
        # the usage chunk has it when there is one
        tail = {} if self.shape.include_usage else {"system_fingerprint": self.shape.fingerprint}
        return [*(self._delta(index, d) for d in deltas), self._event([final], tail)]

    def _roles(self) -> list[bytes]:
        delta = {"role": "assistant", "content": ""}
        tail: dict[str, Any] = {"prompt_token_ids": None, "prompt_text": None}
        return [
            self._event([{"index": i, "delta": delta, "logprobs": None, "finish_reason": None}], tail)
            for i in range(len(self.choices))
        ]

    def _delta(self, index: int, delta: Delta) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": None}
        return self._event([choice], {})

    def _event(self, choices: list[dict[str, Any]], tail: dict[str, Any]) -> bytes:
        if self.shape.continuous_usage:
            usage: dict[str, Any] = self.answer.usage(self.emitted)
            tail = {"usage": {**usage, "completion_tokens_details": self._details()}, **tail}
        rest = b"," + _encode(tail)[1:] if tail else b"}"
        return b"data: " + self._head + b',"choices":' + _encode(choices) + rest + b"\n\n"

    def _details(self) -> dict[str, int] | None:
        if self.shape.rules is None:
            return None
        return {"reasoning_tokens": sum(c.splitter.tokens for c in self.choices)}

    def _usage_event(self) -> bytes:
        usage: dict[str, Any] = self.answer.usage()
        if self.shape.rules is not None:
            usage["completion_tokens_details"] = self._details()
        tail = {"usage": usage, "system_fingerprint": self.shape.fingerprint}
        return b"data: " + self._head + b',"choices":[],' + _encode(tail)[1:] + b"\n\n"


async def send_chat(exchange: Exchange, faults: Mapping[str, Fault], shape: Shape, answer: Answer) -> None:
    """Send a complete chat answer without stream."""
    messages = [
        parse(answer.produced(i), shape.rules, shape.thinking, shape.form, shape.schemas, shape.tools_live)
        for i in range(len(answer.plans))
    ]
    choices = [_whole_choice(i, m, shape, answer, faults) for i, m in enumerate(messages)]
    details = {"reasoning_tokens": sum(m.reasoning_tokens for m in messages)} if shape.rules else None
    body = {
        "id": shape.id,
        "object": "chat.completion",
        "created": shape.created,
        "model": shape.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": shape.fingerprint,
        "usage": {**answer.usage(), "prompt_tokens_details": None, "completion_tokens_details": details},
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }
    await send_body(exchange, faults, _encode(body))


def _whole_choice(
    index: int, message: Message, shape: Shape, answer: Answer, faults: Mapping[str, Fault]
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "role": "assistant",
        "content": message.content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if isinstance(shape.choice, dict) and message.calls and message.content is None:
        fields["content"] = ""  # "" for a named choice, null for auto
    if message.calls:
        fields["tool_calls"] = [
            {"id": shape.new_id(), "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.calls
        ]
    fields["reasoning"] = message.reasoning if shape.include_reasoning else None
    outcome = answer.sequences[index].finish or "stop"
    reason = shape.finish(outcome, len(message.calls), streaming=False)
    return {
        "index": index,
        "message": fields,
        "logprobs": None,
        "finish_reason": None if "end_without_finish" in faults else reason,
        "stop_reason": answer.plans[index].stop_reason if outcome == "stop" else None,
        "token_ids": None,
        "routed_experts": None,
    }


def new_shape_id(headers: Mapping[str, str], fresh: str, prefix: str) -> str:
    """The completion's id: the client's X-Request-Id, or a fresh one."""
    return f"{prefix}-{headers.get('x-request-id') or fresh}"


def seconds() -> int:
    return int(time.time())


__all__ = ["CONTENT_TYPE", "ChatStream", "Shape", "new_shape_id", "seconds", "send_chat"]
