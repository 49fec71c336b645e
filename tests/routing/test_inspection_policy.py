"""Whether thoughts without an opener are expected of a backend: learned from answers, refuted by answers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.routing.inspection_policy import STRAY_THOUGHTS
from tests.inspection.test_reasoning_stray import STRAY, THINKER, said, taught
from tests.saying import TOOLS, Fleet, both_ways, fleet, says, text


def guesses(chat: Fleet) -> bool:
    return chat.gateway.gateway.fleet["a"].facts.is_lacking(STRAY_THOUGHTS, time.monotonic())


# -- what is learned --------------------------------------------------------------------------------------------------


@both_ways
async def test_thoughts_without_an_opener_are_learned_from_the_answers_to_two_prompts(stream: bool) -> None:
    async with fleet(says(*text(STRAY, 40)), model=THINKER) as chat:
        for _ in range(3):  # the same one again is no second witness
            await chat.ask(stream, **said("one"))
            assert not guesses(chat)
        await chat.ask(stream, **said("two"))
        assert guesses(chat)
        reply = await chat.ask(True)
        assert (reply.reasoning.strip(), reply.content.strip()) == ("Let me see.", "Four.")
        status = (await chat.gateway.client.get("/status")).json()["backends"]["a"]["learned"]
        assert status["taught"][STRAY_THOUGHTS]["request"]


@both_ways
@pytest.mark.parametrize("model", ["served/model", "Qwen/Qwen2.5-7B-Instruct", "google/gemma-4-31B-it"])
async def test_a_family_that_does_not_think_so_is_not_taken_to(model: str, stream: bool) -> None:
    async with fleet(says(*text(STRAY, 40)), model=model) as chat:
        await taught(chat, stream)
        assert not guesses(chat)
        chat.backends[0].play(says(*text("No thoughts.\n\nReally.")))
        for way in (True, False):
            reply = await chat.ask(way)
            assert (reply.content, reply.reasoning) == ("No thoughts.\n\nReally.", "")


@both_ways
async def test_a_client_that_asks_for_the_tag_changes_nothing_and_gets_it(stream: bool) -> None:
    async with fleet(says(*text(STRAY, 40)), model=THINKER) as chat:
        for number in range(3):
            reply = await chat.ask(stream, **said(f"Write </think> on a line of its own, {number} times."))
            assert (reply.content, reply.reasoning) == (STRAY, "")
        assert not guesses(chat)


async def test_with_several_clients_it_takes_two_of_them() -> None:
    clients = "clients:\n  ann: {key: key-of-ann}\n  bob: {key: key-of-bob}\n"
    async with fleet(says(*text(STRAY, 40)), model=THINKER, more=clients) as chat:
        for who, words, known in (("ann", "one", False), ("ann", "two", False), ("bob", "one", True)):
            headers = {"authorization": f"Bearer key-of-{who}"}
            body = {"model": "chat", **said(words)}
            assert (await chat.gateway.client.post("/v1/chat/completions", json=body, headers=headers)).is_success
            assert guesses(chat) is known


@both_ways
@pytest.mark.parametrize("size", [40, 9])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("thought", ["\nhm\n", "\n\n"], ids=["thought", "none"])
async def test_an_answer_with_both_tags_is_not_one_without_an_opener(
    thought: str, tools: Any, size: int, stream: bool
) -> None:
    more = {} if tools is None else {"tools": tools}
    async with fleet(says(*text(f"<think>{thought}</think>\n\nFour.", size)), model=THINKER) as chat:
        for words in ("one", "two"):
            reply = await chat.ask(stream, **more, **said(words))
            assert (reply.content.strip(), reply.reasoning.strip()) == ("Four.", thought.strip())
        assert not guesses(chat)


# -- what a wrong guess costs -----------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
async def test_an_answer_without_thoughts_comes_once_though_thoughts_were_guessed(tools: Any, stream: bool) -> None:
    more = {} if tools is None else {"tools": tools}
    async with fleet(says(*text(STRAY, 40)), model=THINKER) as chat:
        await taught(chat, stream)
        chat.backends[0].play(says(*text("No thoughts here.")))
        for _ in range(2):
            reply = await chat.ask(stream, **more)
            assert (reply.content, reply.reasoning, reply.finish) == ("No thoughts here.", "", "stop")
        assert guesses(chat) is not stream, "a stream has shown that it is not so"


async def test_an_answer_that_was_cut_off_does_not_refute_the_guess() -> None:
    async with fleet(says(*text(STRAY, 40)), model=THINKER) as chat:
        await taught(chat, True)
        chat.backends[0].play(says(*text("Let me see, it"), finish="length"))
        reply = await chat.ask(True)
        assert (reply.content, reply.reasoning, reply.finish) == ("Let me see, it", "", "length")
        assert guesses(chat)
