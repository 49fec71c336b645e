"""Two scripted chat backends behind a gateway, and what they say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.scripted import RawReply, Script, ScriptedBackend, Turn, json_answer, raw_post
from tests.support import RunningGateway

USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60}}
LEAK = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
DONE = b"data: [DONE]\n\n"
ROUTES = """
defaults: {{timeouts: {{idle: 300ms, first_byte: 30s}}}}
backends:
  s: {{url: "{s}", tool_parser: hermes}}
  t: {{url: "{t}", tool_parser: hermes}}
  late: {{url: "{s}", timeouts: {{hold: 100ms}}}}
aliases:
  chat: [s]
  pair: [s, t]
  slow: [late, t]
"""


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    head = {"id": "up-1", "object": "chat.completion.chunk", "created": 2, "model": "served/model"}
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({**head, "choices": choices, **more}, separators=(",", ":")).encode() + b"\n\n"


ROLE, HELLO, THOUGHT = (
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "hello"}),
    chunk({"reasoning": "hm"}),
)
LAST = (chunk({}, "stop"), chunk(usage=USAGE), DONE)


def says(*events: bytes) -> Script:
    async def play(turn: Turn) -> None:
        await turn.stream(*events)

    return play


def answers(message: dict[str, Any], finish: str = "stop") -> Script:
    async def play(turn: Turn) -> None:
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
        await turn.send(json_answer({"id": "up-1", "model": "served/model", "choices": [choice], "usage": USAGE}))

    return play


async def unexpected(turn: Turn) -> None:
    raise AssertionError("nobody was to ask this backend")


@dataclass
class Stage:
    """`s` and `t` are scripted. Alias `chat` is s; `pair` is s, then t; `slow` is s with a short `hold`, then t."""

    gateway: RunningGateway
    s: ScriptedBackend
    t: ScriptedBackend

    async def ask(self, model: str = "chat", *, stream: bool = True, **more: Any) -> RawReply:
        asked = {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}], "stream": stream}
        return await raw_post(self.gateway.url, asked | more, "/v1/messages?beta=true", ["x-request-id: my-id"])

    async def until_committed(self) -> None:
        """The one request under way has its status out."""
        await self.gateway.until(
            lambda: any(r.reply is not None and r.reply.committed for r in self.gateway.requests())
        )
