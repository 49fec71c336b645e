"""Thoughts that end without having begun: what is said of them is said once, and one client's answer changes nobody
else's."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.endpoints import CHAT
from gateway.domain.request import InferenceRequest, parse
from gateway.inspection.policy import InspectionPolicy, LazyTools, formats_for, may_lack_opener
from gateway.inspection.reasoning import THINK
from gateway.inspection.rewrite import ReplyIdentity
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.whole import read_whole
from tests.saying import TOOLS, Fleet, both_ways, event, fleet, says, text, thoughts

pytestmark = pytest.mark.decided_both_ways

THINKER = "Qwen/Qwen3-4B-Thinking-2507"
STRAY = "Let me see.\n</think>\n\nFour."


def said(words: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": words}]}


async def taught(chat: Fleet, stream: bool) -> None:
    """Two prompts were answered with thoughts that lack their opener."""
    for words in ("one", "two"):
        await chat.ask(stream, **said(words))


def test_the_families_that_may_leave_the_opener_out() -> None:
    assert [m for m in ("Qwen3.6-35B", "DeepSeek-R1", "MiniMax-M2", "GLM-4.7-Flash") if not may_lack_opener(m)] == []
    others = (None, "", "served/model", "Qwen3-Coder-Next", "gemma-4-31B-it", "gpt-oss-120b", "Magistral-Small")
    assert [m for m in others if may_lack_opener(m)] == []


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
    track = StreamTrack(request, ReplyIdentity(), expected, THINK)
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
