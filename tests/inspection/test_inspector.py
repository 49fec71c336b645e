"""What is found in an answer, sent whole and streamed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.domain.endpoints import CHAT, COMPLETIONS
from gateway.domain.request import InferenceRequest
from gateway.inspection.formats import FORMATS
from gateway.inspection.inspector import Inspector
from gateway.inspection.offered_tools import OfferedTools
from gateway.inspection.policy import InspectionPolicy
from gateway.inspection.reasoning import REASONING, THINK
from gateway.inspection.rewrite import ReplyIdentity
from gateway.inspection.stream_track import REPEATS, StreamTrack
from gateway.inspection.whole import WholeAnswer, read_whole

REQUEST = InferenceRequest(CHAT, {}, "alias", stream=True, wants_usage=True)
TOOLS = [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}]
OFFERED = InspectionPolicy(OfferedTools(TOOLS), (FORMATS["hermes"],), THINK)
HEAD = {"id": "up-1", "created": 2, "model": "served"}
USAGE = {"completion_tokens": 30}


def dump(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({**HEAD, **value}, separators=(",", ":")).encode() + b"\n\n"


def event(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    return dump({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def in_one_piece(
    message: dict[str, Any], finish: str, policy: InspectionPolicy | None = None, **more: Any
) -> Inspector:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return read_whole(json.dumps({**HEAD, "choices": [choice], **more}).encode(), REQUEST, policy, THINK)


def both_ways(delta: dict[str, Any], finish: str = "stop", policy: InspectionPolicy | None = None) -> list[Inspector]:
    """The same, said in one delta and in one message."""
    track = StreamTrack(REQUEST, ReplyIdentity(), policy, THINK)
    for one in (event({"role": "assistant"}), event(delta), event({}, finish)):
        track.feed([one])
    track.conclude()
    return [track, in_one_piece({"role": "assistant", **delta}, finish, policy)]


# -- garbage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [None, OFFERED], ids=["plain", "tools"])
@pytest.mark.parametrize("field", ["content", "reasoning"])
@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("text", ["!!!!!!!", "\n!!!!! and words", "?" * 20, "-" * 25 + "\n"])
def test_garbage_is_noticed_however_it_is_cut(
    text: str, size: int, field: str, policy: InspectionPolicy | None
) -> None:
    parts = [event({field: text[i : i + size]}) for i in range(0, len(text), size)]
    track = StreamTrack(REQUEST, ReplyIdentity(), policy, THINK)
    for one in (*parts, event({}, "stop")):
        track.feed([one])
    track.conclude()
    assert "garbage" in track.violations
    assert "garbage" in in_one_piece({field: text}, "stop", policy).violations


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("text", ["!!!!", "?" * 19, "-" * 30 + "\nA table.", "Wow!!!!!!!!!!!!"])
def test_what_may_be_an_answer_is_no_garbage(text: str, size: int) -> None:
    parts = [event({"content": text[i : i + size]}) for i in range(0, len(text), size)]
    track = StreamTrack(REQUEST, ReplyIdentity())
    for one in (*parts, event({}, "stop")):
        track.feed([one])
    track.conclude()
    assert not track.violations
    assert not in_one_piece({"content": text}, "stop").violations


def test_one_token_again_and_again_is_garbage_and_a_sign_of_life_is_not() -> None:
    for one, found in ((event({"content": " ha"}), {"garbage"}), (event({"content": ""}), set()), (b": hi\n\n", set())):
        track = StreamTrack(REQUEST, ReplyIdentity())
        for _ in range(REPEATS + 1):
            track.feed([one])
        track.feed([event({"content": "Hello"}), event({}, "stop")])
        track.conclude()
        assert track.violations == found


# -- nothing said -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [None, OFFERED], ids=["plain", "tools"])
def test_tags_around_no_thought_are_an_empty_answer(policy: InspectionPolicy | None) -> None:
    for answer in both_ways({"content": "<think>\n</think>"}, policy=policy):
        assert (answer.empty, answer.violations) == (True, set())


@pytest.mark.parametrize("policy", [None, OFFERED], ids=["plain", "tools"])
@pytest.mark.parametrize("more", [{"refusal": "no"}, {"function_call": {"name": "f"}}, {"audio": {"id": "a"}}], ids=str)
def test_what_is_no_text_is_said_all_the_same(more: dict[str, Any], policy: InspectionPolicy | None) -> None:
    for answer in both_ways({"reasoning": "hm", **more}, policy=policy):
        assert (answer.empty, answer.violations) == (False, set())


@pytest.mark.parametrize("policy", [None, OFFERED], ids=["plain", "tools"])
def test_thoughts_that_the_limit_cut_off_are_counted_with_tools_and_without(policy: InspectionPolicy | None) -> None:
    for answer in both_ways({"reasoning": "hm"}, "length", policy):
        assert (answer.empty, answer.violations) == (False, {"reasoning_cut"})


def test_thoughts_that_the_client_does_not_want_are_no_silence_of_the_backend() -> None:
    hidden = InspectionPolicy(thoughts=THINK, reasoning_field="none")
    for answer in both_ways({"reasoning": "hm"}, policy=hidden):
        assert (answer.empty, answer.violations) == (False, {"nothing_said"})


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_finish_reason_that_means_failure_is_one_both_ways(reason: str) -> None:
    assert [a.failure for a in both_ways({"content": "x"}, reason)] == [f"ended with finish_reason {reason}"] * 2


def test_an_error_beside_choices_is_a_failure() -> None:
    assert "overloaded" in (in_one_piece({"content": "x"}, "stop", error={"message": "overloaded"}).failure or "")
    assert in_one_piece({"content": "x"}, "stop", error=None).failure is None


@pytest.mark.parametrize("spaced", [False, True])
def test_repetition_becomes_stop_in_a_completion_too(spaced: bool) -> None:
    request = InferenceRequest(COMPLETIONS, {}, "alias", stream=True)
    choices = [{"index": 0, "text": "ha", "logprobs": {"tokens": ["ha"]}, "finish_reason": "repetition"}]
    body = json.dumps({**HEAD, "choices": choices}, separators=None if spaced else (",", ":")).encode()
    whole = read_whole(body, request)
    track = StreamTrack(request, ReplyIdentity())
    sent = track.feed([b"data: " + body + b"\n\n"])
    track.conclude()
    for answer, made in ((whole, whole.body), (track, sent.removeprefix(b"data: "))):
        assert json.loads(made)["choices"] == [{**choices[0], "finish_reason": "stop"}]
        assert answer.violations == {"repetition"}


def test_a_call_that_was_cut_off_is_counted_when_the_usage_comes_last() -> None:
    request = InferenceRequest(CHAT, {}, "alias", stream=True, wants_usage=True, limits={"max_tokens": 30})
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "ping", "arguments": '{"a'}}
    end = event({}, "tool_calls")
    for events, finish in (([end, dump({"choices": [], "usage": USAGE})], "tool_calls"), ([end], None)):
        track = StreamTrack(request, ReplyIdentity(), OFFERED)
        for one in (event({"tool_calls": [call]}), *events):
            track.feed([one])
        track.conclude()
        assert track.finished == {0: "tool_calls"}
        assert track.violations == {"arguments_not_json"} | ({"finish_reason"} if finish else set())


# -- thoughts ---------------------------------------------------------------------------------------------------------


def test_the_tag_behind_an_answer_is_taken_out_of_a_stream_without_tools() -> None:
    texts = ("<think>hm</think>\n", "<answer>\n", "Four.", " Really.", "\n</answer>")
    track = StreamTrack(REQUEST, ReplyIdentity(), None, REASONING["hunyuan_a13b"])
    out = b"".join([track.feed([event({"content": text})]) for text in texts]) + track.feed([event({}, "stop")])
    deltas = [json.loads(one[6:])["choices"][0]["delta"] for one in out.split(b"\n\n")[:-1]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Four. Really."
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == "hm"


def test_a_closing_tag_is_no_end_of_thoughts_where_the_model_has_none() -> None:
    for thoughts, found in ((THINK, {"reasoning_as_text"}), (None, set()), (REASONING["mistral"], set())):
        track = StreamTrack(REQUEST, ReplyIdentity(), None, thoughts)
        for text in ("Let me see.", "\n</think>\n", "Four."):
            track.feed([event({"content": text})])
        track.feed([event({}, "stop")])
        track.conclude()
        assert (track.stray_close, track.violations) == (bool(found), found)


def test_each_choice_may_begin_with_thoughts_of_its_own() -> None:
    request = InferenceRequest(CHAT, {}, "alias", stream=True, choices=2)
    track = StreamTrack(request, ReplyIdentity(), None, THINK)
    out = b""
    for index, text in ((0, "Hello there"), (1, "[THINK]hm[/THINK]Four."), (0, " you")):
        choice = {"index": index, "delta": {"content": text}, "finish_reason": None}
        out += track.feed([dump({"choices": [choice]})])
    said: dict[int, str] = {0: "", 1: ""}
    for one in out.split(b"\n\n")[:-1]:
        [choice] = json.loads(one[6:])["choices"]
        said[choice["index"]] += choice["delta"].get("content") or ""
    assert said == {0: "Hello there you", 1: "Four."}


@pytest.mark.parametrize(
    ("rest", "arguments"),
    [('"{\\"city\\": \\"Oslo\\"}"}\n</tool_call>', {"city": "Oslo"}), ("null}\n</tool_call>", {})],
)
def test_arguments_that_came_as_content_go_into_their_call(rest: str, arguments: dict[str, Any]) -> None:
    policy = replace(OFFERED, unread=True)
    call = {"id": "a", "type": "function", "function": {"name": "ping", "arguments": ""}}
    answer = in_one_piece({"content": rest, "tool_calls": [call]}, "tool_calls", policy)
    assert isinstance(answer, WholeAnswer)
    message = json.loads(answer.body)["choices"][0]["message"]
    assert (answer.failure, message["content"]) == (None, None)
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == arguments
