"""What Ollama is asked: OpenAI's request in its words, and what is refused because it has none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gateway.engines.base import InexpressibleRequest
from gateway.engines.ollama.request import (
    OllamaCall,
    Thinking,
    chat_call,
    completion_call,
    embeddings_call,
    fit_to_window,
)

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def chat(window: int | None = 8192, *, thinking: Thinking | None = None, **fields: Any) -> OllamaCall:
    given = {"model": "qwen3:8b", "messages": HELLO, **fields}
    return fitted(chat_call(raw(given), stream=False, thinking=thinking), window)


def fitted(call: OllamaCall, window: int | None) -> OllamaCall:
    fit_to_window(call, window, None)
    return call


def raw(fields: dict[str, Any]) -> dict[str, Raw]:
    return {name: Raw(msgspec.json.encode(value)) for name, value in fields.items()}


def test_the_window_is_the_declared_one_whatever_the_client_says() -> None:
    body = chat(options={"num_ctx": 512, "mirostat": 2}).body
    assert body["options"] == {"mirostat": 2, "num_ctx": 8192}


@pytest.mark.parametrize("option", ["num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "draft_num_predict"])
def test_a_client_cannot_make_ollama_load_the_model_again(option: str) -> None:
    assert chat(options={option: 1, "top_k": 3}).body["options"] == {"top_k": 3, "num_ctx": 8192}


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"seed": True}, "seed"),
        ({"top_k": [1]}, "top_k"),
        ({"stop": 3}, "stop"),
        ({"stop": ["a", 3]}, "stop"),
        ({"options": {"repeat_last_n": "64"}}, "options"),
        ({"options": {"stop": {}}}, "options"),
    ],
)
def test_what_ollama_would_answer_with_500_is_refused(wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(InexpressibleRequest, match="must be") as refused:
        chat(**wrong)
    assert refused.value.param == param


def test_numbers_as_text_are_numbers() -> None:
    sent = chat(temperature="0.5", max_tokens="5", seed=7.0, top_k="20", n="1").body["options"]
    assert sent == {"temperature": 0.5, "num_predict": 5, "seed": 7, "top_k": 20, "num_ctx": 8192}


def test_an_unknown_window_is_left_to_ollama() -> None:
    assert "options" not in chat(window=None, options={"num_ctx": 512}).body


def test_a_prompt_over_the_window_is_to_be_refused_and_not_cut() -> None:
    body = chat().body
    assert body["truncate"] is False
    assert "shift" not in body, "each change of it loads the model again, under everybody"


def test_sampling_becomes_options() -> None:
    options = chat(
        temperature=0.1,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=7,
        stop="END",
        presence_penalty=0.5,
        frequency_penalty=0.4,
        repetition_penalty=1.1,
        max_tokens=100,
    ).body["options"]
    assert options == {
        "temperature": 0.1,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "seed": 7,
        "stop": ["END"],
        "presence_penalty": 0.5,
        "frequency_penalty": 0.4,
        "repeat_penalty": 1.1,
        "num_predict": 100,
        "num_ctx": 8192,
    }


def test_the_clients_limit_wins_over_an_option_and_the_newer_name_over_the_older() -> None:
    options = chat(options={"num_predict": 9}, max_tokens=10, max_completion_tokens=11).body["options"]
    assert options["num_predict"] == 11


@pytest.mark.parametrize("limit", [0, -1, "many", True, 1.5])
def test_a_limit_that_ollama_would_read_as_none_is_refused(limit: object) -> None:
    with pytest.raises(InexpressibleRequest):
        chat(max_tokens=limit)


def test_null_is_absent() -> None:
    body = chat(temperature=None, tools=None, stop=None, response_format=None, keep_alive=None, think=None, n=None).body
    assert body.keys() == {"model", "messages", "stream", "truncate", "options"}


def test_tools_go_along_but_not_with_tool_choice_none() -> None:
    assert msgspec.json.decode(chat(tools=[TOOL]).body["tools"]) == [TOOL]
    assert "tools" in chat(tools=[TOOL], tool_choice="auto").body
    assert "tools" not in chat(tools=[TOOL], tool_choice="none").body
    assert "tools" not in chat(tools=[]).body


@pytest.mark.parametrize(
    ("fields", "think"),
    [
        ({"think": True}, True),
        ({"think": "low"}, "low"),
        ({"think": False, "reasoning_effort": "high"}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"thinking": True}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "low"}, True),
        ({"reasoning": {"effort": "high"}}, True),
        ({"model": "gpt-oss:20b", "reasoning_effort": "high"}, "high"),
        ({"model": "gpt-oss:20b", "reasoning_effort": "minimal"}, "low"),
        ({}, None),
    ],
)
def test_thinking_is_said_in_ollamas_word(fields: dict[str, Any], think: object) -> None:
    assert chat(**fields).body.get("think") == think


def test_an_effort_is_not_asked_of_a_model_that_never_thinks_but_a_demand_is() -> None:
    assert "think" not in chat(thinking="never", reasoning_effort="high").body
    assert chat(thinking="never", reasoning_effort="none").body["think"] is False
    assert chat(thinking="never", think=True).body["think"] is True


def test_formats() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert chat(response_format={"type": "json_object"}).body["format"] == "json"
    described = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert chat(response_format=described).body["format"] == schema
    assert "format" not in chat(response_format={"type": "text"}).body
    with pytest.raises(InexpressibleRequest):
        chat(response_format={"type": "json_schema"})


def test_several_answers_are_refused_in_plain_words() -> None:
    with pytest.raises(InexpressibleRequest, match="`n` must be 1") as refused:
        chat(n=2)
    assert refused.value.param == "n"
    assert chat(n=1).body["messages"] == HELLO


def test_keep_alive_and_logprobs_pass() -> None:
    body = chat(keep_alive="1h", logprobs=True, top_logprobs=3).body
    assert (body["keep_alive"], body["logprobs"], body["top_logprobs"]) == ("1h", True, 3)


@pytest.mark.parametrize("messages", [None, [], "hello", ["hello"], [{"content": "hello"}]])
def test_messages_that_are_none_are_refused_since_ollama_would_only_load(messages: object) -> None:
    with pytest.raises(InexpressibleRequest):
        chat(messages=messages)


# -- completions and embeddings ---------------------------------------------------------------------------------------


def completion(**fields: Any) -> dict[str, Any]:
    return fitted(completion_call(raw({"model": "m", **fields}), stream=True), 4096).body


def test_a_completion_is_raw_text_in_and_raw_text_out() -> None:
    assert completion(prompt="Once", max_tokens=5) == {
        "model": "m",
        "stream": True,
        "truncate": False,
        "options": {"num_predict": 5, "num_ctx": 4096},
        "prompt": "Once",
        "raw": True,
        "think": False,
    }
    assert completion(prompt=["Once"])["prompt"] == "Once"


def test_a_suffix_needs_the_template_since_raw_mode_would_drop_it() -> None:
    body = completion(prompt="def f(", suffix="return x")
    assert (body["suffix"], body["raw"]) == ("return x", False)


@pytest.mark.parametrize("prompt", [["a", "b"], [1, 2], [[1, 2]], "", None, 5])
def test_a_prompt_that_is_not_one_text_is_refused(prompt: object) -> None:
    with pytest.raises(InexpressibleRequest) as refused:
        completion(prompt=prompt)
    assert refused.value.param == "prompt"


@pytest.mark.parametrize("fields", [{"echo": True}, {"logprobs": 1}, {"n": 2}, {"best_of": 3}])
def test_what_a_completion_cannot_give_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InexpressibleRequest):
        completion(prompt="x", **fields)


def test_embeddings_are_asked_whole() -> None:
    fields = raw({"model": "e", "input": "hello", "dimensions": 64, "encoding_format": "base64"})
    call = fitted(embeddings_call(fields), 2048)
    assert call.body == {
        "model": "e",
        "input": ["hello"],
        "truncate": False,
        "dimensions": 64,
        "options": {"num_ctx": 2048},
    }


@pytest.mark.parametrize("given", [[1, 2], [[1]], [], None, {"a": 1}])
def test_tokens_cannot_be_embedded(given: object) -> None:
    with pytest.raises(InexpressibleRequest, match="not tokens"):
        embeddings_call(raw({"model": "e", "input": given}))
