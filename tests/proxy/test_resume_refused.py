"""When a broken stream does not go on, although its alias says `resume: true`: what is not plain text, and
what no other backend can take over. The client gets `stream_interrupted`, as without the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.domain.health_state import State
from gateway.routing.resume import can_continue
from simulator import SimVllm
from tests.accounting.test_record_settle_once import samples, settled
from tests.raw_client import chat, raw_client
from tests.resuming import CHAT, INTERRUPTED, WORDS, Chain, chain, of
from tests.scripted import RawReply
from tests.support import running_gateway

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
NEVER: Mapping[str, dict[str, Any]] = {
    "tools": {"tools": [TOOL]},
    "several choices": {"n": 2},
    "log probabilities": {"logprobs": True},
    "a JSON schema": {"response_format": {"type": "json_object"}},
    "structured output": {"structured_outputs": {"choice": ["one two three four five six", "b"]}},
    "a guided answer": {"guided_regex": ".*"},
    "hidden thoughts": {"include_reasoning": False},
    "a text that the client continues": {"continue_final_message": True, "add_generation_prompt": False},
}


async def interrupted(c: Chain, reply: RawReply, served: str = "a") -> None:
    """The stream ended as without `resume`."""
    assert reply.status == 200
    assert not reply.ended
    assert INTERRUPTED in reply.events[-1]
    assert b"resumed" not in reply.body
    assert samples(c.gateway, "gateway_resumed_total") == {}
    assert {key[1:]: count for key, count in (await settled(c.gateway)).items()} == {
        (served, "chat", "stream_interrupted"): 1
    }


@pytest.mark.parametrize("name", NEVER)
async def test_an_answer_that_is_not_plain_text_does_not_go_on(name: str) -> None:
    async with chain() as c:
        c.sims["a"].fault("die_mid", after=7, count=1)
        await interrupted(c, await c.ask(**NEVER[name]))
        assert c.asked("b") == []
        c.sims["a"].clear()


async def test_without_the_key_nothing_goes_on() -> None:
    async with chain(alias="on_busy: wait") as c:
        c.sims["a"].fault("die_mid", after=7, count=1)
        await interrupted(c, await c.ask())
        c.sims["a"].clear()


async def test_a_stream_with_thoughts_does_not_go_on() -> None:
    sims = [of(name, reasoning_parser="qwen3") for name in "ab"]
    async with chain(*sims) as c:
        sims[0].fault("die_mid", after=40, count=1)
        await interrupted(c, await c.ask())
        sims[0].clear()


async def test_another_model_does_not_go_on() -> None:
    async with chain(of("a"), SimVllm("b", served=["another"])) as c:
        c.sims["a"].fault("die_mid", after=7, count=1)
        await interrupted(c, await c.ask())
        assert c.asked("b") == []
        c.sims["a"].clear()


async def test_a_cloud_never_goes_on() -> None:
    async with of("a").serve() as a, of("b").serve() as b:
        backends = f'{{a: {{url: "{a}"}}, b: {{url: "{b}", cloud: true}}}}'
        routes = f"backends: {backends}\naliases: {{chat: {{use: [a, b], resume: true}}}}"
        async with running_gateway(routes) as gateway:
            fleet = gateway.gateway.fleet
            assert can_continue(fleet["a"], fleet["a"])
            assert not can_continue(fleet["b"], fleet["a"])


async def test_a_stream_goes_on_once() -> None:
    """A prompt that kills engines must not take every replica."""
    sims = of("a"), of("b"), of("c")
    async with chain(*sims) as c:
        sims[0].fault("die_mid", after=7, count=1)
        sims[1].fault("die_mid", after=5, count=1)
        reply = await c.ask()
        assert not reply.ended
        assert INTERRUPTED in reply.events[-1]
        assert (c.resumed("b"), c.resumed("c"), c.asked("c")) == (1, 0, [])
        assert await settled(c.gateway) == {("chat", "b", "chat", "stream_interrupted"): 1}
        assert samples(c.gateway, "gateway_attempts_total") == {("a", "interrupted"): 1, ("b", "interrupted"): 1}
        for sim in sims:
            sim.clear()


async def test_a_prompt_that_has_failed_elsewhere_before_does_not_go_on() -> None:
    sims = of("a"), of("b"), of("c")
    async with chain(*sims) as c:
        sims[0].fault("status", status=500, count=1)
        sims[1].fault("die_mid", after=5, count=1)
        await interrupted(c, await c.ask(), served="b")
        assert c.asked("c") == []
        sims[1].clear()


REFUSALS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "500": ("status", {"status": 500}),
    "400": ("status", {"status": 400}),
    "429": ("status", {"status": 429}),
    "no answer": ("die_before", {}),
    "no content": ("die_mid", {"after": 0}),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_when_the_next_backend_fails_too_the_stream_is_interrupted(name: str) -> None:
    fault, options = REFUSALS[name]
    async with chain(of("a"), of("b"), of("c")) as c:
        c.sims["a"].fault("die_mid", after=7, count=1)
        c.sims["b"].fault(fault, **options)
        reply = await c.ask()
        assert not reply.ended
        assert INTERRUPTED in reply.events[-1]
        assert c.asked("c") == []
        assert {key[3]: count for key, count in (await settled(c.gateway)).items()} == {"stream_interrupted": 1}
        for sim in c.sims.values():
            sim.clear()


async def test_when_every_other_backend_is_down_the_stream_is_interrupted() -> None:
    async with chain() as c:
        c.sims["b"].fault("refuse")
        await c.gateway.until(lambda: c.gateway.state("b") is not State.READY)
        c.sims["a"].fault("die_mid", after=7, count=1)
        reply = await c.ask()
        assert not reply.ended
        assert INTERRUPTED in reply.events[-1]
        for sim in c.sims.values():
            sim.clear()


async def test_when_no_slot_comes_free_in_time_the_stream_is_interrupted() -> None:
    sims = of("a"), of("b")
    async with chain(*sims, more=", slots: 1, queue: {max_wait: 200ms}") as c:
        sims[0].fault("die_mid", after=7, count=1)
        sims[1].fault("hang_before", count=1)
        async with raw_client(c.gateway.url) as client:
            await client.post(CHAT, chat("b", said=WORDS))
            await c.gateway.until(lambda: c.gateway.gateway.fleet["b"].inflight == 1)
            reply = await c.ask()
            assert not reply.ended
            assert INTERRUPTED in reply.events[-1]
        sims[1].clear()
