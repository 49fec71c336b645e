"""What goes up: the body with what the alias adds and what the window allows, and no header that tells who asks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.snapshot import Alias, Backend
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, Endpoint
from gateway.domain.health_machine import Health
from gateway.domain.request import parse
from gateway.engines.outgoing import merged, outgoing_fields, outgoing_headers
from gateway.routing.needs import Adaptation

ASK = {"model": "alias", "messages": [{"role": "user", "content": "hi"}]}


def backend_state(
    *, context: int | None = None, version: str | None = None, engine: Any = "vllm", model: str | None = "served/model"
) -> BackendState:
    backend = Backend("b", engine=engine, url="http://127.0.0.1:1", model=model, context=context)
    state = BackendState(backend, None, Health("b", backend.health))
    state.saw_version(version)
    return state


def sent(
    body: dict[str, Any] | bytes,
    *,
    state: BackendState | None = None,
    endpoint: Endpoint = CHAT,
    **alias: Any,
) -> tuple[dict[str, Any], list[str]]:
    """(the body as a backend gets it, what was adapted)."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields, adapted = outgoing_fields(
        parse(endpoint, raw), Alias("alias", (("b",),), **alias), state or backend_state()
    )
    return {name: json.loads(bytes(value)) for name, value in fields.items()}, adapted


# -- the body ---------------------------------------------------------------------------------------------------------


def test_only_the_model_is_changed() -> None:
    body = {
        **ASK,
        "top_k": 20,
        "chat_template_kwargs": {"enable_thinking": False},
        "structured_outputs": {"choice": ["a", "b"]},
        "vllm_xargs": {"script": "x"},
        "return_token_ids": True,
        "seed": 12345678901234567890,
        "unheard_of": [{"deep": [1.0, 1e30, None]}],
    }
    up, adapted = sent(body)
    assert up == {**body, "model": "served/model"}
    assert list(up) == list(body)
    assert adapted == []


@pytest.mark.parametrize(("name", "said"), [("tool_choice", "none"), ("parallel_tool_calls", False)])
def test_null_about_tools_is_left_out(name: str, said: object) -> None:
    """It means what absence does; vLLM 0.33 drops the calls of a null choice, and without tools the text of one."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert name not in sent({**ASK, "tools": tools, name: None})[0]
    assert sent({**ASK, "tools": tools, name: said})[0][name] == said
    assert name not in sent({**ASK, "tools": None, name: None})[0]
    assert name not in sent({**ASK, name: None})[0]


def test_numbers_and_texts_keep_their_very_bytes() -> None:
    raw = (
        rb'{"model":"alias","messages":[{"role":"user","content":"\u00e9\/ \ud83d\ude00"}],"temperature":0.10,"x":1E5}'
    )
    fields, _ = outgoing_fields(parse(CHAT, raw), Alias("alias", (("b",),)), backend_state())
    assert bytes(fields["messages"]) == rb'[{"role":"user","content":"\u00e9\/ \ud83d\ude00"}]'
    assert (bytes(fields["temperature"]), bytes(fields["x"])) == (b"0.10", b"1E5")


def test_marks_that_the_backends_parser_drops_are_asked_for() -> None:
    state = backend_state(model="google/gemma-4-26B-A4B-it")
    state.define(replace(state.backend, tool_parser="pythonic"))
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert sent({"model": "alias", "tools": tools}, state=state)[0]["skip_special_tokens"] is False
    for body in ({}, {"tools": tools, "tool_choice": "none"}, {"tools": tools, "skip_special_tokens": True}):
        assert sent({"model": "alias", **body}, state=state)[0].get("skip_special_tokens") is not False


def test_an_unknown_model_name_is_left_out_for_vllm() -> None:
    """It then takes its first; other servers have to be asked by some name."""
    assert "model" not in sent(ASK, state=backend_state(model=None))[0]
    assert sent(ASK, state=backend_state(model=None, engine="openai"))[0]["model"] == "alias"


def test_of_a_repeated_key_one_goes_up() -> None:
    raw = b'{"model": "forbidden", "messages": [], "model": "alias"}'
    assert parse(CHAT, raw).model == "alias"
    assert sent(raw)[0] == {"model": "served/model", "messages": []}


# -- the alias' params ------------------------------------------------------------------------------------------------


def test_params_fill_in_what_the_client_left_out() -> None:
    up, _ = sent({**ASK, "temperature": 0.9}, params={"temperature": 0.2, "top_p": 0.5})
    assert (up["temperature"], up["top_p"]) == (0.9, 0.5)


def test_nested_params_merge_and_the_client_wins() -> None:
    params = {"chat_template_kwargs": {"enable_thinking": False, "deep": {"a": 1, "b": 2}}}
    body = {**ASK, "chat_template_kwargs": {"enable_thinking": True, "deep": {"b": 3}, "own": 1}}
    up, _ = sent(body, params=params)
    assert up["chat_template_kwargs"] == {"enable_thinking": True, "deep": {"a": 1, "b": 3}, "own": 1}


@pytest.mark.parametrize("said", [None, 7, "text", [1]])
def test_what_the_client_said_in_place_of_a_map_stays(said: object) -> None:
    up, _ = sent({**ASK, "chat_template_kwargs": said}, params={"chat_template_kwargs": {"a": 1}})
    assert up["chat_template_kwargs"] == said


def test_either_name_of_the_limit_counts_as_said() -> None:
    params = {"max_tokens": 500}
    assert "max_tokens" not in sent({**ASK, "max_completion_tokens": 50}, params=params)[0]
    assert sent(ASK, params=params)[0]["max_tokens"] == 500


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_null_is_none(name: str) -> None:
    assert sent({**ASK, name: None}, params={"max_tokens": 500})[0]["max_tokens"] == 500
    assert sent({**ASK, "max_tokens": None, "max_completion_tokens": 7}, params={"max_tokens": 500})[0] == {
        **ASK, "model": "served/model", "max_tokens": None, "max_completion_tokens": 7
    }  # fmt: skip


@pytest.mark.parametrize("limit", [{}, {"max_tokens": -1}, {"max_tokens": None}, {"n_predict": -1}, {"n_predict": 9}])
def test_in_a_common_memory_what_is_no_limit_is_replaced_by_one(limit: dict[str, Any]) -> None:
    state = backend_state(engine="openai")
    state.define(replace(state.backend, kv_pool=4096, slots=4))
    up, adapted = sent({**ASK, **limit}, state=state)
    assert {name: value for name, value in up.items() if name not in ASK} == {
        "max_completion_tokens": ANY,
        "max_tokens": ANY,
    }
    assert 0 < up["max_completion_tokens"] <= 1024
    assert adapted == ["max_tokens_clamped"]
    assert sent({**ASK, "n_predict": -1, "max_tokens": 7}, state=state)[0] == {**ASK, "model": ANY, "max_tokens": 7}


def test_params_do_not_change_the_request_for_the_next_attempt() -> None:
    request = parse(CHAT, json.dumps({**ASK, "max_tokens": 9000}).encode())
    before = {name: bytes(value) for name, value in request.fields.items()}
    alias = Alias("alias", (("b",),), params={"top_k": 1}, min_max_tokens=10)
    outgoing_fields(request, alias, backend_state(context=4096))
    assert {name: bytes(value) for name, value in request.fields.items()} == before
    again, _ = outgoing_fields(request, alias, backend_state(context=131072))
    assert bytes(again["max_tokens"]) == b"9000"


keys = st.sampled_from(["a", "b", "c"])
maps = st.recursive(st.integers(), lambda inner: st.dictionaries(keys, inner, min_size=1, max_size=3), max_leaves=12)


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {k: v for name, inner in value.items() for k, v in leaves(inner, (*path, name)).items()}


@settings(deadline=None)
@given(st.dictionaries(keys, maps, max_size=3), st.dictionaries(keys, maps, max_size=3))
def test_merging_loses_nothing_that_the_client_said(said: dict[str, Any], defaults: dict[str, Any]) -> None:
    result = leaves(merged(said, defaults))
    assert leaves(said).items() <= result.items()
    for path, value in leaves(defaults).items():
        if not any(path[: len(p)] == p or p[: len(path)] == path for p in leaves(said)):
            assert result[path] == value


# -- the limit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_new_vllm_is_asked_for_its_whole_window_at_most(name: str) -> None:
    up, adapted = sent({**ASK, name: 65536}, state=backend_state(context=32768, version="0.32.0"))
    assert up[name] == 32768
    assert adapted == ["max_tokens_clamped"]


@pytest.mark.parametrize(
    ("engine", "version"), [("vllm", "0.31.9"), ("vllm", "0.11.0"), ("vllm", None), ("vllm", "dev"), ("openai", "1.0")]
)
def test_others_are_asked_for_what_the_prompt_leaves(engine: str, version: str | None) -> None:
    up, adapted = sent({**ASK, "max_tokens": 65536}, state=backend_state(context=32768, version=version, engine=engine))
    assert 30000 < up["max_tokens"] < 32768 * 0.98
    assert adapted == ["max_tokens_clamped"]


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1.dev3+gabc", "0.40.0rc1", "1.0"])
def test_versions_are_compared_as_numbers(version: str) -> None:
    assert (
        sent({**ASK, "max_tokens": 9999}, state=backend_state(context=2048, version=version))[0]["max_tokens"] == 2048
    )


def test_both_names_are_clamped_each() -> None:
    body = {**ASK, "max_tokens": 9000, "max_completion_tokens": 100}
    up, adapted = sent(body, state=backend_state(context=4096, version="0.32.0"))
    assert (up["max_tokens"], up["max_completion_tokens"]) == (4096, 100)
    assert adapted == ["max_tokens_clamped"]


def test_a_limit_that_fits_is_not_touched() -> None:
    raw = b'{"model": "alias", "messages": [], "max_tokens": 1e3, "max_completion_tokens":  64 }'
    fields, adapted = outgoing_fields(parse(CHAT, raw), Alias("alias", (("b",),)), backend_state(context=4096))
    assert (bytes(fields["max_tokens"]), bytes(fields["max_completion_tokens"]).strip()) == (b"1e3", b"64")
    assert adapted == []


def test_an_absent_limit_is_not_added() -> None:
    state = backend_state(context=4096)
    assert not {"max_tokens", "max_completion_tokens"} & set(sent(ASK, state=state, min_max_tokens=2000)[0])


def test_null_is_absent() -> None:
    up, adapted = sent({**ASK, "max_tokens": None}, state=backend_state(context=64), min_max_tokens=100)
    assert up["max_tokens"] is None
    assert adapted == []


@pytest.mark.parametrize("value", [0, -1, "65536", 1.5, True, False, [1], {}, 1e300])
def test_an_invalid_limit_goes_through_to_the_backends_own_error(value: object) -> None:
    state = backend_state(context=4096, version="0.32.0")
    up, adapted = sent({**ASK, "max_tokens": value}, state=state, min_max_tokens=1000)
    assert up["max_tokens"] == value
    assert type(up["max_tokens"]) is type(value)
    assert adapted == []


def test_a_smaller_limit_is_raised_to_the_alias_least() -> None:
    assert sent({**ASK, "max_tokens": 100}, min_max_tokens=10_000)[0]["max_tokens"] == 10_000
    assert sent({**ASK, "max_tokens": 20_000}, min_max_tokens=10_000)[0]["max_tokens"] == 20_000


def test_a_raised_limit_still_fits_the_window() -> None:
    state = backend_state(context=4096, version="0.32.0")
    assert sent({**ASK, "max_tokens": 100}, state=state, min_max_tokens=10_000)[0]["max_tokens"] == 4096


def test_the_params_limit_is_clamped_too() -> None:
    state = backend_state(context=4096, version="0.32.0")
    assert sent(ASK, state=state, params={"max_tokens": 65536})[0]["max_tokens"] == 4096


def test_without_a_known_window_nothing_is_clamped() -> None:
    assert sent({**ASK, "max_tokens": 65536})[0]["max_tokens"] == 65536


def test_completions_have_one_name_and_embeddings_none() -> None:
    state = backend_state(context=4096, version="0.32.0")
    body = {"model": "alias", "prompt": "x", "max_tokens": 9000, "max_completion_tokens": 9000}
    up, _ = sent(body, state=state, endpoint=COMPLETIONS)
    assert (up["max_tokens"], up["max_completion_tokens"]) == (4096, 9000)
    up, _ = sent({"model": "alias", "input": "x", "max_tokens": 9000}, state=state, endpoint=EMBEDDINGS)
    assert up["max_tokens"] == 9000


@settings(deadline=None)  # the machine may be busy
@given(st.integers(1, 10**7), st.integers(1, 300_000), st.sampled_from([None, "0.11.0", "0.32.0"]), st.integers(0, 50))
def test_what_is_sent_is_always_valid_and_never_more_than_asked(
    asked: int, window: int, version: str | None, words: int
) -> None:
    body = {"model": "alias", "messages": [{"role": "user", "content": "word " * words}], "max_tokens": asked}
    limit = sent(body, state=backend_state(context=window, version=version))[0]["max_tokens"]
    assert 1 <= limit <= min(asked, window)


def test_a_counted_prompt_leaves_exactly_the_rest() -> None:
    state = backend_state(context=10_000, version="0.11.0")
    request = parse(CHAT, json.dumps({**ASK, "max_tokens": 9_999}).encode())
    request.exact["b"] = 4_000
    fields, adapted = outgoing_fields(request, Alias("alias", (("b",),)), state)
    assert json.loads(bytes(fields["max_tokens"])) == int(6_000 * 0.98)
    assert adapted == ["max_tokens_clamped"]


# -- tools ------------------------------------------------------------------------------------------------------------

CALLS: dict[str, Any] = {"tools": [{"type": "function"}], "tool_choice": "auto", "parallel_tool_calls": True}


def adapted_body(adapt: Adaptation, **body: Any) -> tuple[dict[str, Any], list[str]]:
    request = parse(CHAT, json.dumps({**ASK, **body}).encode())
    fields, adapted = outgoing_fields(
        request, Alias("alias", (("b",),)), backend_state(context=4096, version="0.32.0"), adapt
    )
    return {name: json.loads(bytes(value)) for name, value in fields.items() if name not in ASK}, adapted


def test_to_mend_the_tools_stay_and_no_call_is_parsed_there() -> None:
    adapt = Adaptation("mend", kinds=("tools_as_text",))
    mend = {"tool_choice": "none", "skip_special_tokens": False}
    assert adapted_body(adapt, **CALLS) == ({**CALLS, **mend}, ["tools_as_text"])
    assert adapted_body(adapt, **CALLS, skip_special_tokens=True)[0]["skip_special_tokens"] is True
    assert adapted_body(adapt, tools=CALLS["tools"])[0] == {"tools": CALLS["tools"], **mend}


def test_stripped_it_is_a_plain_chat() -> None:
    adapt = Adaptation("strip", kinds=("tools_stripped",))
    assert adapted_body(adapt, **CALLS, temperature=0.5) == ({"temperature": 0.5}, ["tools_stripped"])


def test_forced_it_has_to_call() -> None:
    adapt = Adaptation(force=True, kinds=("tool_call_forced",))
    assert adapted_body(adapt, **CALLS) == ({**CALLS, "tool_choice": "required"}, ["tool_call_forced"])


def test_all_that_was_adapted_is_told_together() -> None:
    adapt = Adaptation("strip", kinds=("tools_stripped", "thinking_unavailable"))
    assert adapted_body(adapt, **CALLS, max_tokens=99999)[1] == [
        *("tools_stripped", "thinking_unavailable", "max_tokens_clamped")
    ]


# -- usage ------------------------------------------------------------------------------------------------------------


def test_a_stream_is_asked_to_report_its_usage() -> None:
    assert sent({**ASK, "stream": True})[0]["stream_options"] == {"include_usage": True}
    up, _ = sent({**ASK, "stream": True, "stream_options": {"include_usage": False, "other": 1}})
    assert up["stream_options"] == {"include_usage": True, "other": 1}
    assert sent({**ASK, "stream": True, "stream_options": None})[0]["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("stream", [False, None, "false", 0])
def test_without_a_stream_nothing_is_asked_about_usage(stream: object) -> None:
    assert "stream_options" not in sent({**ASK, "stream": stream})[0]
    assert "stream_options" not in sent(ASK)[0]


def test_continuous_usage_is_the_clients_own_affair() -> None:
    for options in ({"continuous_usage_stats": True}, {"continuous_usage_stats": True, "include_usage": True}):
        assert sent({**ASK, "stream": True, "stream_options": options})[0]["stream_options"] == options


# -- headers ----------------------------------------------------------------------------------------------------------

SECRET = [b"authorization", b"x-api-key", b"cookie", b"proxy-authorization", b"api-key", b"x-forwarded-for"]
SECRET += [b"anthropic-api-key", b"anthropic-auth-token", b"anthropic-organization-id", b"anthropic-workspace-id"]
SECRET += [b"openai-api-key", b"openai-organization", b"openai-project", b"x-goog-api-key", b"fireworks-api-key"]


def test_credentials_and_cookies_never_leave() -> None:
    given_headers = dict.fromkeys(SECRET, b"s3cret") | {
        b"x-claude-code-session-id": b"s3cret",
        b"user-agent": b"s3cret",
    }
    up = outgoing_headers(given_headers, "id")
    assert up == [("content-type", "application/json"), ("x-request-id", "id")]


def test_the_allowed_headers_go_up_as_they_are() -> None:
    allowed = {
        b"accept": b"text/event-stream",
        b"traceparent": b"00-1-2-01",
        b"tracestate": b"a=b",
        b"anthropic-version": b"2023-06-01",
        b"anthropic-beta": b"x",
        b"openai-beta": b"o",
    }
    assert dict(outgoing_headers(allowed, "id"))["anthropic-version"] == "2023-06-01"
    assert len(outgoing_headers(allowed, "id")) == 2 + len(allowed)


def test_what_describes_the_clients_own_body_stays_behind() -> None:
    mine = {
        b"content-type": b"text/plain",
        b"content-encoding": b"gzip",
        b"content-length": b"5",
        b"x-request-id": b"z",
    }
    mine |= {b"host": b"h", b"connection": b"close", b"accept-encoding": b"br", b"expect": b"100-continue"}
    assert dict(outgoing_headers(mine, "id")) == {"content-type": "application/json", "x-request-id": "id"}


def test_a_name_that_only_begins_like_an_allowed_one_stays_behind() -> None:
    mine = {b"accept-language": b"de", b"traceparent2": b"x", b"xanthropic-a": b"x", b"openai-": b"x"}
    assert len(outgoing_headers(mine, "id")) == 2


@pytest.mark.parametrize("cloud", [False, True])
def test_vllms_name_for_cut_texts_reaches_no_cloud(cloud: bool) -> None:
    state = backend_state()
    state.define(replace(state.backend, cloud=cloud))
    body = {"model": "alias", "input": "a", "truncate_prompt_tokens": -1}
    assert ("truncate_prompt_tokens" in sent(body, state=state, endpoint=EMBEDDINGS)[0]) is not cloud
