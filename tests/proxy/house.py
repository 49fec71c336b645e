"""A gateway whose next request of its client runs on what was decided before, in front of scripted backends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from gateway.config.snapshot import Alias
from gateway.domain.request import InferenceRequest
from gateway.proxy.decisions import DecidedBackend, Decision
from gateway.routing.plan import Candidate
from tests.raw_client import RawClient, chat, raw_client
from tests.scripted import Script, ScriptedBackend, Turn, chunked, json_answer
from tests.support import RunningGateway, running_gateway

PATH = "/v1/chat/completions"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MERGED = "{use: [a], params: {mirostat: {tau: 5}}}"
USAGE = {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}


def said(text: str | None, end: str = "stop", **more: Any) -> dict[str, Any]:
    """A whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": end}
    return {"id": "up-1", "created": 2, "model": "served/model", "choices": [choice], "usage": USAGE, **more}


def event(delta: dict[str, Any] | None, end: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": end}]
    chunk = {"id": "up-1", "created": 2, "model": "served/model", "choices": choices, **more}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


ROLE = event({"role": "assistant", "content": ""})
END = (event({"content": ""}, "stop"), event(None, usage=USAGE), b"data: [DONE]\n\n")


async def well(turn: Turn) -> None:
    """Answer as a vLLM does."""
    if turn.json.get("stream"):
        await turn.stream(ROLE, event({"content": "Yes."}), *END)
    else:
        await turn.send(json_answer(said("Yes.")))


@dataclass
class House:
    """`kept`: what the attempts since `prepared` ran on of what was decided before."""

    gateway: RunningGateway
    a: ScriptedBackend
    b: ScriptedBackend
    client: RawClient
    headers: str = ""
    kept: list[DecidedBackend] = field(default_factory=list)

    async def ask(self, alias: str = "chain", **fields: Any) -> None:
        body = json.dumps(chat(alias, **fields), separators=(",", ":")).encode()  # as a field is written anew
        head = f"POST {PATH} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n{self.headers}"
        await self.client.send(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)

    async def prepared(self, *scripts: Script, **fields: Any) -> None:
        """From here on `a` plays these scripts, and a request with these fields runs on what was decided."""
        for _ in range(3):
            await self.ask(**fields)
            if fields.get("stream"):
                await self.client.until(b"[DONE]\n\n\r\n0\r\n\r\n")
            else:
                assert (await self.client.answer())[0] == 200
            await self.gateway.until(self.gateway.idle)
        assert self.kept, "nothing was decided before"
        self.kept.clear()
        self.a.play(*scripts)

    def count(self, code: str, backend: str) -> float:
        labels = {"alias": "chain", "backend": backend, "endpoint": "chat", "code": code}
        return self.gateway.metric("gateway_requests_total", **labels)


@asynccontextmanager
async def house(more: str = "", client: str = "") -> AsyncIterator[House]:
    """`chain` is `a`, then `b`; `more`: further keys of `a`; `client`: keys of the one client; empty = all may ask."""
    a, b = ScriptedBackend((well,), apart=True), ScriptedBackend((well,), apart=True)
    async with a.serve(), b.serve():
        backends = f"a: {{url: '{a.url}', slots: 4, tool_parser: hermes, {more}}}, b: {{url: '{b.url}', slots: 4}}"
        aliases = f"chain: [a, b], merged: {MERGED}"
        routes = f"defaults: {{health: {{every: 1h}}}}\nbackends: {{{backends}}}\naliases: {{{aliases}}}"
        if client:
            routes += f"\nclients: {{one: {{key: k-one-long-enough, {client}}}}}"
        async with running_gateway(routes, decides_ahead="repeated") as gateway, raw_client(gateway.url) as asking:
            await gateway.until_ready("a", "b")
            found = House(gateway, a, b, asking)
            found.headers = "authorization: Bearer k-one-long-enough\r\n" if client else ""
            decided_for = Decision.backend_for

            def noted(
                decision: Decision, candidate: Candidate, alias: Alias, request: InferenceRequest
            ) -> DecidedBackend | None:
                decided = decided_for(decision, candidate, alias, request)
                if decided is not None:
                    found.kept.append(decided)
                return decided

            with patch.object(Decision, "backend_for", noted):
                yield found


def pieces(*events: bytes) -> bytes:
    return HEAD + chunked(*events)


async def released(h: House) -> None:
    """Nothing is held, and the connections of both sides can be used for another request."""
    await h.gateway.until(h.gateway.idle)
    assert h.gateway.gateway.memory.used == 0
    assert h.gateway.gateway.memory.held == {}
    assert all(state.prompt_tokens == 0 for state in h.gateway.gateway.fleet.states.values())
    assert not h.gateway.gateway.admission.scheduler._running
    h.a.play(well)
    await h.ask("b")
    assert (await h.client.answer())[0] == 200
