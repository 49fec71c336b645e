"""One timed request: what counts as its first text, as its tokens, as its failure. Against a backend that sends exactly
these bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.apps.bench.sample import RequestSample, refusal, take_sample
from gateway.apps.bench.targets import RequestSpec, UrlTarget
from tests.scripted import END, SSE_HEAD, Turn, answer, chunked, json_answer, scripted

SPEC = RequestSpec(20, 64, "a1", 0)


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish}])


ROLE = delta(role="assistant", content="")
USAGE = event(
    choices=[],
    usage={
        "prompt_tokens": 40,
        "completion_tokens": 64,
        "prompt_tokens_details": {"cached_tokens": 16},
        "completion_tokens_details": {"reasoning_tokens": 30},
    },
)
DONE = b"data: [DONE]\n\n"


async def made(script: Callable[[Turn], Any], limit: float = 20.0) -> RequestSample:
    async with scripted(script) as backend:
        target = UrlTarget("url", backend.url, "m", key="k")
        try:
            return await take_sample(target.prepare(SPEC), limit)
        finally:
            await target.close()


def says(*events: bytes, end: bool = True) -> Callable[[Turn], Any]:
    async def script(turn: Turn) -> None:
        await turn.stream(*events, end=end)
        if not end:
            turn.close()

    return script


async def test_a_whole_stream_is_read_to_its_usage() -> None:
    sample = await made(says(ROLE, delta(reasoning="Well"), delta(content="Yes"), delta("length"), USAGE, DONE))
    assert sample.error is None
    assert (sample.prompt, sample.completion, sample.reasoning, sample.cached) == (40, 64, 30, 16)
    assert (sample.pieces, sample.finish) == (2, "length")
    assert sample.first is not None
    assert sample.last is not None
    assert sample.started < sample.first <= sample.last <= sample.ended


@pytest.mark.parametrize("field", ["content", "reasoning", "reasoning_content"])
async def test_the_first_text_is_the_first_whatever_it_is_called(field: str) -> None:
    sample = await made(says(ROLE, delta(**{field: "a"}), delta("stop"), DONE))
    assert (sample.ok, sample.pieces) == (True, 1)
    assert sample.first is not None


async def test_a_role_and_empty_texts_are_not_the_first_text() -> None:
    sample = await made(says(ROLE, delta(content=""), delta(content=None), delta("stop"), DONE))
    assert (sample.first, sample.pieces, sample.error) == (None, 0, "the answer was empty")


async def test_tokens_without_text_are_a_failure_that_says_so() -> None:
    sample = await made(says(ROLE, delta("length"), USAGE, DONE))
    assert sample.error == "64 tokens were counted, but the stream held no text"


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([delta(content="a"), DONE], "without a finish_reason"),
        ([delta(content="a"), delta("abort"), DONE], "finish_reason abort"),
        ([delta(content="a"), event(error={"message": "boom", "code": 500}), DONE], "broke off: boom"),
        ([delta(content="a"), event(error="boom"), delta("stop"), DONE], "broke off: boom"),
    ],
)
async def test_a_broken_stream_is_a_failure(events: list[bytes], error: str) -> None:
    sample = await made(says(*events))
    assert sample.error is not None
    assert error in sample.error


async def test_a_connection_that_ends_early_is_a_failure() -> None:
    sample = await made(says(delta(content="a"), end=False))
    assert sample.error is not None
    assert sample.error.startswith("the connection failed")


async def test_an_error_is_told_in_the_servers_words() -> None:
    async def script(turn: Turn) -> None:
        await turn.send(json_answer({"error": {"message": "no\nroom", "code": 503}}, "503 Service Unavailable"))

    assert (await made(script)).error == "answered 503: no room"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"error":"Unauthorized"}', "Unauthorized"),
        (b"<html>oh</html>", "<html>oh</html>"),
        (b"[1]", "[1]"),
        (b"\xff", "\ufffd"),
    ],
)
def test_any_error_body_is_told(body: bytes, told: str) -> None:
    assert refusal(500, body) == f"answered 500: {told}"


async def test_a_request_without_end_is_given_up() -> None:
    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(delta(content="a")))
        await turn.until_lost()

    sample = await made(script, limit=0.2)
    assert sample.error == "no end within 0.2 s"
    assert sample.first is not None


async def test_the_route_is_read_from_the_head_or_from_a_comment() -> None:
    async def head(turn: Turn) -> None:
        more = b"x-gateway-backend: a\r\nx-gateway-queue-ms: 1500\r\n\r\n"
        await turn.send(SSE_HEAD.removesuffix(b"\r\n") + more + chunked(delta("stop", content="a")) + END)

    sample = await made(head)
    assert (sample.backend, sample.queued) == ("a", 1.5)
    comment = b": x-gateway backend=b; attempts=2; queue-ms=20; fallback=failed\n\n"
    sample = await made(says(comment, delta("stop", content="a"), DONE))
    assert (sample.backend, sample.queued) == ("b", 0.02)


async def test_the_request_is_a_chat_with_the_key() -> None:
    seen: list[Turn] = []

    async def script(turn: Turn) -> None:
        seen.append(turn)
        await turn.send(answer(b"{}", "500 x"))

    await made(script)
    assert seen[0].headers["authorization"] == "Bearer k"
    assert seen[0].json["model"] == "m"
    assert seen[0].json["stream"] is True
