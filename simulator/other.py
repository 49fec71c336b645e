"""A simulated mlx_lm.server or transformers serve: what they do differently is in habits.py."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from collections.abc import Sequence as List
from typing import Any

import msgspec

from simulator.answer import CUTS, Answer, Plan, plan
from simulator.base import Sim
from simulator.chat import seconds
from simulator.engine import Engine, EngineDied
from simulator.faults import Fault
from simulator.habits import HABITS, Habits, limit_of
from simulator.model import Model
from simulator.parsers import Message, ReasoningSplitter, parse
from simulator.replies import sentence
from simulator.server import Exchange
from simulator.tokens import count
from simulator.wire import DONE, EventStream, break_off, send_body

DIED = "generation thread died"
_ENDLESS = 10**6  # tokens: a prompt and an answer over the window are computed all the same
_encode = msgspec.json.encode
_CLOSE = [("connection", "close")]  # mlx speaks HTTP/1.0


class _Refused(Exception):
    def __init__(self, status: int, body: Any) -> None:
        super().__init__(str(body))
        self.status, self.body = status, body


class SimOther(Sim):
    """`kind` names its habits. `model` is the one that it was started with, `cached` are others that its list shows.

    `loaded`: the model that is loaded; a request for another one loads that. `died`: its generation thread has died."""

    def __init__(
        self,
        kind: str,
        model: str = "mlx-community/Qwen3-0.6B-4bit",
        cached: List[str] = (),
        slots: int = 1,
        prefill: float = 1e6,
        decode: float = 1e5,
        context: int = 8192,
        name: str = "",
        *,
        reasoning_parser: str | None = "qwen3",
        speedup: float = 1.0,
        cold_start: float = 0.0,
    ) -> None:
        super().__init__(name or kind, cold_start=cold_start, speedup=speedup)
        self.kind, self.habits = kind, HABITS[kind]
        self.started_with, self.cached, self.loaded = model, list(cached), model
        self.model = Model(model, "hermes", reasoning_parser, None, None)
        self.engine = Engine(slots, prefill, decode, context=context, speedup=speedup, on_change=self.changed)
        self.died = False
        self._shuffle = random.Random(kind)

    def engines(self) -> list[Engine]:
        return [self.engine]

    def restarted(self) -> None:
        self.died, self.loaded = False, self.started_with
        self.engine.reset_counters()

    def describe(self) -> dict[str, Any]:
        return {"engine": self.kind, "model": self.started_with, "loaded": self.loaded}

    def die(self) -> None:
        """Its generation thread dies: `/health` says so, everything else only when it is asked to generate."""
        self.died = True
        self.engine.die()
        self.changed()

    # --- routes ---

    async def route(self, exchange: Exchange, faults: Mapping[str, Fault]) -> None:
        if exchange.method == "GET":
            await self._get(exchange, faults)
            return
        try:
            if exchange.path not in ("/v1/chat/completions", "/v1/completions"):
                raise _Refused(404, {"detail": "Not Found"} if self.kind == "transformers" else "Not Found")
            await self._generate(exchange, faults)
        except _Refused as refused:
            plain = isinstance(refused.body, str)
            body = refused.body.encode() if plain else _encode(refused.body)
            await exchange.send(refused.status, body, "text/plain" if plain else "application/json", _CLOSE)
        except EngineDied:
            await exchange.cut()

    async def _get(self, exchange: Exchange, faults: Mapping[str, Fault]) -> None:
        if exchange.path == "/health":
            bad = self.died or "unhealthy" in faults
            await exchange.send_json(503 if bad else 200, {"status": "unavailable" if bad else "ok"}, _CLOSE)
        elif exchange.path == "/v1/models" and "no_models" in faults:
            await exchange.send(200, b"", "application/json", _CLOSE)
        elif exchange.path == "/v1/models":
            names = [self.started_with, *self.cached]
            self._shuffle.shuffle(names)
            cards = [{"id": name, "object": "model", "created": int(self.started_at)} for name in names]
            await exchange.send_json(200, {"object": "list", "data": cards}, _CLOSE)
        else:
            await exchange.send(404, b"Not Found", "text/plain", _CLOSE)

    # --- answers ---

    async def _generate(self, exchange: Exchange, faults: Mapping[str, Fault]) -> None:
        body, habits, chat = json.loads(exchange.body), self.habits, exchange.path.endswith("/chat/completions")
        self._check(body, chat)
        model = self._load(body.get("model"))
        failure = self._failure(body)
        if failure is not None and not body.get("stream"):
            raise _Refused(500, "Internal Server Error")
        prompt, thinking, planned, message = self._plan(body, chat, faults)
        answer = Answer(self.engine, [planned], prompt, 0, limit_of(body, habits))
        splitter = ReasoningSplitter(self.model.rules if chat else None, thinking)
        writer = _Writer(exchange, faults, habits, model, answer, splitter, message)
        if not body.get("stream"):  # without a stream it goes on when its client has left
            await answer.finished()
            await writer.whole()
            return
        exchange.on_lost.append(answer.cancel)
        try:
            usage = habits.usage == "always" or bool((body.get("stream_options") or {}).get("include_usage"))
            await writer.stream(usage, failure)
        finally:
            answer.cancel()

    def _check(self, body: Mapping[str, Any], chat: bool) -> None:
        """Raises _Refused."""
        habits = self.habits
        if habits.fields is not None and (unknown := set(body) - habits.fields):
            raise _Refused(422, {"detail": f"Unexpected fields in the request: {unknown}"})
        if not chat and not isinstance(body.get("prompt"), str):
            if not habits.prompt_list_kills:
                raise _Refused(400, {"detail": "prompt must be a string."})
            self.die()
        if self.died:
            raise _Refused(404, {"error": DIED})
        status, problem = habits.zero_limit
        if limit_of(body, habits) < 1 and status == 400:
            raise _Refused(400, {"error": problem})

    def _failure(self, body: Mapping[str, Any]) -> str | None:
        """The text of an error that occurs when it generates."""
        if limit_of(body, self.habits) < 1:
            return self.habits.zero_limit[1]
        if self.habits.int_bias_fails and any(type(v) is int for v in (body.get("logit_bias") or {}).values()):
            return f"`sequence_bias` has to be a dict with floats as values, but is {body['logit_bias']}."
        return None

    def _load(self, model: str | None) -> str:
        """The name that the answer has. Raises _Refused."""
        default = self.habits.default_model
        if model is None or model in (default, self.started_with):
            self.loaded = self.started_with
            return model or default or self.started_with
        if default is None:
            problem = f"Server is pinned to '{self.started_with}'; requested '{model}'."
            raise _Refused(400, {"detail": problem})
        if model not in self.cached:
            raise _Refused(404, {"error": "Cannot find an appropriate cached snapshot folder"})
        self.loaded = model
        return model

    def _plan(
        self, body: dict[str, Any], chat: bool, faults: Mapping[str, Fault]
    ) -> tuple[int, bool, Plan, Message | None]:
        """(the prompt's tokens, does it think, the answer's tokens, the parsed answer of a chat). Tools are called
        whatever `tool_choice` is; schemas are ignored."""
        limit = {"max_tokens": max(1, limit_of(body, self.habits))}
        if not chat:
            raw = self._cut(sentence(body["prompt"], self.started_with), body)
            return count(body["prompt"].encode()), False, plan(raw, limit, _ENDLESS, faults), None
        asked = {k: v for k, v in body.items() if k not in ("tool_choice", "response_format")}
        thinking = self.model.thinks(asked)
        planned = plan(self._cut(self.model.raw(asked, thinking, faults), body), limit, _ENDLESS, faults)
        schemas: dict[str, Any] = {tool["function"]["name"]: {} for tool in body.get("tools") or []}
        form = self.model.form if schemas else None
        message = parse(planned.tokens, self.model.rules, thinking, form, schemas, True)
        return self.model.prompt(asked)[0], thinking, planned, message

    def _cut(self, raw: str, body: Mapping[str, Any]) -> str:
        """What it makes of stop strings."""
        given = body.get("stop") or []
        stops = [given] if isinstance(given, str) else given
        if self.habits.stop == "kept":
            return raw[: min((raw.find(stop) + len(stop) for stop in stops if stop in raw), default=len(raw))]
        for stop in stops:
            raw = raw.replace(stop, "")
        return raw


class _Writer:
    """Writes one answer. `message`: the whole answer of a chat; None = a text completion."""

    def __init__(
        self,
        exchange: Exchange,
        faults: Mapping[str, Fault],
        habits: Habits,
        model: str,
        answer: Answer,
        splitter: ReasoningSplitter,
        message: Message | None,
    ) -> None:
        self.exchange, self.faults, self.habits, self.answer = exchange, faults, habits, answer
        self.splitter, self.message = splitter, message
        kind = "text_completion" if message is None else "chat.completion"
        self.head = {"id": "other-1", "object": kind, "created": seconds(), "model": model}

    def _finish(self) -> str:
        outcome = self.answer.sequences[0].finish or "stop"
        return "tool_calls" if outcome == "stop" and self.message is not None and self.message.calls else outcome

    def _calls(self) -> list[dict[str, Any]]:
        calls = self.message.calls if self.message is not None else []
        return [
            {"function": {"name": call.name, "arguments": call.arguments}, "type": "function", "id": f"call-{index}"}
            for index, call in enumerate(calls)
        ]

    async def whole(self) -> None:
        message = self.message
        choice: dict[str, Any] = {"index": 0, "finish_reason": self._finish()}
        if message is None:
            choice["text"] = "".join(self.answer.produced(0))
        else:
            thoughts = {self.habits.thoughts: message.reasoning} if message.reasoning else {}
            calls = {"tool_calls": self._calls()} if message.calls else {}
            choice["message"] = {"role": "assistant", "content": message.content, **thoughts, **calls}
        body = {**self.head, "choices": [choice], "usage": self.answer.usage()}
        await send_body(self.exchange, self.faults, _encode(body))

    async def stream(self, usage: bool, failure: str | None) -> None:
        """`usage`: it is sent. `failure`: instead of an answer comes an event with this error."""
        habits, answer = self.habits, self.answer
        stream = EventStream(self.exchange, self.faults, "text/event-stream")
        await stream.open()
        if not habits.role_each and self.message is not None:
            await stream.send([self._event({"role": "assistant"})])
        if failure is not None:
            await stream.send([b"data: " + _encode({"error": failure}) + b"\n\n"])
            await stream.end()
            return
        cut = next((self.faults[kind] for kind in CUTS if kind in self.faults), None)
        seen, sequence = 0, answer.sequences[0]
        while True:
            events = []
            while seen < sequence.made and not (cut and seen >= cut.after):
                events += self._token(answer.plans[0].tokens[seen])
                seen += 1
            await stream.send(events)
            if cut and seen >= cut.after:
                answer.cancel()
                await break_off(self.exchange, stream, cut, [b'data: {"error": "simulated"}\n\n'])
                return
            if sequence.finish is not None:
                break
            if not events:
                await answer.changed()
        await stream.send(self._end(usage))
        await stream.end()

    def _token(self, token: str) -> list[bytes]:
        thought, text = self.splitter.feed(token)
        if self.message is None:
            return [self._event({"text": text})]
        if thought:
            return [self._event({self.habits.thoughts: thought})]
        return [self._event({"content": text})] if text and not self.message.calls else []

    def _end(self, usage: bool) -> list[bytes]:
        """Calls come whole, with the end of the answer."""
        events, tail, calls = [], [], [{**call, "index": i} for i, call in enumerate(self._calls())]
        if calls:
            events.append(self._event({"tool_calls": calls}))
        used: dict[str, Any] = {"usage": self.answer.usage()} if usage else {}
        if self.habits.usage == "asked" and usage:
            tail.append(b"data: " + _encode({**self.head, "choices": [], **used}) + b"\n\n")
            used = {}
        end = {"text": ""} if self.message is None else {}
        events.append(self._event(end, self._finish(), used))
        return [*events, *tail, *([DONE] if self.habits.done and "no_done" not in self.faults else [])]

    def _event(self, delta: dict[str, Any], finish: str | None = None, tail: Mapping[str, Any] | None = None) -> bytes:
        head, habits = self.head, self.habits
        choice: dict[str, Any] = {"index": 0}
        if finish is not None or habits.nulls:
            choice["finish_reason"] = finish
        if self.message is None:
            choice |= delta
        else:
            head = {**head, "object": "chat.completion.chunk"}
            choice["delta"] = {"role": "assistant", **delta} if habits.role_each else delta
        return b"data: " + _encode({**head, "choices": [choice], **(tail or {})}) + b"\n\n"
