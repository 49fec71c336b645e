"""How each server tells the tokens of a text, and the text of tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.apps.tokens.test_client import CHAT, PROMPT, Fields, asker, raw, replies

WAYS: dict[str, tuple[str, Fields, list[tuple[str, Fields]], list[Any], Fields]] = {
    "a text, by vLLM": (
        "vllm",
        {**PROMPT, "priority": 1, "request_id": "x", "own": 1},
        [("/tokenize", {"prompt": "Hi there", "return_token_strs": True, "own": 1, "add_special_tokens": True})],
        [{"count": 2, "max_model_len": 9, "tokens": [7, 8], "token_strs": ["Hi", " there"]}],
        {"count": 2, "max_model_len": 9, "tokens": [7, 8], "token_strs": ["Hi", " there"]},
    ),
    "a chat, by vLLM": (
        "vllm",
        CHAT,
        [("/tokenize", {name: value for name, value in CHAT.items() if name != "model"})],
        [{"count": 2, "max_model_len": 9, "tokens": [7, 8], "token_strs": None}],
        {"count": 2, "max_model_len": 9, "tokens": [7, 8], "token_strs": None},
    ),
    "a text, by llama-server": (
        "llamacpp",
        {**PROMPT, "add_special_tokens": False},
        [("/tokenize", {"content": "Hi there", "with_pieces": True, "add_special": False})],
        [{"tokens": [{"id": 7, "piece": "Hi"}, {"id": 8, "piece": [195]}]}],
        {"count": 2, "max_model_len": None, "tokens": [7, 8], "token_strs": ["Hi", "\ufffd"]},
    ),
    "a chat, by llama-server": (
        "llamacpp",
        CHAT,
        [
            ("/apply-template", {name: value for name, value in CHAT.items() if name != "model"}),
            ("/tokenize", {"content": "<user>hi", "add_special": True, "tools": [], "add_generation_prompt": False}),
        ],
        [{"prompt": "<user>hi"}, {"tokens": [1, 2, 3]}],
        {"count": 3, "max_model_len": None, "tokens": [1, 2, 3], "token_strs": None},
    ),
    "a text, by SGLang": (
        "sglang",
        PROMPT,
        [("/tokenize", {"prompt": "Hi there", "add_special_tokens": True})],
        [{"tokens": [1, 2], "count": 2, "max_model_len": 9}],
        {"count": 2, "max_model_len": 9, "tokens": [1, 2], "token_strs": None},
    ),
}


@pytest.mark.parametrize(("name", "fields", "questions", "answers", "told"), WAYS.values(), ids=WAYS.keys())
async def test_each_server_is_asked_for_tokens_in_its_own_words(
    name: str, fields: Fields, questions: list[tuple[str, Fields]], answers: list[Any], told: Fields
) -> None:
    client = replies(*answers)
    assert json.loads(await asker(name, client).tokens(raw(fields))) == told
    assert client.sent == [(path, {**asked, "model": "served"}) for path, asked in questions]


@pytest.mark.parametrize(("name", "key"), [("vllm", "prompt"), ("llamacpp", "content"), ("sglang", "text")])
async def test_each_server_tells_a_text_in_its_own_words(name: str, key: str) -> None:
    client = replies({key: "Hi \u00e9", "more": 1})
    assert json.loads(await asker(name, client).text(raw({"model": "alias", "tokens": [1, 2]}))) == {
        "prompt": "Hi \u00e9"
    }
    assert client.sent == [("/detokenize", {"model": "served", "tokens": [1, 2]})]
