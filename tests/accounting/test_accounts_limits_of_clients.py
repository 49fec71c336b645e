"""rpm and tpm of a client, through the gateway: what is refused reaches no backend, estimates are corrected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.raw_client import chat
from tests.scripted import RawReply, Script, ScriptedBackend, Turn, json_answer, raw_post, scripted
from tests.support import RunningGateway, running_gateway

pytestmark = pytest.mark.decided_both_ways


def answered(prompt: int, completion: int) -> Script:
    """A whole answer that reports this usage."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    message = {"role": "assistant", "content": "hello"}
    body = {"id": "x", "model": "served/model", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    async def play(turn: Turn) -> None:
        await turn.send(json_answer({**body, "usage": usage}))

    return play


async def broken(turn: Turn) -> None:
    await turn.send(json_answer({"error": "no"}, "500 Internal Server Error"))


@asynccontextmanager
async def limited(limits: str, script: Script) -> AsyncIterator[tuple[RunningGateway, ScriptedBackend]]:
    """The client `one` has these limits, `two` has none."""
    async with scripted(script) as backend:
        clients = f"clients: {{one: {{key: one-key, {limits}}}, two: {{key: two-key}}}}"
        async with running_gateway(f"backends: {{a: {{url: '{backend.url}'}}}}\n{clients}") as gateway:
            await gateway.until_ready("a")
            yield gateway, backend


async def ask(gateway: RunningGateway, key: str = "one-key", *, stream: bool = False, model: str = "a") -> RawReply:
    return await raw_post(gateway.url, chat(model, stream=stream), headers=[f"authorization: Bearer {key}"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_beyond_rpm_is_refused_and_reaches_no_backend(stream: bool) -> None:
    async with limited("rpm: 3", answered(10, 10)) as (gateway, backend):
        first = [(await ask(gateway)).status for _ in range(3)]
        refused = await ask(gateway, stream=stream)
        assert (first, refused.status) == ([200, 200, 200], 429)
        assert refused.json["error"]["code"] == "rate_limit_exceeded"
        assert refused.json["error"]["message"].startswith("Client 'one' has had its 3 requests (rpm) of this minute")
        assert 1 <= int(refused.headers["retry-after"]) <= 61
        assert refused.headers["x-request-id"]
        assert len(backend.turns) == 3
        assert (await ask(gateway, "two-key")).status == 200, "another client is not concerned"


async def test_requests_at_the_same_time_are_counted_one_by_one() -> None:
    async with limited("rpm: 5", answered(10, 10)) as (gateway, backend):
        replies = await asyncio.gather(*(ask(gateway) for _ in range(20)))
        assert sorted(reply.status for reply in replies) == [200] * 5 + [429] * 15
        assert len(backend.turns) == 5


async def test_tokens_that_the_backend_reports_count_against_tpm() -> None:
    async with limited("tpm: 4000", answered(3000, 2000)) as (gateway, backend):
        assert (await ask(gateway)).status == 200, "by the estimate there is room for three"
        refused = await ask(gateway)
        assert refused.status == 429
        assert "4000 tokens (tpm)" in refused.json["error"]["message"]
        assert len(backend.turns) == 1


async def test_short_answers_give_back_what_was_estimated() -> None:
    async with limited("tpm: 1500", answered(20, 5)) as (gateway, _):
        assert [(await ask(gateway)).status for _ in range(15)] == [200] * 15


async def test_a_request_that_nobody_answered_costs_no_tokens() -> None:
    async with limited("tpm: 1500", broken) as (gateway, _):
        replies = [await ask(gateway) for _ in range(4)]
        assert 429 not in [reply.status for reply in replies if "tpm" in str(reply.json)]
        assert replies[0].status == 502


async def test_a_request_for_an_unknown_model_does_not_count_against_rpm() -> None:
    async with limited("rpm: 1", answered(10, 10)) as (gateway, _):
        assert [(await ask(gateway, model="nobody")).status for _ in range(3)] == [404] * 3
        assert (await ask(gateway)).status == 200
