"""Thoughts that end without having begun: what is said of them is said once, and one client's answer changes nobody
else's."""

from __future__ import annotations

import json
import re
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import CHAT, InferenceRequest, parse
from gateway.inspection.notation import formats_for, may_lack_opener
from gateway.inspection.policy import InspectionPolicy, LazyTools
from gateway.inspection.reasoning import THINK
from gateway.inspection.rewrite import Identity
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.whole import read_whole
from gateway.routing.inspection_policy import STRAY_THOUGHTS
from tests.saying import TOOLS, Fleet, both_ways, event, fleet, says, text, thoughts

THINKER = "Qwen/Qwen3-4B-Thinking-2507"
STRAY = "Let me see.\n</think>\n\nFour."


def said(words: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": words}]}


async def taught(chat: Fleet, stream: bool) -> None:
    """Two prompts were answered with thoughts that lack their opener."""
    for words in ("one", "two"):
        await chat.ask(stream, **said(words))


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


def test_the_families_that_may_leave_the_opener_out() -> None:
    assert [m for m in ("Qwen3.6-35B", "DeepSeek-R1", "MiniMax-M2", "GLM-4.7-Flash") if not may_lack_opener(m)] == []
    others = (None, "", "served/model", "Qwen3-Coder-Next", "gemma-4-31B-it", "gpt-oss-120b", "Magistral-Small")
    assert [m for m in others if may_lack_opener(m)] == []


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


@both_ways
async def test_thoughts_in_their_own_field_are_no_sign_of_others(stream: bool) -> None:
    async with fleet(says(*text(STRAY, 40)), model=THINKER) as chat:
        await taught(chat, stream)
        chat.backends[0].play(says(*thoughts("Hm."), *text("It is 4.")))
        for _ in range(2):
            reply = await chat.ask(stream)
            assert (reply.content, reply.reasoning) == ("It is 4.", "Hm.")


async def test_a_very_long_answer_is_not_held_to_its_end() -> None:
    long = "word " * 60_000
    async with fleet(says(*text(STRAY, 40)), model=THINKER) as chat:
        await taught(chat, True)
        chat.backends[0].play(says(*text(long, 10_000)))
        reply = await chat.ask(True)
        assert (reply.content, reply.reasoning) == (long, "")


# -- whatever is said -------------------------------------------------------------------------------------------------

OFFERED = json.dumps({"model": "alias", "stream": True, "messages": [], "tools": TOOLS}).encode()
PLAIN = json.dumps({"model": "alias", "stream": True, "messages": []}).encode()
MARKERS = ["<think>", "</think>", "\n", "\n</think>\n", "<think>\n", "</", "think>", "<", "```\n", "`", " "]
pieces = st.lists(st.sampled_from(MARKERS) | st.just("WORD"), max_size=14)


def numbered(parts: list[str]) -> str:
    """The text, each of its words with a number of its own."""
    return "".join(f"word{number}. " if part == "WORD" else part for number, part in enumerate(parts))


def words_of(*texts: str) -> list[str]:
    return sorted(re.findall(r"word\d+\.", " ".join(texts)))


def streamed(
    whole: str, cuts: list[int], request: InferenceRequest, expected: InspectionPolicy | None
) -> tuple[str, str]:
    """(content, thoughts) as the client gets them."""
    places = [0, *sorted(c for c in cuts if c < len(whole)), len(whole)]
    track = StreamTrack(request, Identity(), expected, THINK)
    events = [event({"role": "assistant", "content": ""})]
    events += [event({"content": whole[a:b]}) for a, b in pairwise(places) if whole[a:b]]
    out = b"".join(track.feed([one]) for one in [*events, event({}, "stop")])
    track.conclude()
    deltas = [
        json.loads(one.removeprefix(b"data: "))["choices"][0]["delta"]
        for one in (out + track.release_held()).split(b"\n\n")[:-1]
    ]
    return "".join(d.get("content") or "" for d in deltas), "".join(d.get("reasoning") or "" for d in deltas)


EXPECTED = {
    "nothing": None,
    "thoughts": InspectionPolicy(thoughts=THINK),
    "guessed": InspectionPolicy(thoughts=THINK.with_opener_implied()),
    "guessed, both names": InspectionPolicy(thoughts=THINK.with_opener_implied(), reasoning_field="reasoning"),
}


@pytest.mark.parametrize("way", EXPECTED)
@given(parts=pieces, cuts=st.lists(st.integers(0, 120), max_size=12), offered=st.booleans())
def test_each_word_comes_exactly_once_however_it_is_marked_and_cut(
    way: str, parts: list[str], cuts: list[int], offered: bool
) -> None:
    whole, expected = numbered(parts), EXPECTED[way]
    request = parse(CHAT, OFFERED if offered else PLAIN)
    if offered and expected is not None:
        tools = LazyTools(bytes(request.fields["tools"]))
        expected = InspectionPolicy(tools, formats_for(THINKER, "hermes"), expected.thoughts)
    content, reasoning = streamed(whole, cuts, request, expected)
    assert words_of(content, reasoning) == words_of(whole)
    if "think" not in whole and "<" not in whole:
        assert (content, reasoning) == (whole, "")


@given(parts=pieces, offered=st.booleans(), asked=st.booleans())
def test_each_word_of_a_whole_answer_comes_exactly_once(parts: list[str], offered: bool, asked: bool) -> None:
    whole = numbered(parts)
    body = {"model": "alias", **said("Write </think>." if asked else "hello"), **({"tools": TOOLS} if offered else {})}
    request = parse(CHAT, json.dumps(body).encode())
    expected = InspectionPolicy(LazyTools(json.dumps(TOOLS).encode()), (), THINK) if offered else None
    choice = {"index": 0, "message": {"role": "assistant", "content": whole}, "finish_reason": "stop"}
    answer = read_whole(json.dumps({"model": "m", "choices": [choice]}).encode(), request, expected, THINK)
    message = json.loads(answer.body)["choices"][0]["message"]
    content, reasoning = message.get("content") or "", message.get("reasoning") or ""
    assert words_of(content, reasoning) == words_of(whole)
    if asked and not whole.lstrip().startswith("<"):
        assert (content, reasoning) == (whole, "")
