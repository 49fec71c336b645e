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
from gateway.health.checks import ALL, NO_ANSWER, CheckReply, Profile, judge, profile_of
from tests.simulator.wire import load

VLLM = Backend("a", url="http://a:1", tool_parser="hermes", reasoning_parser="qwen3")
QWEN36 = profile_of(VLLM, "RedHatAI/Qwen3.6-35B-A3B-NVFP4", 131072)
STREAMED = ("stream", "tool_stream")


def captured(name: str) -> CheckReply:
    reply = load(name).reply
    return CheckReply(reply.status, dict(reply.headers), reply.body)


def look(check: str, reply: CheckReply, profile: Profile = QWEN36, *, streamed: bool | None = None) -> Observation:
    return judge(
        check, profile, reply, {"stream": check in STREAMED if streamed is None else streamed, "max_tokens": 256}
    )


def whole(body: object, status: int = 200) -> CheckReply:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return CheckReply(status, {"content-type": "application/json"}, raw)


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


@pytest.mark.parametrize("check", ALL)
def test_no_answer_is_no_proof_of_what_it_can_do(check: str) -> None:
    silent, gone = CheckReply(failure="none within 66 s"), CheckReply(failure="no connection", gone=True)
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
        observation = look(check, CheckReply(status, {"content-type": kind}, content), streamed=streamed)
        assert observation.seen
        if status != 200 and check != "window":
            assert observation.result in ("no", "untested")
