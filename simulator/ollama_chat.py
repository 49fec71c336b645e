"""How Ollama writes its answers: NDJSON lines, whole objects, and its lossy OpenAI form."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from simulator.answer import CUTS, Answer
from simulator.engine import EngineDied
from simulator.faults import Fault
from simulator.formats import format_of
from simulator.ollama_request import OllamaError
from simulator.parsers import Delta, Message, Reasoning, ReasoningSplitter, ToolStream, parse
from simulator.server import Exchange
from simulator.wire import DONE, EventStream, break_off, send_body

RUNNER_DIED = "an error was encountered while running the model"
_NANO = 1_000_000_000
_REPEATED = 30  # times one token, after which Ollama ends an answer
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_NDJSON = "application/x-ndjson"
_encode = msgspec.json.encode
_DIED = (_encode({"error": RUNNER_DIED}) + b"\n",)


@dataclass(slots=True)
class Turn:
    """One request in the engine. `took`: seconds that loading the model took; `tools`: calls are parsed. `kind` of its
    template: "native" (the file's own, which the llama-server parses), "go" (Ollama's), or of "old" versions."""

    model: str
    answer: Answer
    rules: Reasoning | None
    tools: bool
    took: float
    id: str
    kind: str = "old"
    started: float = field(default_factory=time.monotonic)

    def head(self) -> dict[str, Any]:
        return {"model": self.model, "created_at": stamp(time.time())}

    def stats(self) -> dict[str, Any]:
        """The counters of the last line; durations in nanoseconds."""
        sequence = self.answer.sequences[0]
        prefill = max(0.0, sequence.first_at - sequence.scheduled_at)
        decode = max(0.0, sequence.last_at - sequence.first_at)
        return {
            "done_reason": self.reason(),
            "total_duration": int((time.monotonic() - self.started + self.took) * _NANO),
            "load_duration": int(self.took * _NANO),
            "prompt_eval_count": sequence.prompt,
            "prompt_eval_duration": int(prefill * _NANO),
            "eval_count": sequence.made,
            "eval_duration": int(decode * _NANO),
        }

    def reason(self) -> str:
        finish = self.answer.sequences[0].finish
        return "length" if finish == "length" or (finish == "repetition" and self.kind == "native") else "stop"

    @property
    def repeats(self) -> bool:
        """Was one token made again and again? Ollama ends such an answer without its last line, but where the
        llama-server parses it."""
        return self.kind == "go" and self.answer.plans[0].outcome == "repetition"

    def unreadable(self, faults: Mapping[str, Fault]) -> str | None:
        """What the llama-server says of an output that its parser cannot read to the end."""
        if self.kind != "native":
            return None
        if "wrong_parser" in faults:
            return "The model produced output that does not match the expected peg-native format"
        text = "".join(self.answer.produced(0))
        if not self.tools or self.reason() != "length" or text.count(_CALL) == text.count(_CALL_END):
            return None
        named = re.search(r'"name": *"(\w+)"', text[text.rindex(_CALL) :])
        name = json.dumps(named[1] if named else "")
        return f"llama-server returned invalid tool call arguments for {name}: unexpected end of JSON input"

    def parsed(self) -> Message:
        form = format_of("hermes") if self.tools else None
        message = parse(self.answer.produced(0), self.rules, self.rules is not None, form, {}, True)
        message.content = (message.content or "").lstrip("\n")
        message.reasoning = message.reasoning and message.reasoning.strip()
        return message


class _Lines:
    """The lines of a streamed chat; a tool call is one line."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._splitter = ReasoningSplitter(turn.rules, turn.rules is not None)
        self._tools = ToolStream(format_of("hermes"), {}, lambda: "") if turn.tools else None
        self._name, self._arguments = "", ""
        self._begun = False

    def feed(self, token: str) -> list[bytes]:
        thought, text = self._splitter.feed(token)
        if thought:
            return [self._line({"content": "", "thinking": thought})]
        if not self._begun and not text.strip():
            return []  # the line breaks between thoughts and answer
        self._begun = True
        deltas: list[Delta] = self._tools.feed(text) if self._tools else [{"content": text}]
        return [line for delta in deltas for line in self._lines(delta)]

    def _lines(self, delta: Delta) -> list[bytes]:
        if "tool_calls" not in delta:
            return [self._line({"content": delta["content"]})]
        for call in delta["tool_calls"]:
            if "name" in call["function"]:
                self._name, self._arguments = call["function"]["name"], ""
            self._arguments += call["function"].get("arguments", "")
        arguments = json_object(self._arguments)
        if arguments is None:
            return []
        return [self._line({"content": "", "tool_calls": [_call(self._name, arguments)]})]

    def _line(self, message: Mapping[str, Any]) -> bytes:
        line = {**self._turn.head(), "message": {"role": "assistant", **message}, "done": False}
        return _encode(line) + b"\n"


def _call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


async def stream_chat(exchange: Exchange, faults: Mapping[str, Fault], turn: Turn) -> None:
    """`/api/chat` with stream: the head goes out with the first line, as Ollama's does.

    Raises EngineDied when the engine dies before that."""
    if "hang_before" in faults:
        await turn.answer.begun()
    stream = EventStream(exchange, faults, _NDJSON, vary=False)
    try:
        await _write_lines(exchange, faults, turn, stream)
    except EngineDied:
        if exchange.status is None:
            raise
        await break_off(exchange, stream, Fault("error_event"), _DIED)


async def _write_lines(exchange: Exchange, faults: Mapping[str, Fault], turn: Turn, stream: EventStream) -> None:
    answer, sequence, lines = turn.answer, turn.answer.sequences[0], _Lines(turn)
    cut = next((faults[k] for k in CUTS if k in faults), None)
    seen, opened = 0, False
    most = _REPEATED if turn.repeats else len(answer.plans[0].tokens)
    while True:
        if not opened and (sequence.made or sequence.finish or (cut and not cut.after) or sequence.hold_at == 0):
            await stream.open()
            opened = True
        ready: list[bytes] = []
        while seen < min(sequence.made, most) and not (cut and seen >= cut.after):
            fed = lines.feed(answer.plans[0].tokens[seen])
            ready += [] if "wrong_parser" in faults and turn.kind == "native" else fed
            seen += 1
        await stream.send(ready)
        if cut and (seen >= cut.after or sequence.finish):
            await break_off(exchange, stream, cut, _DIED)
            return
        if sequence.finish is not None and seen >= min(sequence.made, most):
            break
        if not ready:
            await answer.changed()
    if (problem := turn.unreadable(faults)) is not None:
        await stream.send([_encode({"error": problem}) + b"\n"])
    elif "end_without_finish" not in faults and not turn.repeats:
        last = {**turn.head(), "message": {"role": "assistant", "content": ""}, "done": True, **turn.stats()}
        await stream.send([_encode(last) + b"\n"])
    await stream.end()


async def send_chat(exchange: Exchange, faults: Mapping[str, Fault], turn: Turn) -> None:
    """`/api/chat` without stream, once the answer is complete. Raises OllamaError."""
    if (problem := turn.unreadable(faults)) is not None:
        raise OllamaError(500, problem)
    parsed = turn.parsed()
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["thinking"] = parsed.reasoning
    if parsed.calls:
        message["tool_calls"] = [_call(c.name, json_object(c.arguments) or {}) for c in parsed.calls]
    if turn.repeats:
        message["content"] = "".join(turn.answer.produced(0)[:_REPEATED])
    ended = {"done": False} if turn.repeats else {"done": True, **turn.stats()}
    body = {**turn.head(), "message": message, **ended}
    await send_body(exchange, faults, _encode(body), vary=False)


async def send_generate(exchange: Exchange, faults: Mapping[str, Fault], turn: Turn, streamed: bool) -> None:
    """`/api/generate`; with stream the text comes in one line."""
    text = "".join(turn.answer.produced(0))
    if not streamed:
        await send_body(
            exchange, faults, _encode({**turn.head(), "response": text, "done": True, **turn.stats()}), vary=False
        )
        return
    stream = EventStream(exchange, faults, _NDJSON, vary=False)
    await stream.open()
    last = {**turn.head(), "response": "", "done": True, **turn.stats()}
    lines = [{**turn.head(), "response": text, "done": False}, last]
    await stream.send([_encode(line) + b"\n" for line in lines])
    await stream.end()


async def send_lossy(exchange: Exchange, faults: Mapping[str, Fault], turn: Turn, body: Mapping[str, Any]) -> None:
    """Ollama's own `/v1/chat/completions`; a streamed call of an old version ends with `stop`. Raises OllamaError."""
    if (problem := turn.unreadable(faults)) is not None:
        raise OllamaError(500, problem)
    parsed, streamed = turn.parsed(), bool(body.get("stream"))
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning"] = parsed.reasoning
    if parsed.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{turn.id}{i}",
                "index": i,
                "type": "function",
                "function": {"name": c.name, "arguments": c.arguments},
            }
            for i, c in enumerate(parsed.calls)
        ]
    head = {
        "id": f"chatcmpl-{int(turn.id, 16) % 1000}",
        "object": "chat.completion.chunk" if streamed else "chat.completion",
        "created": int(time.time()),
        "model": turn.model,
        "system_fingerprint": "fp_ollama",
    }
    if not streamed:
        reason = "tool_calls" if parsed.calls else turn.reason()
        choice = {"index": 0, "message": message, "finish_reason": reason}
        whole = {**head, "choices": [choice], "usage": turn.answer.usage()}
        await send_body(exchange, faults, _encode(whole), vary=False)
        return
    ended = "tool_calls" if parsed.calls and turn.kind != "old" else turn.reason()
    steps = [(message, None), ({"role": "assistant", "content": ""}, ended)]
    events: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": d, "finish_reason": r}]} for d, r in steps
    ]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append({**head, "choices": [], "usage": turn.answer.usage()})
    stream = EventStream(exchange, faults, "text/event-stream", vary=False)
    await stream.open()
    await stream.send([*(b"data: " + _encode(e) + b"\n\n" for e in events), DONE])
    await stream.end()


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object in `text`; None when it is none, or incomplete."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def stamp(at: float) -> str:
    """Unix seconds as Ollama writes times."""
    return datetime.fromtimestamp(min(at, 4e9), UTC).isoformat().replace("+00:00", "Z")
