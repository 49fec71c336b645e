"""What a client of the openai SDK sees of one turn, streamed or not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import openai

from tests.support import RunningGateway, running_gateway

from .asks import WEATHER, script

HI: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
Called = list[tuple[str, Any]]


@dataclass
class Turn:
    """`calls`: (name, arguments) in order; arguments that are no JSON stay text. `finishes`: every finish_reason that
    came."""

    content: str = ""
    reasoning: str = ""
    calls: Called = field(default_factory=list)
    finishes: list[str] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    usage: dict[str, Any] | None = None

    @property
    def backend(self) -> str:
        return self.headers["x-gateway-backend"]

    @property
    def said(self) -> tuple[str, Called, list[str]]:
        return self.content.strip(), self.calls, self.finishes


@dataclass
class Client:
    """A gateway, and the openai SDK on it."""

    gateway: RunningGateway
    sdk: openai.AsyncOpenAI

    async def ask(self, model: str, text: str, *, stream: bool, tools: Any = (WEATHER,), **more: Any) -> Turn:
        """Make the model emit `text`; `more` = further arguments of the SDK's `create`."""
        extra = {**script(text), **more.pop("extra", {})}
        given = {"tools": list(tools), **more} if tools else more
        return await turn_of(self.sdk, model, HI, stream=stream, extra_body=extra, **given)

    def violations(self, kind: str, backend: str = "a") -> float:
        return self.gateway.metric("gateway_violations_total", backend=backend, kind=kind)


async def turn_of(sdk: openai.AsyncOpenAI, model: str, messages: Any, *, stream: bool, **given: Any) -> Turn:
    """`given` = further arguments of the SDK's `create`."""
    create: Any = sdk.chat.completions.with_raw_response.create
    raw = await create(model=model, messages=messages, stream=stream, **given)
    parts = [chunk async for chunk in raw.parse()] if stream else [raw.parse()]
    turn, calls = Turn(headers=raw.headers), dict[int, list[str]]()
    for choice in (choice for part in parts for choice in part.choices):
        said = (choice.delta if stream else choice.message).to_dict()
        turn.content += said.get("content") or ""
        turn.reasoning += said.get("reasoning") or said.get("reasoning_content") or ""
        for i, call in enumerate(said.get("tool_calls") or ()):
            pieces = calls.setdefault(call.get("index", i), ["", ""])
            pieces[0] += call["function"].get("name") or ""
            pieces[1] += call["function"].get("arguments") or ""
        turn.finishes += [choice.finish_reason] if choice.finish_reason else []
    turn.usage = next((part.usage.to_dict() for part in reversed(parts) if part.usage is not None), None)
    turn.calls = [(name, decoded(arguments)) for name, arguments in calls.values()]
    return turn


def decoded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


@asynccontextmanager
async def client_on(backends: Mapping[str, str], aliases: Mapping[str, str]) -> AsyncIterator[Client]:
    """`backends`: name -> the inside of its entry; `aliases`: name -> its whole entry."""
    lines = ["backends:", *(f"  {name}: {{{entry}}}" for name, entry in backends.items())]
    lines += ["aliases:", *(f"  {name}: {entry}" for name, entry in aliases.items())]
    async with (
        running_gateway("\n".join(lines)) as gateway,
        openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as sdk,
    ):
        await gateway.until_ready(*backends)
        yield Client(gateway, sdk)
