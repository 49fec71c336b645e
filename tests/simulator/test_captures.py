"""The simulated vLLM answers as a real vLLM 0.32 did: status, head, key order, order of chunks, texts."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from simulator import SimVllm
from tests.simulator.wire import ask, chat, load, masked, order, said

PLAIN = (
    "models",
    "models_one",
    "health",
    "ping",
    "ping_post",
    "load",
    "version",
    "head_health",
    "root",
    "embeddings",
    "chat_get",
    "err_wrong_method",
    "chat_stream",
    "chat_stream_length",
    "chat_stream_usage",
    "chat_stream_usage_cont",
    "chat_nonstream_script",
    "chat_n2",
    "chat_n2_stream",
    "chat_xrequestid",
    "chat_alias",
    "chat_nomodel",
    "chat_stop",
    "completions",
    "completions_list",
    "completions_stream",
    "tokenize",
    "tokenize_chat",
    "detokenize",
    "err_bad_type_messages",
    "err_bad_type_temp",
    "err_content_type",
    "err_empty_body",
    "err_empty_messages",
    "err_logprobs",
    "err_malformed_json",
    "err_max_completion_tokens_too_large",
    "err_max_tokens_too_large",
    "err_max_tokens_zero",
    "err_missing_messages",
    "err_n0",
    "err_stream_options_nostream",
    "err_temp_negative",
    "err_top_logprobs_without",
    "err_top_p",
    "err_unknown_model",
    "notool_auto",
    "notool_any",
    "notool_default",
    "notool_named",
    "notool_named_unknown",
    "notool_required",
    "notool_empty_tools",
    "notool_choice_without_tools",
)
GUARDED = (
    "auth_none",
    "auth_basic",
    "auth_wrong",
    "auth_health",
    "auth_models",
    "auth_inference",
    "reason_nonstream",
    "reason_stream",
    "reason_thinking_off_nonstream",
    "reason_thinking_off_stream",
    "reason_no_open_tag",
    "reason_unterminated",
    "reason_include_false",
    "reason_effort_bad",
    "reason_effort_none",
    "tool_auto_scripted",
    "tool_auto_scripted_stream",
    "tool_auto_parallel_scripted",
    "tool_auto_parallel_scripted_stream",
    "tool_auto_badjson",
    "tool_auto_badjson_stream",
    "tool_auto_truncated",
    "tool_auto_truncated_stream",
    "tool_none_scripted_call",
    "tool_auto_call_inside_think",
    "tool_auto_plain_text",
    "tool_choice_dict_any",
    "tool_missing_name",
    "h_xml_output",
    "h_xml_output_stream",
    "h_second_call_bad",
    "h_second_call_bad_stream",
    "h_prose_marker",
    "h_prose_marker_stream",
    "h_image_to_text_model",
    "h_chat_template_req",
    "schema_no_schema",
)
GEMMA = (
    "g4_auto_call",
    "g4_auto_call_stream",
    "g4_none_call",
    "g4_none_call_stream",
    "g4_required_text",
    "g4_required_text_stream",
    "g4_named_text",
)
DEEPSEEK = ["ds4_auto_call_nothink_stream", "ds4_no_think_tags"]
POOLING = [
    *("embed", "embed_b64", "embed_dims", "embed_unknown", "embed_models", "embed_chat_on_pooling", "embed_none"),
    *("embed_too_long", "rerank", "rerank_top", "rerank_none", "rerank_no_documents", "rerank_unknown"),
    *("score", "score_queries", "score_lengths"),
]

tiny = partial(SimVllm, served=["tiny", "tiny-alias"], context=2048)


def server(group: str) -> SimVllm:
    """The server that the captures of a group were taken from."""
    if group == "plain":
        return tiny("plain", tool_parser=None)
    if group == "guarded":
        return tiny("guarded", tool_parser="hermes", reasoning_parser="qwen3", api_key="sk-lab")
    if group == "gemma":
        return tiny("gemma", tool_parser="gemma4", reasoning_parser="gemma4")
    if group == "deepseek":
        return tiny("deepseek", tool_parser="deepseek_v4", reasoning_parser="deepseek_v4")
    return SimVllm("pooling", served=["tiny-embed"], context=512, pooling=True)


CASES = [
    *(("plain", name) for name in PLAIN),
    *(("guarded", name) for name in GUARDED),
    *(("gemma", name) for name in GEMMA),
    *(("deepseek", name) for name in DEEPSEEK),
    *(("pooling", name) for name in POOLING),
]


@pytest.mark.parametrize(("group", "name"), CASES)
async def test_the_answer_is_that_of_a_real_vllm(group: str, name: str) -> None:
    real = load(name)
    body = real.body
    if name in ("completions", "completions_stream"):  # fewer tokens than the script has, in our tokenizer too
        body = body and body.replace(b'"max_tokens":5', b'"max_tokens":3')
    async with server(group).serve() as url:
        ours = await ask(url, real.path, body, real.method, real.headers)

    assert (ours.status, ours.reason) == (real.reply.status, real.reply.reason)
    # content-length differs with the ids and texts in the body
    variable = {"date", "content-length"}
    assert [(k, v) for k, v in ours.headers if k not in variable] == [
        (k, v) for k, v in real.reply.headers if k not in variable
    ]
    assert [k for k, _ in ours.headers] == [k for k, _ in real.reply.headers]
    if real.reply.body.lstrip().startswith(b"data:"):
        assert order(ours) == order(real.reply)
        if real.scripted and "completions" not in name and "length" not in name:
            assert said(ours) == said(real.reply)
    elif real.reply.body:
        scripted = real.scripted and "completions" not in name
        assert masked(ours.json, not scripted) == masked(real.reply.json, not scripted)
    else:
        assert ours.body == b""


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat(n=2, max_tokens=3)),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 3}),
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3}),
    ],
)
async def test_the_fingerprint_is_on_the_end_of_every_choice_or_on_the_usage_chunk(
    path: str, body: dict[str, Any], usage: bool
) -> None:
    options = {"stream_options": {"include_usage": True}} if usage else {}
    async with server("plain").serve() as url:
        *events, done = (await ask(url, path, {**body, **options, "stream": True})).events
    assert done == "[DONE]"
    ends = [e for e in events if e["choices"] and e["choices"][0]["finish_reason"]]
    assert len(ends) == len(body["prompt"] if isinstance(body.get("prompt"), list) else range(body.get("n", 1)))
    assert [e for e in events if e.get("system_fingerprint")] == ([events[-1]] if usage else ends)
    assert bool(events[-1].get("usage")) == usage


async def test_a_prompt_over_the_window_is_refused_in_vllms_words() -> None:
    real = load("err_prompt_too_long")
    async with server("plain").serve() as url:
        ours = await ask(url, real.path, chat("hello world " * 900, model="tiny"))
    assert (ours.status, ours.json) == (real.reply.status, real.reply.json)


async def test_a_full_queue_is_a_503_in_vllms_words() -> None:
    real = load("queue_overflow_503")
    sim = tiny(tool_parser=None, slots=1, queue_limit=0)
    sim.fault("hang_before", count=1)
    async with sim.serve() as url:
        first = asyncio.create_task(ask(url, "/v1/chat/completions", real.body))
        await sim.wait_for(lambda: sim.engine.running)
        ours = await ask(url, real.path, real.body)
        sim.clear()
        assert (await first).status == 200
    assert (ours.status, ours.json) == (real.reply.status, real.reply.json)


@pytest.mark.parametrize(
    "field",
    [
        *({"n": "a"}, {"stop": 5}, {"stream_options": 3}, {"chat_template_kwargs": 3}, {"response_format": "x"}),
        *({"vllm_xargs": "x"}, {"tools": {"a": 1}}, {"tools": ["x"]}, {"tool_choice": [1]}, {"max_tokens": 1.5}),
        {"tools": [{"type": "function", "function": {"name": 5}}]},
    ],
)
async def test_a_field_of_a_wrong_type_is_the_clients_error(field: dict[str, Any]) -> None:
    async with server("plain").serve() as url:
        reply = await ask(url, "/v1/chat/completions", chat(**field))
    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("1 validation error:")
