"""A backend that says what a test wants, both ways, and a gateway in front of it that mends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.scripted import RawReply, Script, ScriptedBackend, Turn, json_answer, raw_post, scripted
from tests.support import RunningGateway, running_gateway

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TOOLS = [TOOL, {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
XML = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
HELLO: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
DONE = b"data: [DONE]\n\n"
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


# -- a backend that says what a test wants, both ways -----------------------------------------------------------------


def says(*deltas: dict[str, Any], finish: str = "stop", tokens: int = 30) -> Script:
    """These deltas as vLLM would send them: one by one in a stream, joined without."""

    async def play(turn: Turn) -> None:
        usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
        if turn.json.get("stream"):
            events = [event({"role": "assistant", "content": ""}), *map(event, deltas), event({}, finish)]
            await turn.stream(*events, chunk(choices=[], usage=usage), DONE)
        else:
            choice = {"index": 0, "message": joined(deltas), "logprobs": None, "finish_reason": finish}
            reply = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "served/model"}
            await turn.send(json_answer({**reply, "choices": [choice], "usage": usage}))

    return play


def chunk(**more: Any) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "served/model"}
    return b"data: " + json.dumps({**head, **more}, separators=(",", ":")).encode() + b"\n\n"


def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return chunk(choices=[{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])


def joined(deltas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None, "reasoning": None}
    for delta in deltas:
        for key, value in delta.items():
            message[key] = (message.get(key) or type(value)()) + value
    return message


def text(said: str, size: int = 3) -> list[dict[str, Any]]:
    return [{"content": said[i : i + size]} for i in range(0, len(said), size)]


def thoughts(said: str) -> list[dict[str, Any]]:
    return [{"reasoning": said[i : i + 3]} for i in range(0, len(said), 3)]


def call(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}


# -- the gateway in front of it ---------------------------------------------------------------------------------------


class Fleet:
    """A gateway with an alias `chat` over scripted backends a, b, ..."""

    def __init__(self, gateway: RunningGateway, backends: list[ScriptedBackend]) -> None:
        self.gateway, self.backends = gateway, backends

    async def ask(self, stream: bool, **more: Any) -> Reply:
        return Reply(await raw_post(self.gateway.url, {**HELLO, "stream": stream, **more}))

    def violations(self, kind: str, backend: str = "a") -> float:
        return self.gateway.metric("gateway_violations_total", backend=backend, kind=kind)

    def mended(self, kind: str, backend: str = "a") -> float:
        return self.gateway.metric("gateway_mended_total", backend=backend, kind=kind)


class Reply:
    """An answer in one form, however it came."""

    def __init__(self, raw: RawReply) -> None:
        self.raw, self.status, self.headers = raw, raw.status, raw.headers
        self.content = self.reasoning = ""
        self.calls: list[tuple[str, Any]] = []
        self.finish: object = None
        streamed = raw.headers["content-type"].startswith("text/event-stream")
        found: dict[int, list[str]] = {}
        for part in raw.chunks if streamed else [raw.json]:
            for choice in part.get("choices", ()):
                said = choice["delta" if streamed else "message"]
                self.content += said.get("content") or ""
                self.reasoning += said.get("reasoning") or ""
                for i, one in enumerate(said.get("tool_calls") or ()):
                    place = found.setdefault(one.get("index", i), ["", ""])
                    place[0] += one["function"].get("name") or ""
                    place[1] += one["function"].get("arguments") or ""
                self.finish = choice["finish_reason"] or self.finish
        self.calls = [(name, json.loads(arguments)) for name, arguments in found.values()]

    @property
    def error(self) -> Any:
        return self.raw.json["error"]


@asynccontextmanager
async def fleet(
    *scripts: Script, keys: str = "", alias: str = "", more: str = "", model: str = "served/model"
) -> AsyncIterator[Fleet]:
    """One backend per script; `keys` = further keys of every backend, `alias` of the alias; `model`: their model."""
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(scripted(script)) for script in scripts]
        for backend in backends:
            backend.model = model
        names = "abc"[: len(backends)]
        lines = [f'  {n}: {{url: "{b.url}"{keys}}}' for n, b in zip(names, backends, strict=True)]
        chain = ", ".join(names)
        routes = "\n".join(["backends:", *lines, "aliases:", f"  chat: {{use: [{chain}]{alias}}}", more])
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready(*names)
        yield Fleet(gateway, backends)


HERMES = ", tool_parser: hermes"
GEMMA = ", tool_parser: gemma4"  # enforces nothing
