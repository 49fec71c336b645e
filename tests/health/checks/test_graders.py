"""What the answers to the checks mean: real bytes of a real vLLM, and answers as bad as they come."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.snapshot import Backend
from gateway.domain.facts import Observation
from gateway.health.checks import ALL, CHECKS, NO_ANSWER, Profile, Reply, judge, profile_of, skipped
from gateway.health.checks.requests import SCHEMA, TOOLS
from gateway.inspection.notation import formats_for, thoughts_for
from tests.simulator.wire import load

VLLM = Backend("a", url="http://a:1", tool_parser="hermes", reasoning_parser="qwen3")
QWEN36 = profile_of(VLLM, "RedHatAI/Qwen3.6-35B-A3B-NVFP4", 131072)
STREAMED = ("stream", "tool_stream")


def captured(name: str) -> Reply:
    reply = load(name).reply
    return Reply(reply.status, dict(reply.headers), reply.body)


def look(check: str, reply: Reply, profile: Profile = QWEN36, *, streamed: bool | None = None) -> Observation:
    return judge(
        check, profile, reply, {"stream": check in STREAMED if streamed is None else streamed, "max_tokens": 256}
    )


def said(content: str | None = None, finish: str = "stop", tokens: int = 9, **message: Any) -> Reply:
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": content, **message}}
    return whole(
        {"choices": [{**choice, "finish_reason": finish}], "usage": {"prompt_tokens": 12, "completion_tokens": tokens}}
    )


def whole(body: object, status: int = 200) -> Reply:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply(status, {"content-type": "application/json"}, raw)


def called(*calls: tuple[str, object], **more: Any) -> Reply:
    made = [
        {
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for name, given in calls
    ]
    return said(tool_calls=made, finish="tool_calls", **more)


def stream(*deltas: dict[str, Any], finish: str | None = "stop", end: bytes = b"data: [DONE]\n\n") -> Reply:
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}] if finish else []
    events = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    return Reply(200, {"content-type": "text/event-stream; charset=utf-8"}, events + end)


# -- a real vLLM's answers --------------------------------------------------------------------------------------------

REAL = (
    ("plain", "chat_nonstream_script", "yes", "said "),
    ("plain", "reason_thinking_off_nonstream", "yes", "said 'Hello.'"),
    ("plain", "ds4_no_think_tags", "no", "stands in the reasoning field: 'Answer without tags.'"),
    ("plain", "auth_inference", "no", "refuses our credential (401)"),
    ("plain", "err_unknown_model", "no", "does not serve this model"),
    ("plain", "queue_overflow_503", "untested", "busy"),
    ("plain", "root", "untested", "serves no chat"),
    ("stream", "chat_stream", "yes", "said 'Hello, world!', finish_reason stop and [DONE]"),
    ("stream", "chat_stream_usage_cont", "yes", "[DONE]"),
    ("stream", "reason_stream", "yes", "[DONE]"),
    ("stream", "chat_nonstream_script", "no", "answered a stream with application/json"),
    ("arithmetic", "reason_nonstream", "no", "12*17 is 204, it said 'Hello.'"),
    ("reasoning", "reason_nonstream", "yes", "then 'Hello.'"),
    ("reasoning", "reason_no_open_tag", "yes", "then 'Hello.'"),
    ("reasoning", "reason_unterminated", "no", "stands in the reasoning field"),
    ("reasoning", "reason_thinking_off_nonstream", "untested", "it did not think"),
    ("thinking_on", "reason_nonstream", "yes", "asked to think, it did: 'A b.'"),
    ("thinking_on", "reason_thinking_off_nonstream", "no", "asked to think, it did not"),
    ("thinking_off", "reason_thinking_off_nonstream", "yes", "it said 'Hello.'"),
    ("thinking_off", "reason_nonstream", "no", "asked not to think"),
    ("tool_auto", "tool_auto_scripted", "yes", 'called get_weather({"city": "Oslo", "days": 3})'),
    ("tool_auto", "tool_auto_call_inside_think", "yes", "called get_weather"),
    ("tool_auto", "tool_auto_plain_text", "no", "no call, but text: 'No tools needed.'"),
    ("tool_auto", "tool_auto_badjson", "no", "no call, but text"),
    ("tool_auto", "h_xml_output", "mended", "<function=get_weather>"),
    ("tool_auto", "h_second_call_bad", "mended", "no call, but text"),
    ("tool_auto", "notool_auto", "no", "start vLLM with --enable-auto-tool-choice --tool-call-parser qwen3_xml"),
    ("tool_auto", "notool_empty_tools", "no", "answered 400"),
    ("tool_stream", "tool_auto_scripted_stream", "yes", 'called get_weather({"city": "Oslo", "days": 3})'),
    ("tool_stream", "h_xml_output_stream", "no", "an empty answer"),  # its usage was not asked for
    ("tool_required", "g4_required_text", "no", "required was not obeyed: no call, but text: 'I refuse"),
    ("tool_required", "notool_required", "no", "--tool-call-parser qwen3_xml"),
    ("tool_named", "g4_named_text", "no", "get_time was named: no call, but text: 'I refuse"),
    ("tool_named", "g4_named_other_tool", "no", "instead of get_time"),
    ("tool_named", "tool_auto_scripted", "no", "called 'get_weather' instead of get_time"),
    ("tool_named", "notool_named", "no", "--tool-call-parser qwen3_xml"),
    ("tool_parallel", "tool_auto_parallel_scripted", "yes", '"Rome"'),
    ("tool_parallel", "tool_auto_scripted", "no", "1 call for two cities"),
    ("json_schema", "chat_nonstream_script", "no", "the schema is not enforced"),
    ("window", "err_prompt_too_long", "yes", "refused: "),
    ("window", "chat_nonstream_script", "no", "was cut to"),
    ("window", "err_bad_type_temp", "no", "answered 400"),
)


@pytest.mark.parametrize(("check", "capture", "result", "seen"), REAL, ids=[f"{c}-{n}" for c, n, _, _ in REAL])
def test_what_a_real_vllm_said_is_judged(check: str, capture: str, result: str, seen: str) -> None:
    observation = look(check, captured(capture))
    assert (observation.result, seen in observation.seen) == (result, True), observation


# -- good and bad answers to each check -------------------------------------------------------------------------------

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
def test_good_and_bad_answers_are_told_apart(check: str, reply: Reply, result: str, seen: str) -> None:
    observation = look(check, reply)
    assert (observation.result, seen in observation.seen) == (result, True), observation


def test_a_call_in_fragments_is_put_together() -> None:
    def part(**function: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": 0, "function": function}]}

    good = stream(part(name="get_weather"), part(arguments='{"ci'), part(arguments='ty": "Oslo"}'))
    assert look("tool_stream", good).seen == 'called get_weather({"city": "Oslo"})'
    cut = stream(part(name="get_weather"), part(arguments='{"ci'))
    assert look("tool_stream", cut).result == "no"


@pytest.mark.parametrize("check", ALL)
def test_no_answer_is_no_proof_of_what_it_can_do(check: str) -> None:
    silent, gone = Reply(failure="none within 66 s"), Reply(failure="no connection", gone=True)
    assert look(check, gone) == Observation("untested", NO_ANSWER + "no connection")
    quiet = look(check, silent)
    assert quiet.result == ("no" if check in ("plain", "stream", "arithmetic") else "untested")
    assert quiet.seen == NO_ANSWER + "none within 66 s"


def test_a_refusal_to_think_says_nothing_where_nobody_said_that_it_can() -> None:
    refusal = whole({"error": '"llama3.1" does not support thinking'}, 400)
    assert look("reasoning", refusal, replace(QWEN36, thinking=None)).result == "untested"
    assert look("reasoning", refusal).result == "no"


@given(body=st.one_of(st.binary(max_size=300), st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["choices", "message", "delta", "content", "tool_calls", "function", "name", "arguments",
                             "index", "finish_reason", "usage", "completion_tokens", "error", "reasoning"]),
            inner, max_size=5),
    ), max_leaves=20)), status=st.sampled_from([200, 200, 200, 400, 404, 500]), check=st.sampled_from(ALL))  # fmt: skip
def test_junk_of_any_shape_is_judged_and_never_taken_for_right(body: Any, status: int, check: str) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    for streamed, content in ((False, raw), (True, b"data: " + raw + b"\n\ndata: [DONE]\n\n")):
        kind = "text/event-stream" if streamed else "application/json"
        observation = look(check, Reply(status, {"content-type": kind}, content), streamed=streamed)
        assert observation.seen
        if status != 200 and check != "window":
            assert observation.result in ("no", "untested")


# -- what is asked ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", ALL)
def test_every_check_asks_with_a_limit_and_without_chance(check: str) -> None:
    body = json.loads(json.dumps(CHECKS[check].ask(QWEN36)))
    assert 1 <= body["max_tokens"] <= 2048
    assert body["temperature"] == 0
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert body.get("stream", False) is (check in STREAMED)


def switches(check: str, profile: Profile) -> dict[str, Any]:
    body = CHECKS[check].ask(profile)
    return {key: body[key] for key in ("chat_template_kwargs", "think", "reasoning_effort") if key in body}


def kwargs(**switch: object) -> dict[str, Any]:
    return {"chat_template_kwargs": switch}


OWN = replace(VLLM, thinking="optional", thinking_switch="deep")
CLOUD = replace(VLLM, engine="litellm", thinking="optional")
WORDS = (
    (VLLM, "Qwen3.6-27B", kwargs(enable_thinking=True), kwargs(enable_thinking=False)),
    (VLLM, "deepseek-ai/DeepSeek-V4-Flash", kwargs(thinking=True), kwargs(thinking=False)),
    (VLLM, "Seed-OSS-36B", kwargs(thinking_budget=-1), kwargs(thinking_budget=0)),
    (OWN, "own/model", kwargs(deep=True), kwargs(deep=False)),
    (replace(VLLM, engine="ollama"), "qwen3:8b", {"think": True}, {"think": False}),
    (CLOUD, "anthropic/x", {"reasoning_effort": "medium"}, {"reasoning_effort": "none"}),
)


@pytest.mark.parametrize(("backend", "model", "on", "off"), WORDS, ids=[model for _, model, _, _ in WORDS])
def test_thinking_is_switched_in_the_backends_own_words(
    backend: Backend, model: str, on: dict[str, Any], off: dict[str, Any]
) -> None:
    profile = profile_of(backend, model, None)
    assert switches("reasoning", profile) == switches("thinking_on", profile) == on
    for check in ("plain", "arithmetic", "thinking_off", "tool_required", "json_schema"):
        assert switches(check, profile) == off, check
    assert switches("tool_auto", profile) == {}


def test_where_thinking_is_optional_its_checks_cost_no_request_of_their_own() -> None:
    asked = {name: json.dumps(CHECKS[name].ask(QWEN36)) for name in ALL}
    assert asked["thinking_on"] == asked["reasoning"]
    assert asked["thinking_off"] == asked["arithmetic"]
    assert len(set(asked.values())) == 11


def test_nothing_is_switched_on_what_never_thinks_or_has_no_switch() -> None:
    instruct = profile_of(VLLM, "Qwen3-Next-80B-A3B-Instruct", None)
    server = profile_of(replace(VLLM, engine="openai"), "qwen3.6", None)
    for check in set(ALL) - {"window", "thinking_off"}:  # that one is not asked of either
        assert switches(check, instruct) == {}, check
        assert switches(check, server) == {}, check


def test_what_always_thinks_gets_room_for_it() -> None:
    always = profile_of(VLLM, "Qwen3-Next-80B-A3B-Thinking", 1000)
    assert {CHECKS[check].ask(always)["max_tokens"] for check in set(ALL) - {"window"}} == {2048}


def test_the_prompt_of_the_window_check_is_over_it_in_any_tokenizer() -> None:
    body = CHECKS["window"].ask(replace(QWEN36, window=1000))
    assert len(body["messages"][0]["content"].split()) == 1001
    assert body["max_tokens"] == 1


def test_clouds_keep_their_own_temperature() -> None:
    assert "temperature" not in CHECKS["plain"].ask(replace(QWEN36, cloud=True))


def test_the_small_schema_and_the_tools_are_valid_schemas() -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(PRODUCT), SCHEMA)
    for tool in TOOLS:
        jsonschema.Draft202012Validator.check_schema(tool["function"]["parameters"])


def test_what_is_known_of_the_model_is_known_to_its_checks() -> None:
    assert QWEN36.tool_flags == "--enable-auto-tool-choice --tool-call-parser qwen3_xml"
    assert QWEN36.formats == formats_for("Qwen3.6-35B-A3B", "hermes")
    assert QWEN36.thoughts == thoughts_for("Qwen3.6-35B-A3B", "qwen3")
    assert profile_of(replace(VLLM, engine="openai"), "qwen3.6", None).tool_flags == ""
    assert profile_of(replace(VLLM, thinking="never"), "qwen3.6", None).thinking == "never"


# -- what is not asked ------------------------------------------------------------------------------------------------

YES, NO, UNTESTED = Observation("yes", ""), Observation("no", "bad"), Observation("untested", "")
SKIPPED: tuple[tuple[str, Profile, dict[str, Observation], str | None], ...] = (
    ("stream", QWEN36, {"plain": YES}, None),
    ("stream", QWEN36, {"plain": NO}, "plain did not work"),
    ("window", QWEN36, {"plain": UNTESTED}, "plain did not work"),
    ("tool_auto", QWEN36, {"plain": YES, "stream": Observation("no", NO_ANSWER + "reset")}, NO_ANSWER + "reset"),
    ("tool_stream", QWEN36, {"plain": YES, "tool_auto": NO}, "tool_auto did not work"),
    ("tool_stream", QWEN36, {"plain": YES, "tool_auto": Observation("mended", "")}, None),
    ("tool_required", QWEN36, {"plain": YES, "tool_auto": NO}, None),
    ("thinking_on", QWEN36, {}, None),
    ("thinking_on", replace(QWEN36, thinking="never"), {}, "it never thinks"),
    ("thinking_off", replace(QWEN36, thinking="always"), {}, "its thinking cannot be switched"),
    ("thinking_off", replace(QWEN36, switch=None), {}, "not known how its thinking is switched"),
    ("thinking_on", replace(QWEN36, thinking=None), {"reasoning": UNTESTED}, "not known to think"),
    ("thinking_on", replace(QWEN36, thinking=None), {"reasoning": YES}, None),
    ("window", QWEN36, {}, None),
    ("window", replace(QWEN36, window=None), {}, "does not report its window"),
    ("window", replace(QWEN36, refuses_unread=False), {}, "not known to refuse"),
    ("reasoning", replace(QWEN36, thinking="never"), {}, None),
)


@pytest.mark.parametrize(("check", "profile", "seen", "reason"), SKIPPED)
def test_a_check_without_a_point_is_skipped_with_its_reason(
    check: str, profile: Profile, seen: dict[str, Observation], reason: str | None
) -> None:
    found = skipped(check, profile, seen)
    assert found is None if reason is None else found is not None and reason in found
