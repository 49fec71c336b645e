"""What a scenario comes to, decided ahead or anew: what the client gets, what the backends get, what is counted and
logged."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from dataclasses import replace as with_
from typing import Any

import httpx

from gateway.accounting.record import RequestLine
from gateway.domain.health_state import State
from gateway.proxy.services import DecidesAhead
from tests.proxy.test_decisions_random import USAGE, chunk, counted, timeless
from tests.raw_client import chat
from tests.scripted import SSE_HEAD, Script, ScriptedBackend, Turn, chunked, json_answer
from tests.support import RunningGateway, running_gateway

ROUTES = """
defaults: {{health: {{every: 1h}}}}
backends:
  a: {{url: "{a}", slots: 4, {keys}}}
  b: {{url: "{b}", slots: 4, tool_parser: hermes}}
aliases:
  other: [b]
  chain: {alias}
{more}
"""
CALL = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
PROBED: dict[str, Any] = {"role": "assistant", "content": "ok"}
UNLIKE = ("date", "retry-after", "x-gateway-queue-ms")


def is_probe(turn: Turn) -> bool:
    return turn.headers.get("x-request-id", "").startswith("probe-")


def said(message: dict[str, Any], end: str = "stop") -> Script:
    """A script that answers with this message, whole or as one event of a stream."""

    async def script(turn: Turn) -> None:
        message_, end_ = (PROBED, "stop") if is_probe(turn) else (message, end)
        if turn.json.get("stream"):
            calls = [{"index": i, **call} for i, call in enumerate(message_.get("tool_calls", ()))]
            delta = {**message_, "tool_calls": calls} if calls else message_
            events = chunk(delta), chunk({}, end_), chunk(None, None, USAGE), b"data: [DONE]\n\n"
            await turn.send(SSE_HEAD + chunked(*events) + b"0\r\n\r\n")
            return
        fields = {"id": "up-1", "object": "chat.completion", "created": 2, "model": "served/model", "usage": USAGE}
        choice = {"index": 0, "message": message_, "logprobs": None, "finish_reason": end_}
        await turn.send(json_answer({**fields, "choices": [choice]}))

    return script


WELL = said({"role": "assistant", "content": "Twelve."})


@dataclass
class House:
    """A gateway in front of `a` and `b`; `seen`: everything that anybody saw of its requests, in order."""

    gateway: RunningGateway
    a: ScriptedBackend
    b: ScriptedBackend
    headers: dict[str, str] = field(default_factory=dict)
    seen: list[object] = field(default_factory=list)

    async def ask(self, alias: str = "chain", times: int = 1, leave: tuple[str, ...] = (), **fields: Any) -> None:
        """Ask so often, each time when the answer before has come. `leave`: fields that the body does not have."""
        for _ in range(times):
            body = {name: value for name, value in {**chat(alias), **fields}.items() if name not in leave}
            self.seen.append(await self._answer(json.dumps(body, separators=(",", ":")).encode()))
            await self.gateway.until(self.gateway.idle)
            await self.gateway.until(lambda: not self.gateway.gateway.services.prober.suspicion.busy)
            for name, backend in (("a", self.a), ("b", self.b)):
                self.seen += [(name, *told(turn)) for turn in backend.turns if not is_probe(turn)]
                backend.turns.clear()

    def trait(self, **traits: Any) -> None:
        """`a` is a server of this kind."""
        state = self.gateway.gateway.fleet["a"]
        state.traits = with_(state.traits, **traits)
        state._forms = state.traits.forms

    async def _answer(self, body: bytes) -> object:
        headers = {"content-type": "application/json", **self.headers}
        got, post = b"", self.gateway.client.stream
        try:
            async with post("POST", "/v1/chat/completions", content=body, headers=headers) as response:
                async for piece in response.aiter_raw():
                    got += piece
        except httpx.HTTPError as error:
            got += type(error).__name__.encode()
        id_ = response.headers.get("x-request-id", "no id")
        fields = [(name, value.replace(id_, "ID")) for name, value in response.headers.multi_items()]
        fields = [one for one in fields if one[0] not in UNLIKE]
        got = re.sub(rb"call_[0-9a-f]{24}", b"call_ID", got.replace(id_.encode(), b"ID"))
        got = re.sub(rb'"created":[0-9]{10}', b"", got)
        got = re.sub(rb"in [0-9]+ s\.", b"in N s.", got)  # as `retry-after`: seconds on a clock
        return response.status_code, fields, got, id_ == headers.get("x-request-id")


def told(turn: Turn) -> tuple[object, ...]:
    unlike = ("host", "x-request-id", "content-length")
    return turn.path, turn.json, {name: value for name, value in turn.headers.items() if name not in unlike}


Scenario = Callable[[House], Awaitable[None]]
SCENARIOS: dict[str, tuple[dict[str, str], Scenario]] = {}


def scenario(
    keys: str = "tool_parser: hermes", alias: str = "[a, b]", more: str = ""
) -> Callable[[Scenario], Scenario]:
    """`keys`: of the backend `a`. `alias`: `chain`. `more`: further sections of routes.yaml."""

    def add(run: Scenario) -> Scenario:
        SCENARIOS[run.__name__] = {"keys": keys, "alias": alias, "more": more}, run
        return run

    return add


async def outcome(name: str, decides_ahead: DecidesAhead) -> list[object]:
    parts, run = SCENARIOS[name]
    a, b = ScriptedBackend((WELL,)), ScriptedBackend((WELL,))
    if model := re.search(r"model: (\S+)", parts["keys"]):
        a.model = model[1]
    lines: list[RequestLine] = []
    async with a.serve(), b.serve():
        routes = ROUTES.format(**{**parts, "a": a.url, "b": b.url})
        async with running_gateway(routes, decides_ahead=decides_ahead) as gateway:
            await gateway.until_ready("b")
            state = gateway.gateway.fleet["a"]
            await gateway.until(lambda: state.backend.cloud or state.health.state is not State.UNKNOWN)
            gateway.gateway.services.line_observers.append(lines.append)
            house = House(gateway, a, b)
            await run(house)
            for line in lines:
                house.seen.append(timeless(line))
            return house.seen + list(counted(gateway))
