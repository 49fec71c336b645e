"""What every error answer that a real vLLM 0.32 was seen to give means, and those of other servers."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.inspection.error_replies import MESSAGE_MOST, Verdict, judge, read_error, retry_after

ERRORS = Path(__file__).parent.parent / "data" / "errors"

MEANINGS = {
    "auth_basic": "misconfigured",
    "embed_unknown": "misconfigured",
    "err_unknown_model": "misconfigured",
    "messages_unknown_model": "misconfigured",
    "embed_chat_on_pooling": "unserved",
    "err_completions_too_long": "too_long",
    "err_max_completion_tokens_too_large": "too_long",
    "err_max_tokens_too_large": "too_long",
    "messages_too_long": "too_long",
    "h_image_to_text_model": "incapable",
    "noauto_tool_auto_scripted": "incapable",
    "noauto_tool_named_nothink": "incapable",
    "noauto_tool_required_nothink": "incapable",
    "queue_overflow_503": "cooldown",
}  # everything else is the client's own mistake


def captured(name: str) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) as vLLM sent them."""
    kept = json.loads((ERRORS / f"{name}.json").read_text())
    return kept["status"], {"content-type": kept["content_type"]}, kept["body"].encode()


def judged(name: str, endpoint: str = "chat") -> Verdict:
    return judge(*captured(name), endpoint)


@pytest.mark.parametrize("name", sorted(path.stem for path in ERRORS.glob("*.json")))
def test_every_captured_error_has_its_meaning(name: str) -> None:
    status, _, body = captured(name)
    verdict = judged(name)
    assert verdict.kind == MEANINGS.get(name, "client")
    assert verdict.status == status
    if verdict.kind == "client":
        told = json.loads(body)
        assert verdict.message == (told["error"]["message"] if "error" in told else told["detail"])


def test_every_named_meaning_has_its_capture() -> None:
    assert set(MEANINGS) <= {path.stem for path in ERRORS.glob("*.json")}


def test_what_vllm_lacks_is_learned_from_its_own_words_only() -> None:
    lacks = {path.stem: judged(path.stem).lack for path in ERRORS.glob("*.json")}
    assert {name: lack for name, lack in lacks.items() if lack is not None} == {
        "noauto_tool_auto_scripted": "tools",
        "noauto_tool_named_nothink": "tool_parser",
        "noauto_tool_required_nothink": "tool_parser",
        "h_image_to_text_model": "images",
        "embed_chat_on_pooling": "endpoint:chat",
    }
    assert judged("embed_chat_on_pooling", "embeddings").lack == "endpoint:embeddings"


def test_ollama_says_what_a_model_lacks() -> None:
    for words, lack in (("does not support tools", "tools"), ("does not support thinking", "thinking")):
        body = json.dumps({"error": f'"gemma3:4b" {words}'}).encode()
        verdict = judge(400, {"content-type": "application/json"}, body, "chat")
        assert (verdict.kind, verdict.lack) == ("incapable", lack)


def test_an_overflow_tells_the_window_and_the_prompt() -> None:
    prompt = judged("err_completions_too_long")
    assert (prompt.window, prompt.prompt_tokens, prompt.limit_only) == (2048, 2049, False)
    for name in ("err_max_tokens_too_large", "err_max_completion_tokens_too_large"):
        limit = judged(name)
        assert (limit.window, limit.prompt_tokens, limit.limit_only) == (2048, None, True)


OLDER = (
    "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens (1000 in the messages, "
    "8000 in the completion). Please reduce the length of the messages or completion.",
    "'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum context length is 4096 tokens "
    "and your request has 1000 input tokens (8000 > 4096 - 1000).",
    "The decoder prompt (length 9000) is longer than the maximum model length of 4096. Make sure that `max_model_len` "
    "is no smaller than the number of text tokens.",
)


@pytest.mark.parametrize("message", OLDER)
def test_the_overflow_words_of_older_versions_are_known(message: str) -> None:
    body = json.dumps({"object": "error", "message": message, "type": "BadRequestError", "code": 400}).encode()
    verdict = judge(400, {"content-type": "application/json"}, body, "chat")
    assert (verdict.kind, verdict.window) == ("too_long", 4096)


@pytest.mark.parametrize("status", [500, 501, 502, 503, 504, 529])
def test_a_5xx_is_a_failure(status: int) -> None:
    assert judge(status, {}, b"", "chat").kind == "failed"


@pytest.mark.parametrize("status", [301, 302, 307, 308, 304])
def test_a_redirect_is_a_failure(status: int) -> None:
    assert judge(status, {"location": "http://elsewhere.invalid/"}, b"", "chat").kind == "failed"


def test_only_vllms_full_queue_makes_a_503_neutral() -> None:
    assert judge(503, {}, b'{"error": {"message": "the server is busy"}}', "chat").kind == "failed"
    status, headers, body = captured("queue_overflow_503")
    assert judge(status, headers, body, "chat").retry_after == 1.0
    assert judge(status, {**headers, "retry-after": "7"}, body, "chat").retry_after == 7.0
    assert judge(500, headers, body, "chat").kind == "failed"


def ollama(status: int, error: object, endpoint: str = "chat", **more: Any) -> Verdict:
    return judge(status, {"content-type": "application/json"}, json.dumps({"error": error}).encode(), endpoint, **more)


def test_a_full_queue_of_ollama_is_neutral_too() -> None:
    text = "server busy, please try again.  maximum pending requests exceeded"  # v0.1.33 to v0.33.0-rc2
    assert (ollama(503, text).kind, ollama(503, text).retry_after) == ("cooldown", 1.0)
    assert ollama(500, text).kind == ollama(503, text + "!").kind == "failed"


@pytest.mark.parametrize(("endpoint", "use"), [("chat", "chat"), ("completions", "generate")])
def test_a_model_of_ollama_that_only_embeds_serves_no_chat(endpoint: str, use: str) -> None:
    text = f'"nomic-embed-text" does not support {use}'
    verdict = ollama(400, text, endpoint)
    assert (verdict.kind, verdict.lack, verdict.unverified) == ("unserved", f"endpoint:{endpoint}", False)
    assert ollama(400, text, endpoint, echoed=lambda *_: True).unverified
    assert ollama(400, f"{text} and more", endpoint).kind == "client"


LLAMA = "request (9001 tokens) exceeds the available context size (8192 tokens), try increasing it"


def test_what_ollama_repeats_of_its_runner_is_read_as_the_runners_words() -> None:
    """Since v0.30 the text of its error is the whole body that llama-server answered."""
    inner = {"code": 400, "message": LLAMA, "type": "exceed_context_size_error", "n_prompt_tokens": 9001, "n_ctx": 8192}
    verdict = ollama(400, json.dumps({"error": inner}))
    assert (verdict.kind, verdict.window, verdict.prompt_tokens) == ("too_long", 8192, 9001)
    assert (verdict.message, verdict.unverified) == (LLAMA, False)
    failed = ollama(500, json.dumps({"error": {"code": 500, "message": "Compute error.", "type": "server_error"}}))
    assert (failed.kind, failed.message) == ("failed", "Compute error.")


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"error": ""}', '{"error"', "{" * 3000, '{"a": 1}', "[1]", '{"error":"\ud800"}']
)
def test_a_text_that_is_no_runners_error_stays_a_text(text: str) -> None:
    assert ollama(400, text).kind == "client"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_credential_is_never_the_clients(status: int) -> None:
    assert judge(status, {}, b'{"error": "Unauthorized"}', "chat").kind == "misconfigured"


@pytest.mark.parametrize("status", [402, 405, 408, 409, 410, 415, 418, 422, 451])
def test_any_other_4xx_is_passed_on_with_its_words(status: int) -> None:
    body = b'{"error": {"message": "no", "type": "t", "param": "temperature", "code": "odd_value"}}'
    verdict = judge(status, {}, body, "chat")
    assert (verdict.kind, verdict.status, verdict.message) == ("client", status, "no")
    assert (verdict.param, verdict.code) == ("temperature", "odd_value")


def test_a_refusal_without_words_still_says_something() -> None:
    assert judge(400, {}, b"", "chat").message == "The backend refused the request (400)."


def test_a_404_about_something_else_is_the_clients() -> None:
    assert judged("responses_get_unknown").kind == "client"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"detail":"Not Found"}', "application/json"),
        (b"<html><body>404 page</body></html>", "text/html"),
        (b"404 page not found", "text/plain"),
        (b"", ""),
    ],
)
def test_a_404_of_the_path_is_learned_for_that_endpoint(body: bytes, content_type: str) -> None:
    verdict = judge(404, {"content-type": content_type}, body, "completions")
    assert (verdict.kind, verdict.lack) == ("unserved", "endpoint:completions")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), (" 2.5 ", 2.5), ("0", 0.0), ("-3", 0.0), ("", None), ("soon", None), ("Tue, 99 Foo", None)],
)
def test_retry_after_is_read_as_a_number(value: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": value}) == seconds
    assert retry_after({}) is None


def test_retry_after_is_never_a_number_that_compares_with_nothing() -> None:
    assert retry_after({"retry-after": "nan"}) in (None, 0.0)


def test_retry_after_is_read_as_a_date() -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 27 <= (retry_after({"retry-after": at}) or 0) <= 30
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=30), usegmt=True)
    assert retry_after({"retry-after": past}) == 0.0


@pytest.mark.parametrize(
    ("body", "content_type", "message", "shape"),
    [
        (b'{"error": {"message": "m", "code": 400}}', "", "m", "error"),
        (b'{"error": {"reason": "m"}}', "", '{"reason":"m"}', "error"),
        (b'{"error": "m"}', "", "m", "error"),
        (b'{"detail": "m"}', "", "m", "detail"),
        (b'{"detail": [{"loc": ["body"], "msg": "m"}]}', "", '[{"loc":["body"],"msg":"m"}]', "detail"),
        (b'{"message": "m"}', "", "m", "message"),
        (b'[{"error": {"message": "m"}}]', "", "m", "error"),
        (b'"m"', "", "m", "text"),
        (b"{}", "", "", "text"),
        (b"m\n", "text/plain", "m", "text"),
        (b"<html><title>502 Bad &amp; Gateway</title><p>x</html>", "", "502 Bad & Gateway", "html"),
        (b"<h1>Bad</h1> gateway", "text/html; charset=utf-8", "Bad gateway", "html"),
        (b"\xff\xfe", "text/plain", "\ufffd\ufffd", "text"),
        (b"", "", "", "text"),
    ],
)
def test_an_error_is_read_in_every_shape(body: bytes, content_type: str, message: str, shape: str) -> None:
    told, _, _, seen = read_error(body, content_type)
    assert (told, seen) == (message, shape)


def test_a_long_or_deep_error_is_no_trouble() -> None:
    assert len(read_error(json.dumps({"error": "x" * 100_000}).encode(), "")[0]) == MESSAGE_MOST
    assert read_error(b"[" * 100_000, "")[3] == "text"
