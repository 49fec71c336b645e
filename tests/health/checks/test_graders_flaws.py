"""Good and bad answers to each check."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.health.checks import CheckReply
from tests.health.checks.test_graders import look, whole


def said(content: str | None = None, finish: str = "stop", tokens: int = 9, **message: Any) -> CheckReply:
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": content, **message}}
    return whole(
        {"choices": [{**choice, "finish_reason": finish}], "usage": {"prompt_tokens": 12, "completion_tokens": tokens}}
    )


def called(*calls: tuple[str, object], **more: Any) -> CheckReply:
    made = [
        {
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for name, given in calls
    ]
    return said(tool_calls=made, finish="tool_calls", **more)


def stream(*deltas: dict[str, Any], finish: str | None = "stop", end: bytes = b"data: [DONE]\n\n") -> CheckReply:
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}] if finish else []
    events = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    return CheckReply(200, {"content-type": "text/event-stream; charset=utf-8"}, events + end)


OSLO, BOTH = {"city": "Oslo"}, (("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"}))
LEAKED = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
PRODUCT = json.dumps({"factors": [12, 17], "product": 204})
MADE = (
    ("plain", said("Hello."), "yes", "said 'Hello.'"),
    ("plain", said("<think>\nA greeting.\n</think>\n\nHello."), "mended", "--reasoning-parser qwen3"),
    ("plain", said("!" * 64), "no", "--moe-backend marlin"),
    ("plain", said(" "), "no", "nothing is left of 9 tokens"),
    ("plain", said(None, tokens=1), "no", "an empty answer"),
    ("plain", said(None, "length", reasoning="Let me think"), "no", "still thinking after 9 tokens"),
    ("plain", said("Hal", "abort"), "no", "finish_reason abort"),
    ("arithmetic", said("It is 204."), "yes", "204"),
    ("arithmetic", said("<think>12*17</think>204"), "mended", "its thoughts stand in the content"),
    ("arithmetic", said("<think>12*17 = 204</think>201"), "no", "it said '201'"),
    ("arithmetic", said("It is 194."), "no", "12*17 is 204, it said 'It is 194.'"),
    ("arithmetic", said("!!!!!!!!"), "no", "--moe-backend marlin"),
    ("reasoning", said("204", reasoning="12*17"), "yes", "5 characters of thoughts"),
    ("reasoning", said("204", reasoning_content="12*17"), "yes", "5 characters of thoughts"),
    ("reasoning", said("<think>12*17</think>204"), "mended", "--reasoning-parser qwen3"),
    ("reasoning", said("12*17\n</think>\n\n204"), "mended", "its thoughts stand in the content"),
    ("reasoning", said(None, reasoning="12*17 is 204"), "no", "all that it said stands in the reasoning field"),
    ("reasoning", said(None, "length", reasoning="Hm"), "untested", "still thinking after 9 tokens"),
    ("reasoning", said("204"), "untested", "it did not think"),
    ("thinking_off", said(None, reasoning="204"), "no", "it filled its reasoning: '204'"),
    ("thinking_off", said("204", reasoning="\n\n"), "yes", "204"),
    ("tool_auto", called(("get_weather", OSLO)), "yes", 'called get_weather({"city": "Oslo"})'),
    ("tool_auto", said(LEAKED), "mended", "no call, but text"),
    ("tool_auto", said(f"<think>Call it.</think>{LEAKED}"), "mended", "no call, but text"),
    ("tool_auto", said(LEAKED.replace("get_weather", "get_stocks")), "no", "no call, but text"),
    ("tool_auto", said(None, tokens=30), "no", "nothing is left of 30 tokens: its parser does not fit"),
    ("tool_auto", said(None, reasoning="x" * 619, tokens=150), "no", "of 150 tokens only 619 characters of thoughts"),
    ("tool_auto", called(("get_time", OSLO)), "no", "called 'get_time' instead of get_weather"),
    ("tool_auto", called(("get_weather", {"city": "Paris"})), "no", "for 'Paris' instead of Oslo"),
    ("tool_auto", called(("get_weather", '{"city": "')), "no", "not a JSON object"),
    ("tool_auto", called(("get_weather", {})), "no", "without its required `city`"),
    ("tool_auto", called(("get_weather", {"city": ""})), "no", "without its required `city`"),
    ("tool_required", called(("get_time", {"city": "Rome"})), "yes", "get_time"),
    ("tool_required", called(("get_stocks", OSLO)), "no", "was not offered"),
    ("tool_required", said(LEAKED), "mended", "required was not obeyed"),
    ("tool_named", called(("get_time", OSLO)), "yes", "get_time"),
    ("tool_named", said(LEAKED), "no", "called 'get_weather' instead of get_time"),
    ("tool_parallel", called(*BOTH), "yes", "Rome"),
    ("tool_parallel", called(BOTH[0], BOTH[0]), "no", "2 calls for two cities"),
    ("tool_parallel", said(LEAKED + LEAKED.replace("Oslo", "Rome")), "mended", "no call, but text"),
    ("tool_parallel", said("I can't."), "no", "no call, but text"),
    ("json_schema", said(PRODUCT), "yes", "said"),
    ("json_schema", said(f"```json\n{PRODUCT}\n```"), "no", "not enforced"),
    ("json_schema", said('{"product": 204}'), "no", "not the keys"),
    ("json_schema", said('{"factors": ["12"], "product": 204}'), "no", "not the types"),
    ("json_schema", said('{"factors": [12], "product": true}'), "no", "not the types"),
    ("json_schema", said('{"factors":    \n', "length", tokens=256), "untested", "own limit of 256 tokens: not JSON"),
    ("tool_auto", said("Well, " * 200, "length", tokens=256), "untested", "own limit of 256 tokens: no call, but"),
    ("tool_auto", said(None, "length", tokens=256, reasoning="Hm"), "untested", "own limit of 256 tokens: no call"),
    ("tool_auto", said("!" * 256, "length", tokens=256), "no", "--moe-backend marlin"),
    ("tool_required", called(("get_weather", '{"city"'), tokens=256), "untested", "own limit of 256 tokens"),
    ("tool_required", called(("get_weather", OSLO), tokens=256), "yes", "called get_weather"),
    ("json_schema", said(None), "no", "nothing is left"),
    ("plain", whole(b"<html>hello</html>"), "no", "not JSON: '<html>hello</html>'"),
    ("plain", whole([]), "no", "not an object"),
    ("plain", whole({"error": {"message": "oops"}}), "no", "oops"),
    ("plain", whole({"choices": []}), "no", "without `choices`"),
    ("plain", whole(b"Bad Gateway", 502), "no", "answered 502: Bad Gateway"),
    ("tool_auto", whole({"error": {"message": "boom"}}, 500), "no", "answered 500: boom"),
    ("tool_auto", whole({"error": "slow down"}, 429), "untested", "busy"),
    ("stream", stream({"content": "Hel"}, {"content": "lo"}), "yes", "said 'Hello'"),
    ("stream", stream({"content": "Hello"}, end=b""), "mended", "without [DONE]"),
    ("stream", stream({"content": "Hello"}, finish=None), "no", "without a finish_reason"),
    ("stream", stream({"content": "Hello"}, finish="error"), "no", "finish_reason error"),
    ("stream", stream({"content": "He"}, end=b'data: {"error": {"message": "dead"}}\n\n'), "no", "an error event"),
    ("stream", stream({"content": "Hello"}, end=b"data: oops\n\n"), "no", "not JSON: 'oops'"),
    ("stream", stream({"role": "assistant", "content": ""}), "no", "an empty answer"),
    ("tool_stream", stream({"content": LEAKED[:20]}, {"content": LEAKED[20:]}), "mended", "no call, but text"),
)  # fmt: skip


@pytest.mark.parametrize(("check", "reply", "result", "seen"), MADE, ids=[f"{c}-{s}"[:60] for c, _, _, s in MADE])
def test_good_and_bad_answers_are_told_apart(check: str, reply: CheckReply, result: str, seen: str) -> None:
    observation = look(check, reply)
    assert (observation.result, seen in observation.seen) == (result, True), observation
