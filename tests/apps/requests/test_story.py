"""The sentences about a request: who was asked and why, what was changed, what came of it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from gateway.accounting.record import RequestLine
from gateway.apps.requests.store import past_request
from gateway.apps.requests.story import story, tokens_per_s, told_running
from gateway.domain.tokens import NO_TOKENS, Tokens
from gateway.routing.refusal import FailedAttempt

PLAIN = RequestLine(
    1_900_000_000.0, "r1", "open", "writer", "chat", False, "gemma4", 1, "200", None, (), (), Tokens(100, 20), 0.0, 2.0,
    2.0,
)  # fmt: skip
DETOUR = RequestLine(
    1_900_000_000.0, "r2", "hermes", "writer", "messages", True, "qwen8b", 3, "200", ("fallback", "failed"),
    ["max_tokens_clamped"], [FailedAttempt("gemma4", "failed", "refused the connection")], Tokens(1203, 145, 900, 45),
    2.25, 4.0, 9.0, skipped=[("ds4", "is parked"), ("gemma4", "is down")], mended={"tool_calls"},
    left_out=["web_search"], translated=True, local_only=True, usd=None,
)  # fmt: skip


def told(line: RequestLine) -> list[str]:
    return story(msgspec.json.decode(msgspec.json.encode(past_request(line))))


def test_a_plain_request_is_told_in_a_few_words() -> None:
    first, *rest = told(PLAIN)
    assert first.endswith("Somebody asked alias writer (chat).")
    assert rest == [
        "gemma4 was asked.",
        "It took 2.00 s in all.",
        "100 tokens in, 20 out, 10 a second.",
        "The client got the whole answer.",
    ]


def test_a_detour_names_everyone_who_could_not_and_why() -> None:
    first, *rest = told(DETOUR)
    assert first.endswith("Client hermes asked alias writer (messages, as a stream).")
    assert rest == [
        "It was translated into a chat, and the answer back.",
        "It was not to leave the LAN.",
        "ds4 was no candidate: it is parked.",
        "gemma4 was asked and left (failed): it refused the connection.",
        "qwen8b was asked as a fallback, because the first step had just failed.",
        "To ask it, this was changed: max_tokens_clamped (x-gateway-adapted).",
        "Left out, because no backend here runs it: web_search.",
        "The answer was mended: tool_calls put where they belong.",
        "It waited 2.2 s for a slot, got its first content after 4.00 s, took 9.00 s in all.",
        "1,203 tokens in (900 of them cached), 145 out (45 of them thoughts), 20 a second.",
        "What it cost is not known: its backend has no `price`.",
        "The client got the whole answer.",
    ]


def test_a_failure_ends_with_what_the_client_was_told() -> None:
    failed = FailedAttempt("gemma4", "failed", "refused the connection")
    line = replace(PLAIN, left=[failed], outcome="upstream_error", error="Every backend failed.", tokens=NO_TOKENS)
    said = told(line)
    assert "gemma4 was asked." not in said
    assert said[-1] == "The client got 502 upstream_error: Every backend failed."
    gone = told(replace(PLAIN, outcome="client_gone"))
    assert gone[-1] == "The client left before the answer was complete."
    refused = told(replace(PLAIN, outcome="400", error="Bad value."))
    assert refused[-1] == "The client got 400, an error of the backend's: Bad value."


def test_reasons_are_bounded() -> None:
    long = FailedAttempt("a", "failed", "x" * 10_000)
    past = past_request(replace(PLAIN, left=[long], skipped=[("b", "y" * 10_000)], error="z" * 10_000))
    assert len(msgspec.json.encode(past)) < 2_500


def test_the_speed_of_a_stream_counts_from_its_first_content() -> None:
    stream = past_request(replace(PLAIN, stream=True, first_token=1.0))
    assert tokens_per_s(stream | {"tokens_reasoning": 0}) == 20.0
    nothing = past_request(replace(PLAIN, tokens=NO_TOKENS))
    assert tokens_per_s(nothing) is None


def test_a_running_request_is_told_by_its_phase() -> None:
    now = {"client": "hermes", "alias": "writer", "endpoint": "chat", "stream": True, "backend": "a", "total_ms": 3200}
    busy = {**now, "phase": "writing", "tokens_out": 40, "tokens_per_s": 20.0}
    assert told_running(busy)[1] == "It runs for 3.2 s: writing at a; 40 tokens so far, 20 a second."
    waits = {**now, "backend": "", "phase": "waiting for a slot", "tokens_out": 0, "tokens_per_s": None}
    assert told_running(waits)[1] == "It runs for 3.2 s: waiting for a slot."
