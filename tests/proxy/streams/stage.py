"""Three scripted backends behind one gateway, and the events of their streams."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.transport.sse import Framer
from tests.scripted import END, SSE_HEAD, RawReply, Script, ScriptedBackend, Turn, chunked, raw_post
from tests.support import RunningGateway
from tests.waiting import turns

CAPTURES = Path(__file__).parents[2] / "data" / "captures"
DONE = b"data: [DONE]\n\n"
INTERRUPTED = (
    b'data: {"error":{"message":"upstream connect error: backend reset","type":"server_error","param":null,'
    b'"code":"stream_interrupted"}}\n\n'
)
ROUTES = """
defaults: {{timeouts: {{idle: 300ms, first_byte: 30s}}}}
backends:
  s: {{url: "{s}"}}
  t: {{url: "{t}"}}
  u: {{url: "{u}"}}
  late: {{url: "{s}", timeouts: {{hold: 100ms}}}}
aliases:
  chat: [s]
  pair: [s, t, u]
  slow: [late, t]
"""


@dataclass
class Stage:
    """`s`, `t` and `u` are scripted. Alias `chat` is s; `pair` is s, then t, then u; `slow` is s with a short `hold`,
    then t."""

    gateway: RunningGateway
    s: ScriptedBackend
    t: ScriptedBackend
    u: ScriptedBackend

    async def ask(self, model: str = "chat", path: str = "/v1/chat/completions", **more: Any) -> RawReply:
        return await raw_post(self.gateway.url, asking(model, **more), path)

    async def until_beating(self) -> None:
        """The one request under way has had its status committed early."""
        await self.gateway.until(lambda: any(r.reply is not None and r.reply.early for r in self.gateway.requests()))

    def attempts(self, backend: str, outcome: str) -> float:
        return self.gateway.metric("gateway_attempts_total", backend=backend, outcome=outcome)


def asking(model: str = "chat", **more: Any) -> dict[str, Any]:
    """The body of a request."""
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": True, **more}


async def unexpected(turn: Turn) -> None:
    raise AssertionError("nobody was to ask this backend")


# -- what the backends say --------------------------------------------------------------------------------------------


def captured(name: str) -> list[bytes]:
    """The events of a stream as vLLM 0.32 sent them, [DONE] included."""
    body = (CAPTURES / f"{name}.txt").read_bytes().partition(b"### ---- response")[2].replace(b"\r\n", b"\n")
    events = body.partition(b"\n\n")[2]
    return Framer().feed(events[: events.index(DONE) + len(DONE)])


def event(delta: object, finish: str | None = None, index: int = 0, **head: object) -> bytes:
    chunk = {"id": "up-1", "object": "chat.completion.chunk", "created": 2, "model": "served/model", **head}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return b"data: " + json.dumps({**chunk, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


ROLE = event({"role": "assistant", "content": ""})
HELLO = event({"content": "hello"})
THOUGHT = event({"reasoning": "hm"})
STOP = event({}, "stop")
USAGE = b'data: {"id":"up-1","created":2,"model":"served/model","choices":[],"usage":{"prompt_tokens":3}}\n\n'
ERROR = b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}\n\n'


def renamed(*events: bytes, model: bytes = b"chat") -> bytes:
    return b"".join(events).replace(b'"model":"served/model"', b'"model":"' + model + b'"')


def says(*events: bytes) -> Script:
    """A whole stream of these events."""

    async def script(turn: Turn) -> None:
        await turn.stream(*events)

    return script


def sends(*pieces: bytes, end: bool = True) -> Script:
    """A stream whose bytes come in these pieces."""

    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD)
        for piece in pieces:
            await turn.send(chunked(piece))
            await turns()
        if end:
            await turn.send(END)

    return script


GOOD = says(ROLE, HELLO, STOP, DONE)
