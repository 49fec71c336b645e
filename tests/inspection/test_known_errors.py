"""Which words are a server's own: whole messages that are known, with numbers that agree; never what it quotes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.inspection.error_replies import judge
from gateway.inspection.known_errors import guess_overflow, read_lack, read_missing_model, read_overflow
from gateway.proxy.feedback import Feedback, ask_again, learn
from tests.routing.parts import NOW, alias, backend, request

HEAD = "This model's maximum context length is 4096 tokens. However, "
REDUCE = "Please reduce the length of the input prompt or the number of requested output tokens."
TAIL = " (parameter=input_tokens, value=97)"
MAKE_SURE = " Make sure that `max_model_len` is no smaller than the number of text tokens"

# text, prompt, at least, only the limit is too large
TEXTS: list[tuple[str, int | None, bool, bool]] = [
    (f"{HEAD}your prompt contains at least 4097 input tokens, which exceeds this limit even without any output tokens. "
     "Please reduce the length of the input prompt. (parameter=input_tokens, value=4097)", 4097, True, False),
    (f"{HEAD}you requested 4000 output tokens and your prompt contains at least 97 input tokens, for a total of at "
     f"least 4097 tokens. {REDUCE}{TAIL}", 97, True, True),
    (f"{HEAD}you requested 0 output tokens and your prompt contains at least 4097 input tokens, for a total of at "
     f"least 4097 tokens. {REDUCE}", 4097, True, False),
    (f"{HEAD}you requested 9000 tokens (1000 in the messages, 8000 in the completion). Please reduce the length of the "
     "messages or completion.", 1000, False, True),
    (f"{HEAD}you requested 9000 tokens (1000 in your prompt; 8000 for the completion). Please reduce the length of the "
     "prompt or completion.", 1000, False, True),
    (f"{HEAD}you requested 5000 tokens in the messages, Please reduce the length of the messages.", 5000, False, False),
    (f"{HEAD}you requested 5000 tokens in the input for embedding generation. Please reduce the length of the input.",
     5000, False, False),
    (f"{HEAD}your request has 5000 input tokens. Please reduce the length of the input messages.", 5000, False, False),
    (f"{HEAD}your messages resulted in 5000 tokens. Please reduce the length of the messages.", 5000, False, False),
    ("'max_tokens' or 'max_completion_tokens' is too large: 4000. This model's maximum context length is 4096 tokens "
     "and your request has 1000 input tokens (4000 > 4096 - 1000).", 1000, False, True),
    ("You passed 1000 input tokens and requested 4000 output tokens. However, the model's context length is only 4096 "
     "tokens, resulting in a maximum input length of 96 tokens. Please reduce the length of the input prompt."
     " (parameter=input_tokens, value=1000)", 1000, False, True),
    (f"The decoder prompt (length 5000) is longer than the maximum model length of 4096.{MAKE_SURE}.",
     5000, False, False),
    (f"The prompt (length 5000) is longer than the maximum model length of 4096.{MAKE_SURE} plus multimodal tokens. "
     "For image inputs, the number of image tokens depends on the number of images, and possibly their aspect ratios "
     "as well.", 5000, False, False),
    ("The decoder prompt (length 4096) plus the number of requested output tokens (at least 1) is longer than the "
     f"maximum model length of 4096.{MAKE_SURE} (prompt + requested output tokens).", 4096, False, False),
    ("max_tokens=9000 cannot be greater than max_model_len=4096. Please request fewer output tokens."
     " (parameter=max_tokens, value=9000)", None, False, True),
    ("max_completion_tokens=9000cannot be greater than max_model_len=max_total_tokens=4096. Please request fewer "
     "output tokens.", None, False, True),
    ("request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it", 5000, False, False),
    ("prompt is too long: 5000 tokens > 4096 maximum", 5000, False, False),
    ("input length and `max_tokens` exceed context limit: 1000 + 4000 > 4096, decrease input length or `max_tokens` "
     "and try again", 1000, False, True),
    (f"{HEAD}you requested 5000 tokens (5000 in the messages, None in the completion). Please reduce the length of the "
     "messages or completion.", 5000, False, False),
    ("This model's maximum context length is 4096 tokens, however you requested 4100 tokens (4000 in your prompt; 100 "
     "for the completion). Please reduce your prompt; or completion length.", 4000, False, True),
    ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", 5000, False, False),
    ("Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5000 "
     "tokens: 1000 tokens from the input messages and 4000 tokens for the completion. Please reduce the number of "
     "tokens in the input messages or the completion to fit within the limit.", 1000, False, True),
    ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 1000 `inputs` tokens and 4000 "
     "`max_new_tokens`", 1000, False, True),
    ("Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context "
     "length of only 4096 tokens, which is not enough. Try to load the model with a larger context length, or provide "
     "a shorter input. Error Data: n/a, Additional Data: n/a", 5000, False, False),
    ("The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 4096>= n_ctx: "
     "4096). Try to load the model with a larger context length, or provide a shorter input", 4096, False, False),
    ("The sum of prompt length (1000.0), query length (0) and max_tokens (4000) should not exceed max_seq_len (4096)",
     1000, False, True),
    ("The sum of prompt length (1000) and query length (0) max_tokens (4000) should not exceed max_seq_len (4096)",
     1000, False, True),
    ("`default_max_tokens` (-48) must be greater than 0, `default_max_tokens` (-48) = max_seq_len (4096) - "
     "`splited_prompt_len` (4000) - `query_token_len` (144)", 4144, False, False),
]  # fmt: skip


@pytest.mark.parametrize(("text", "prompt", "least", "limit_only"), TEXTS)
def test_the_texts_of_the_servers_are_read(text: str, prompt: int | None, least: bool, limit_only: bool) -> None:
    found = read_overflow(text)
    assert found is not None
    assert found == (4096, prompt, least, limit_only, True)
    verdict = judge(400, {}, json.dumps({"error": {"message": text}}).encode(), "chat")
    assert (verdict.kind, verdict.window, verdict.unverified) == ("too_long", 4096, False)


@pytest.mark.parametrize(("text", "prompt", "least", "limit_only"), TEXTS)
def test_a_text_that_is_only_part_of_a_message_is_not_the_servers(
    text: str, prompt: int | None, least: bool, limit_only: bool
) -> None:
    for message in (f"x{text}", f"{text} x", f"{text}\n", f"'{text}'", f"a\n{text}\nb"):
        assert read_overflow(message) is None


@pytest.mark.parametrize("text", [text for text, *_ in TEXTS])
@pytest.mark.parametrize("window", ["0", "-4096", "9", "04096", "4" * 400, "٤٠٩٦", "1e9", "4096.5"])
def test_a_number_that_no_server_has_is_none(text: str, window: str) -> None:
    found = read_overflow(text.replace("4096", window))
    assert found is None or not found.sound


def test_numbers_that_contradict_each_other_are_not_the_servers() -> None:
    for text in (
        f"{HEAD}you requested 9000 tokens (1000 in the messages, 8001 in the completion). {REDUCE}",
        f"{HEAD}your prompt contains 5 input tokens, which exceeds this limit even without any output tokens.",
        "max_tokens=5 cannot be greater than max_model_len=4096. Please request fewer output tokens.",
        "prompt is too long: 5 tokens > 4096 maximum",
    ):
        found = read_overflow(text)
        assert found is None or not found.sound


@pytest.mark.parametrize(
    "text",
    [
        "The sum of prompt length (9351.0), query length (0) should not exceed max_num_tokens (8192)",
        "Input length (9351 tokens) exceeds the maximum allowed length (8192 tokens). Use a shorter input or enable "
        "--allow-auto-truncate.",
        "`inputs` must have less than 8192 tokens. Given: 9351",
    ],
)
def test_a_bound_of_the_prompt_alone_is_for_this_request_and_no_window(text: str) -> None:
    verdict = judge(422, {}, json.dumps({"error": text}).encode(), "chat")
    assert (verdict.kind, verdict.window, verdict.prompt_tokens, verdict.unverified) == ("too_long", 8192, 9351, True)


@pytest.mark.parametrize(
    ("numbers", "window"),
    [
        ({"n_prompt_tokens": 9001, "n_ctx": 8192}, 8192),
        ({"n_prompt_tokens": "9001", "n_ctx": 8192}, None),
        ({"n_prompt_tokens": 9001, "n_ctx": True}, None),
        ({"n_prompt_tokens": 9001, "n_ctx": 0}, None),
        ({"n_prompt_tokens": 9001, "n_ctx": 10**30}, None),
        ({}, None),
    ],
)
def test_numbers_beside_the_message_count(numbers: dict[str, Any], window: int | None) -> None:
    message = "the request exceeds the available context size, try increasing it"
    error = {"code": 400, "message": message, "type": "exceed_context_size_error", **numbers}
    verdict = judge(400, {}, json.dumps({"error": error}).encode(), "chat")
    assert (verdict.kind, verdict.window, verdict.unverified) == ("too_long", window, window is None)


def test_what_a_server_lacks_is_told_by_whole_messages_only() -> None:
    texts = {
        'tool_choice="required" requires --tool-call-parser to be set': "tool_parser",
        'tool_choice=function "get weather ü" requires --tool-call-parser to be set': "tool_parser",
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set': "tools",
        "registry.ollama.ai/library/gemma3:4b does not support tools": "tools",
        '"gemma3:4b" does not support thinking': "thinking",
        "/models/x is not a multimodal model": "images",
        "Unsupported chat content part type: 'file'. Supported types: audio_url, image_url, text.": "pdf",
        "this model is missing data required for image input": "images",
    }
    for text, lack in texts.items():
        assert read_lack(text) == lack
        for message in (f"Oh: {text}", f"{text}!", f"'{text}'", f"{text}\n", f"a b {text}"):
            assert read_lack(message) is None


def test_a_missing_model_is_told_by_its_name() -> None:
    assert read_missing_model("The model `a/b` does not exist. Valid aliases: c, d.") == "a/b"
    assert read_missing_model("The model `a` does not exist or you do not have access to it.") == "a"
    assert read_missing_model("model 'a:8b' not found") == "a:8b"
    assert read_missing_model('model "a:8b" not found, try pulling it first') == "a:8b"
    for text in ("The model `a` does not exist, says b.", "No model `a` not found", "The model `a b` does not exist."):
        assert read_missing_model(text) is None


# -- whatever a client sends ------------------------------------------------------------------------------------------

PHRASES = [
    *(text for text, *_ in TEXTS),
    "maximum context length is 9",
    "is not a multimodal model",
    "m does not support thinking",
    'tool_choice="required" requires --tool-call-parser to be set',
    "The model `m` does not exist.",
]
MARKS = st.sampled_from(["'", '"', "`", "\n", "}", "'}", "', 'input': '", ": ", "\\", "{", "}]", "ü", " "])
words = st.lists(st.sampled_from(PHRASES) | MARKS | st.text(max_size=8), max_size=6).map("".join)
FAULTS = st.sampled_from(["missing", "float_parsing", "list_type", "value_error", "json_invalid"])


@given(words, FAULTS, st.integers(1, 3), st.booleans(), st.sampled_from([400, 413, 422]))
def test_no_validation_error_teaches_whatever_it_quotes(
    text: str, kind: str, count: int, nested: bool, status: int
) -> None:
    value: Any = {"a": [text]} if nested else text
    faults = [{"type": kind, "loc": f"body.{text}", "msg": f"Value error, {text}", "input": value}] * count
    plural = "s" if count > 1 else ""
    message = f"{count} validation error{plural}:\n" + "\n".join(f"  {fault}" for fault in faults)
    bodies: list[Any] = [
        {"error": {"message": message, "type": "Bad Request", "code": 400}},
        {"object": "error", "message": message},
        {"error": message},
        {"detail": faults},
        {"message": str(faults)},
    ]
    asked = request(
        tools=[{"type": "function", "function": {"name": "f"}}],
        messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}],
        temperature=text,
    )
    for body in bodies:
        state = backend("b0", context=None, tool_parser=None)
        verdict = judge(status, {}, json.dumps(body).encode(), "chat", model="m")
        assert verdict.kind == "client"
        learn(state, Feedback(asked, "r"), verdict, NOW)
        assert not ask_again(state, asked, alias("b0"), verdict)
        assert (state.window(NOW), dict(state.facts.lacks), state.facts.unconfirmed) == (None, {}, {})


@given(words, words, words)
def test_words_before_or_behind_a_known_text_take_away_its_authority(before: str, text: str, behind: str) -> None:
    message = f"{before}{text}{behind}"
    if message in PHRASES or not (before and behind):
        return
    body = json.dumps({"error": {"message": f"x {message} y"}}).encode()
    verdict = judge(400, {}, body, "chat")
    assert verdict.kind == "client" or verdict.unverified


def test_a_quotation_is_not_taken_for_an_overflow() -> None:
    for quoted in ("'{}'", '"{}"', "`{}`"):
        assert guess_overflow("Bad role " + quoted.format("maximum context length is 9")) is None
    assert guess_overflow("The prompt exceeds the context window") is not None


CLOUDS_OVERFLOWS = (
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Invalid request: Your request exceeded model token limit: 262144 (requested: 270000)",
    "Prompt exceeds max length",
    "invalid params, context window exceeds limit (2013)",
    "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
    "Prompt too long: 140000 tokens exceeds max context window of 131072 tokens",
    "prompt too long; exceeded max context length by 4 tokens",
    "Input is too long for requested model.",
    "Requested tokens (9000) exceed context window of 8192",
    "prompt token count of 140000 exceeds the limit of 128000",
    "Prompt contains 140000 tokens and 0 draft tokens, too large for model with 131072 maximum context length",
)


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("message", CLOUDS_OVERFLOWS)
def test_overflows_of_clouds_count_for_the_refused_request_alone(message: str, status: int) -> None:
    verdict = judge(status, {}, json.dumps({"error": {"message": message}}).encode(), "chat")
    assert (verdict.kind, verdict.unverified) == ("too_long", True)


def test_every_lesson_of_the_captures_is_of_a_known_text() -> None:
    for path in (Path(__file__).parent.parent / "data" / "errors").glob("*.json"):
        kept = json.loads(path.read_text())
        verdict = judge(kept["status"], {"content-type": kept["content_type"]}, kept["body"].encode(), "chat")
        assert not verdict.unverified, path.stem
