"""What clients get when a backend leaves calls and thoughts in the text, ignores `tool_choice`, or says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.saying import (
    CALL,
    GEMMA,
    HELLO,
    HERMES,
    NAMED,
    TOOLS,
    XML,
    both_ways,
    call,
    event,
    fleet,
    says,
    text,
    thoughts,
)
from tests.scripted import raw_post

pytestmark = pytest.mark.decided_both_ways

# -- calls and thoughts in the text -----------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("leaked", [CALL, XML], ids=["hermes", "xml"])
async def test_a_call_in_the_text_reaches_the_client_as_a_call(leaked: str, stream: bool) -> None:
    async with fleet(says(*text("I look.\n\n" + leaked)), keys=HERMES) as chat:
        reply = await chat.ask(stream, tools=TOOLS)
    assert reply.content.strip() == "I look."
    assert reply.calls == [("get_weather", {"city": "Oslo"})]
    assert reply.finish == "tool_calls"
    assert chat.violations("tool_call_as_text") == 1
    assert chat.mended("tool_calls") == 1
    assert reply.headers.get("x-gateway-mended") == (None if stream else "tool_calls")
    assert reply.raw.ended


@both_ways
async def test_a_call_of_a_tool_that_was_not_offered_stays_text(stream: bool) -> None:
    leaked = CALL.replace("get_weather", "rm_rf")
    async with fleet(says(*text(leaked)), keys=HERMES) as chat:
        reply = await chat.ask(stream, tools=TOOLS)
    assert (reply.content, reply.calls, reply.finish) == (leaked, [], "stop")


@both_ways
async def test_without_tools_markup_is_text(stream: bool) -> None:
    async with fleet(says(*text(CALL)), keys=HERMES) as chat:
        for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            reply = await chat.ask(stream, **more)
            assert (reply.content, reply.calls, reply.finish) == (CALL, [], "stop")


@both_ways
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
async def test_thoughts_at_the_start_of_the_text_get_their_own_field(tools: Any, stream: bool) -> None:
    more = {} if tools is None else {"tools": tools}
    async with fleet(says(*text("<think>\nhm\n</think>\n\nFour."))) as chat:
        reply = await chat.ask(stream, **more)
    assert (reply.reasoning.strip(), reply.content.strip(), reply.finish) == ("hm", "Four.", "stop")
    assert chat.violations("reasoning_as_text") == 1
    assert chat.mended("reasoning") == 1


@both_ways
async def test_a_text_that_only_looks_like_a_thought_comes_whole(stream: bool) -> None:
    said = "<b>bold</b> and [THIN] are no thoughts; `<think>` is a tag."
    async with fleet(says(*text(said, 1))) as chat:
        reply = await chat.ask(stream)
    assert (reply.content, reply.reasoning) == (said, "")
    assert chat.mended("reasoning") == 0


async def test_a_plain_stream_keeps_its_bytes() -> None:
    deltas = text("Nothing to see <here>, move on.")
    async with fleet(says(*deltas), keys=HERMES) as chat:
        reply = await chat.ask(True)
        with_tools = await chat.ask(True, tools=TOOLS)
    expected = [event(d).replace(b"served/model", b"chat").removesuffix(b"\n\n") for d in deltas]
    for got in (reply, with_tools):
        rid = got.headers["x-request-id"].encode()
        assert rid
        assert got.raw.events[1 : len(deltas) + 1] == expected


@both_ways
@pytest.mark.parametrize(
    ("field", "names"),
    [("both", {"reasoning", "reasoning_content"}), ("reasoning_content", {"reasoning_content"}), ("none", set())],
)
async def test_the_alias_chooses_the_field_of_thoughts(field: str, names: set[str], stream: bool) -> None:
    script = says(*thoughts("hm hm"), *text("Four."))
    async with fleet(script, alias=f", reasoning_field: {field}") as chat:
        reply = await chat.ask(stream)
    parts = [c["choices"][0] for c in (reply.raw.chunks if stream else [reply.raw.json]) if c["choices"]]
    said = [part["delta" if stream else "message"] for part in parts]
    seen = {key for one in said for key in one if key.startswith("reasoning") and one[key]}
    assert seen == names
    assert reply.content == "Four."


# -- a call that was asked for ----------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_a_backend_that_does_not_call_is_left_before_the_client_sees_anything(choice: Any, stream: bool) -> None:
    prose, obeys = (
        says(*text("I would rather talk.")),
        says(call("get_weather", '{"city": "Oslo"}'), finish="tool_calls"),
    )
    async with fleet(prose, obeys, keys=GEMMA) as chat:
        reply = await chat.ask(stream, tools=TOOLS, tool_choice=choice)
        assert reply.calls == [("get_weather", {"city": "Oslo"})]
        assert reply.content == ""
        assert reply.finish == "tool_calls"
        assert chat.violations("tool_choice_ignored") == 1
        assert chat.gateway.metric("gateway_failovers_total", alias="chat", reason="disobeyed") == 1
    assert reply.headers["x-gateway-backend"] == "b"


@both_ways
async def test_a_call_of_another_tool_than_the_named_one_is_not_passed_on(stream: bool) -> None:
    other, right = says(call("now", "{}"), finish="stop"), says(call("get_weather", '{"city": "Oslo"}'), finish="stop")
    async with fleet(other, right, keys=GEMMA) as chat:
        reply = await chat.ask(stream, tools=TOOLS, tool_choice=NAMED)
    assert reply.calls == [("get_weather", {"city": "Oslo"})]
    assert reply.finish == "tool_calls"  # vLLM says stop for a named choice


@both_ways
async def test_when_nobody_obeys_the_error_says_who(stream: bool) -> None:
    async with fleet(says(*text("No.")), keys=GEMMA) as chat:
        reply = await raw_post(chat.gateway.url, {**HELLO, "stream": stream, "tools": TOOLS, "tool_choice": "required"})
    assert reply.status == 400
    assert reply.json["error"]["code"] == "tool_choice_unsupported"
    assert "a " in reply.json["error"]["message"]


@both_ways
@pytest.mark.parametrize("keys", [HERMES, GEMMA], ids=["enforced", "not enforced"])
async def test_thoughts_cut_off_by_the_limit_are_no_disobedience(keys: str, stream: bool) -> None:
    async with fleet(says(*thoughts("hm"), finish="length"), says(*text("no")), keys=keys) as chat:
        reply = await chat.ask(stream, tools=TOOLS, tool_choice="required", max_tokens=2)
        assert (reply.reasoning, reply.content, reply.finish) == ("hm", "", "length")
        assert (chat.violations("reasoning_cut"), chat.violations("tool_choice_ignored")) == (1, 0)
        assert chat.backends[1].turns == []


@both_ways
async def test_a_required_call_in_the_text_counts(stream: bool) -> None:
    async with fleet(says(*text("Well.\n" + CALL), finish="tool_calls"), keys=GEMMA) as chat:
        reply = await chat.ask(stream, tools=TOOLS, tool_choice="required")
    assert reply.calls == [("get_weather", {"city": "Oslo"})]
    assert reply.content.strip() == "Well."
    assert chat.violations("tool_choice_ignored") == 0


# -- a turn in which nothing is said ----------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize(
    "empty", [thoughts("I should call it."), text("\n\n"), []], ids=["thoughts", "blank", "nothing"]
)
async def test_an_empty_turn_under_tools_is_taken_over_by_the_next_candidate(empty: Any, stream: bool) -> None:
    obeys = says(call("get_weather", '{"city": "Oslo"}'), finish="tool_calls", tokens=7)
    async with fleet(says(*empty), obeys, keys=HERMES) as chat:
        reply = await chat.ask(stream, tools=TOOLS, stream_options={"include_usage": True} if stream else None)
        assert reply.calls == [("get_weather", {"city": "Oslo"})]
        assert reply.finish == "tool_calls"
        if stream:
            assert reply.reasoning == "".join(d.get("reasoning", "") for d in empty)
            ids = {c["id"] for c in reply.raw.chunks}
            assert len(ids) == 1
            assert [c["usage"]["completion_tokens"] for c in reply.raw.chunks if c.get("usage")] == [7]
        # both are paid for
        spent = [
            chat.gateway.metric("gateway_tokens_total", client="open", alias="chat", backend=b, kind="completion")
            for b in "ab"
        ]
        assert spent == [30, 7]
        assert chat.violations("nothing_said") == 1  # saved, and counted all the same
        assert chat.violations("nothing_said", "b") == 0


@both_ways
async def test_an_empty_turn_without_another_candidate_is_asked_again_for_a_call(stream: bool) -> None:
    async with fleet(says(*thoughts("hm")), keys=HERMES) as chat:
        backend = chat.backends[0]
        backend.play(says(*thoughts("hm")), says(call("now", "{}"), finish="tool_calls"))
        reply = await chat.ask(stream, tools=TOOLS)
    assert reply.calls == [("now", {})]
    assert [turn.json.get("tool_choice") for turn in backend.turns] == [None, "required"]


@both_ways
async def test_an_empty_turn_that_stays_empty_is_delivered_and_counted(stream: bool) -> None:
    async with fleet(says(*thoughts("hm")), keys=HERMES) as chat:
        reply = await chat.ask(stream, tools=TOOLS)
        assert (reply.content, reply.calls, reply.finish) == ("", [], "stop")
        assert len(chat.backends[0].turns) == 2
        assert chat.violations("nothing_said") == 2  # each of them once
    assert reply.raw.ended


@both_ways
async def test_a_turn_cut_off_by_the_limit_is_not_an_empty_one(stream: bool) -> None:
    async with fleet(says(*thoughts("hm"), finish="length"), says(*text("no")), keys=HERMES) as chat:
        reply = await chat.ask(stream, tools=TOOLS)
        assert (reply.reasoning, reply.finish) == ("hm", "length")
        assert chat.violations("reasoning_cut") == 1
        assert chat.backends[1].turns == []


# -- what is only counted ---------------------------------------------------------------------------------------------


@both_ways
async def test_an_answer_that_is_garbage_is_counted(stream: bool) -> None:
    async with fleet(says(*text("!" * 90, 1))) as chat:
        reply = await chat.ask(stream)
    assert reply.content == "!" * 90
    assert chat.violations("garbage") == 1


@both_ways
async def test_garbage_that_a_parser_takes_for_thoughts_is_counted_as_such(stream: bool) -> None:
    async with fleet(says(*({"reasoning": "!"} for _ in range(90)), finish="length")) as chat:
        reply = await chat.ask(stream)
    assert reply.reasoning == "!" * 90
    assert chat.violations("garbage") == 1


@both_ways
async def test_calls_that_cannot_be_run_are_counted(stream: bool) -> None:
    async with fleet(says(call("get_weather", "{}"), finish="tool_calls"), keys=HERMES) as chat:
        await chat.ask(stream, tools=TOOLS)
        chat.backends[0].play(says(call("rm_rf", "{}"), finish="tool_calls"))
        await chat.ask(stream, tools=TOOLS)
    assert chat.violations("missing_arguments") == 1
    assert chat.violations("unknown_tool") == 1


@both_ways
async def test_text_that_can_not_have_been_all_is_counted(stream: bool) -> None:
    said = text("Let me check the weather for you.\n\n")
    async with fleet(says(*said, tokens=38), keys=HERMES) as chat:
        await chat.ask(stream, tools=TOOLS)
        await chat.ask(stream)  # without tools there is nothing to swallow
        chat.backends[0].play(says(*said, tokens=9))
        await chat.ask(stream, tools=TOOLS)
        chat.backends[0].play(says(call("get_weather", '{"city": "Oslo"}'), tokens=60))
        await chat.ask(stream, tools=TOOLS)
    assert chat.violations("swallowed") == 1
