"""What is timed of an attempt ends with it: the next backend is not given up for the time that the one before took."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.scripted import RawReply, ScriptedBackend, Turn, json_answer, raw_post, scripted
from tests.support import RunningGateway, running_gateway
from tests.two_backends import good
from tests.waiting import pace

TICKS = 0.25  # seconds: the timer has looked several times


async def silent(turn: Turn) -> None:
    await turn.until_lost()


async def slow(turn: Turn) -> None:
    await pace(TICKS)
    await good(turn)


async def counts_slowly(turn: Turn) -> None:
    """Answers well, but takes its time to count a prompt."""
    if turn.path == "/tokenize":
        await pace(TICKS)
        await turn.send(json_answer({"count": 4000, "max_model_len": 8192, "tokens": []}))
    else:
        await good(turn)


@asynccontextmanager
async def pair(timeouts: str, second: Any) -> AsyncIterator[tuple[RunningGateway, ScriptedBackend, ScriptedBackend]]:
    """The alias `chat` is `a`, which is silent, then `b`, which plays `second`. Both have these timeouts."""
    async with scripted(silent) as a, scripted(second) as b:
        b.window = 8192
        routes = f"defaults: {{timeouts: {{{timeouts}}}}}\nbackends: {{a: {{url: '{a.url}'}}, b: {{url: '{b.url}'}}}}\n"
        async with running_gateway(f"{routes}aliases: {{chat: [a, b]}}") as gateway:
            await gateway.until_ready("a", "b")
            yield gateway, a, b


async def ask(gateway: RunningGateway, said: str = "hi", *, stream: bool) -> RawReply:
    messages = [{"role": "user", "content": said}]
    return await raw_post(gateway.url, {"model": "chat", "messages": messages, "stream": stream, "max_tokens": 50})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_every_attempt_has_its_total_time(stream: bool) -> None:
    async with pair("first_byte: 30s, total: 500ms", slow) as (gateway, _, b):
        reply = await ask(gateway, stream=stream)
        assert (reply.status, reply.headers["x-gateway-backend"], len(b.turns)) == (200, "b", 1)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("timeouts", ["first_byte: 200ms", "first_byte: 30s, total: 200ms"])
async def test_a_prompt_is_counted_for_the_next_backend_though_the_one_before_was_silent(
    timeouts: str, stream: bool
) -> None:
    async with pair(timeouts, counts_slowly) as (gateway, _, b):
        reply = await ask(gateway, "words and words " * 1500, stream=stream)
        assert [turn.path for turn in b.turns] == ["/tokenize", "/v1/chat/completions"]
        assert (reply.status, reply.headers["x-gateway-backend"]) == (200, "b")
