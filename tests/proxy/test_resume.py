"""With `resume: true` a plain-text stream whose backend dies after content goes on at another one with the same model:
the client gets one stream with one id and one usage, and the text of an unbroken one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.domain.health_state import State
from simulator import SimVllm
from tests.accounting.test_record_settle_once import samples, settled
from tests.raw_client import chat, raw_client
from tests.resuming import CHAT, WITH_USAGE, WORDS, chain, of
from tests.scripted import RawReply, raw_post

pytestmark = pytest.mark.decided_both_ways

BREAKS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "closed": ("die_mid", {}),
    "reset": ("die_mid", {"reset": True}),
    "an error event": ("error_event", {}),
    "no finish_reason": ("end_without_finish", {}),
    "abort": ("abort", {}),
    "error as finish_reason": ("error_finish", {}),
    "silence": ("hang_mid", {}),
}


@pytest.mark.parametrize("name", BREAKS)
async def test_a_stream_that_breaks_goes_on_as_if_it_had_not(name: str) -> None:
    fault, options = BREAKS[name]
    async with chain(more=", timeouts: {idle: 300ms}") as c:
        whole = await c.ask(**WITH_USAGE)
        c.sims["a"].fault(fault, after=7, **options)
        reply = await c.ask(seed=7, temperature=0, **WITH_USAGE)
        assert (reply.status, reply.ended, reply.text) == (200, True, whole.text)
        assert reply.body.endswith(b"data: [DONE]\n\n")
        for key in ("id", "created", "model"):
            assert len({chunk[key] for chunk in reply.chunks}) == 1
        ends = [choice for chunk in reply.chunks for choice in chunk["choices"] if choice["finish_reason"]]
        assert [end["finish_reason"] for end in ends] == ["stop"]
        roles = [choice for chunk in reply.chunks for choice in chunk["choices"] if "role" in choice["delta"]]
        assert len(roles) == 1
        assert [chunk["usage"] for chunk in reply.chunks if "usage" in chunk] == [whole.chunks[-1]["usage"]]
        assert reply.events.count(b": x-gateway resumed=b") == 1
        assert (reply.headers["x-gateway-backend"], c.resumed()) == ("a", 1)
        [asked] = c.asked("b")
        first, sent = asked["messages"]
        assert first == c.asked("a")[0]["messages"][0]
        assert sent["role"] == "assistant"
        assert whole.text.startswith(sent["content"])
        assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)
        assert (asked["seed"], asked["temperature"], asked["model"]) == (7, 0, "m")
        c.sims["a"].clear()


async def test_both_attempts_are_settled_once() -> None:
    async with chain() as c:
        c.sims["a"].fault("die_mid", after=7, count=1)
        reply = await c.ask(**WITH_USAGE)
        assert await settled(c.gateway) == {("chat", "b", "chat", "200"): 1}
        assert samples(c.gateway, "gateway_attempts_total") == {("a", "interrupted"): 1, ("b", "ok"): 1}
        assert samples(c.gateway, "gateway_failovers_total") == {}
        assert samples(c.gateway, "gateway_time_to_first_token_seconds_count") == {("chat", "a"): 1}
        told = reply.chunks[-1]["usage"]
        tokens = samples(c.gateway, "gateway_tokens_total")
        assert tokens["open", "chat", "a", "prompt"] == told["prompt_tokens"]
        assert tokens["open", "chat", "b", "prompt"] == told["prompt_tokens"] + 7
        assert tokens["open", "chat", "a", "completion"] == 7
        assert (
            tokens["open", "chat", "a", "completion"] + tokens["open", "chat", "b", "completion"]
            == (told["completion_tokens"])
        )
        assert c.gateway.state("a") is not State.READY
        c.sims["a"].clear()


async def test_the_record_says_where_the_stream_went_on() -> None:
    async with chain() as c:
        records = []
        c.gateway.gateway.services.observers.append(lambda r: records.append((r.outcome, r.resumed, len(r.attempts))))
        c.sims["a"].fault("die_mid", after=3, count=1)
        await c.ask()
        await c.gateway.until(c.gateway.idle)
        assert records == [("200", "b", 2)]


async def test_an_answer_that_was_complete_but_for_its_end_gets_its_end() -> None:
    async with chain() as c:
        script: dict[str, Any] = {"vllm_xargs": {"script": "just this"}}
        c.sims["a"].fault("end_without_finish", after=2)
        reply = await c.ask(**script)
        assert (reply.text, reply.ended) == ("just this", True)
        c.sims["a"].clear()


@pytest.mark.parametrize(("more", "limit"), [({}, 13), ({"max_tokens": 15}, 8), ({"max_tokens": 3}, 5)])
async def test_limits_are_those_of_the_whole_answer(more: dict[str, Any], limit: int) -> None:
    async with chain(alias="resume: true, params: {max_tokens: 20}, min_max_tokens: 12") as c:
        c.sims["a"].fault("die_mid", after=7, count=1)
        assert (await c.ask(min_tokens=9, **more)).ended
        [asked] = c.asked("b")
        assert (asked["max_tokens"], asked["min_tokens"]) == (limit, 2)


async def test_the_next_backend_with_the_same_model_is_asked() -> None:
    sims = of("a"), SimVllm("b", served=["another"]), of("c")
    async with chain(*sims) as c:
        sims[0].fault("die_mid", after=7, count=1)
        reply = await c.ask()
        assert (reply.ended, c.resumed("c"), c.asked("b")) == (True, 1, [])
        sims[0].clear()


async def test_a_backend_that_is_not_reachable_has_not_had_the_text_so_the_next_is_asked() -> None:
    async with chain(of("a"), of("b"), of("c")) as c:
        c.sims["a"].fault("die_mid", after=7, count=1)
        c.sims["b"].fault("refuse")
        reply = await c.ask()
        assert (reply.ended, c.resumed("b"), c.resumed("c")) == (True, 0, 1)
        assert await settled(c.gateway) == {("chat", "c", "chat", "200"): 1}
        attempts = {("a", "interrupted"): 1, ("b", "failed"): 1, ("c", "ok"): 1}
        assert samples(c.gateway, "gateway_attempts_total") == attempts
        c.sims["b"].clear()


async def test_a_busy_backend_is_waited_for() -> None:
    sims = of("a"), of("b", decode=40.0)
    async with chain(*sims, more=", slots: 1") as c:
        sims[0].fault("die_mid", after=7, count=1)
        other = asyncio.create_task(raw_post(c.gateway.url, chat("b", said="20 words")))
        await c.gateway.until(lambda: c.gateway.gateway.fleet["b"].inflight == 1)
        asking = asyncio.create_task(c.ask())
        await c.gateway.until(lambda: c.gateway.gateway.admission.queue_depth().get("b") == 1)
        c.gateway.gateway.active.leave_stalled(c.gateway.gateway.fleet["a"])  # the one that was left
        reply = await asking
        assert (reply.ended, c.resumed()) == (True, 1)
        assert (await other).status == 200


async def test_a_client_that_leaves_while_the_stream_goes_on_frees_everything() -> None:
    async with chain() as c:
        c.sims["a"].fault("die_mid", after=7, count=1)
        c.sims["b"].fault("hang_before")
        async with raw_client(c.gateway.url) as client:
            await client.post(CHAT, chat("chat", said=WORDS, stream=True))
            await c.gateway.until(lambda: c.gateway.gateway.fleet["b"].inflight == 1)
            client.close()
            await c.gateway.until(c.gateway.idle)
        assert {key[3]: count for key, count in (await settled(c.gateway)).items()} == {"client_gone": 1}
        for sim in c.sims.values():
            sim.clear()


async def test_a_stream_of_messages_resumes_too() -> None:
    async with chain() as c:
        body = {
            "model": "chat",
            "max_tokens": 100,
            "stream": True,
            "messages": [{"role": "user", "content": WORDS}],
        }
        whole = await raw_post(c.gateway.url, body, "/v1/messages")
        c.sims["a"].fault("die_mid", after=7, count=1)
        reply = await raw_post(c.gateway.url, body, "/v1/messages")

        def said(answer: RawReply) -> str:
            return "".join(one["delta"].get("text", "") for one in answer_events(answer) if "delta" in one)

        assert (reply.ended, said(reply)) == (True, said(whole))
        c.sims["a"].clear()


def answer_events(reply: RawReply) -> list[Any]:
    lines = [line for event in reply.events for line in event.split(b"\n")]
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
