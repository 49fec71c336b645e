"""The one error of a request that nobody could serve: agents read its code, its status and its very words."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from gateway.domain.backend import BackendState
from gateway.domain.endpoints import EMBEDDINGS
from gateway.domain.facts import Observation
from gateway.domain.request import InferenceRequest
from gateway.errors import GatewayError
from gateway.routing.plan import Plan, make_plan
from gateway.routing.refusal import FailedAttempt, refusal
from tests.routing.parts import NOW, Condition, alias, backend, fleet, request

TOOLS = [{"type": "function", "function": {"name": "f"}}]
OUT: tuple[Condition, ...] = ("down", "warming", "misconfigured", "parked", "cooldown", "too_long", "incapable")
# On these words an agent throws away its history, so no other error than the overflow may hold them.
COMPACTING = [
    *("context", "max_tokens", "token limit", "too many tokens", "exceeds the limit", "input token", "prompt length"),
    *("prompt is too long", "reduce the length"),
]


def refuse(
    *conditions: Condition, tried: tuple[FailedAttempt, ...] = (), asked: InferenceRequest | None = None
) -> GatewayError:
    """The error for a chain of backends b0, b1, ... in these conditions, after these attempts."""
    states = [backend(f"b{number}", condition) for number, condition in enumerate(conditions)]
    asked = asked or request(tools=TOOLS)
    plan: Plan = make_plan(alias(*(s.name for s in states)), fleet(*states), asked, NOW)
    for one in tried:
        plan.outcomes[one.backend] = one.kind
    return refusal(plan, tried, asked, NOW)


def told(error: GatewayError) -> tuple[str, int]:
    return error.code, error.status


@pytest.mark.parametrize(
    ("condition", "code", "status"),
    [
        ("down", "no_backend_available", 503),
        ("parked", "no_backend_available", 503),
        ("misconfigured", "no_backend_available", 503),
        ("warming", "backend_warming", 429),
        ("cooldown", "rate_limit_exceeded", 429),
        ("too_long", "context_length_exceeded", 400),
        ("incapable", "tool_choice_unsupported", 400),
    ],
)
def test_each_obstacle_has_its_error_code(condition: Condition, code: str, status: int) -> None:
    assert told(refuse(condition)) == (code, status)


@pytest.mark.parametrize(("one", "other"), list(product(("warming", "cooldown"), OUT)))
def test_an_obstacle_that_passes_by_itself_is_waited_for_beside_any_other(one: Condition, other: Condition) -> None:
    for conditions in ((one, other), (other, one)):
        error = refuse(*conditions)
        assert error.status == 429
        assert error.retry_after is not None


def test_a_pause_tells_how_long_it_lasts() -> None:
    assert dict(refuse("cooldown").headers()) == {b"retry-after": b"20"}


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, b"1"), (0.4, b"1"), (12.4, b"12"), (86400.0, b"600")])
def test_retry_after_is_whole_seconds_from_one_to_ten_minutes(seconds: float, shown: bytes) -> None:
    assert GatewayError("rate_limit_exceeded", "wait", retry_after=seconds).headers() == [(b"retry-after", shown)]


def test_a_failed_attempt_is_the_backends_fault() -> None:
    assert told(refuse("ok", tried=(FailedAttempt("b0", "failed", "answered 500"),))) == ("upstream_error", 502)
    silent = FailedAttempt("b0", "failed", "was silent", timeout=True)
    assert told(refuse("ok", tried=(silent,))) == ("upstream_timeout", 504)
    refused = FailedAttempt("b0", "misconfigured", "refuses our credential (401)")
    assert told(refuse("ok", tried=(refused,))) == ("upstream_error", 502), "never the client's 401"


def test_the_last_failure_tells_whether_it_was_a_timeout() -> None:
    failed, silent = (
        FailedAttempt("b0", "failed", "answered 500"),
        FailedAttempt("b1", "failed", "was silent", timeout=True),
    )
    assert refuse("ok", "ok", tried=(failed, silent)).code == "upstream_timeout"
    assert refuse("ok", "ok", tried=(silent, failed)).code == "upstream_error"


@pytest.mark.parametrize("condition", ["ok", "suspect", "unknown", "warming"])
def test_a_backend_that_has_just_gone_is_waited_for(condition: Condition) -> None:
    gone = FailedAttempt("b0", "failed", "connect: refused", gone=True)
    plan = make_plan(alias("b0"), fleet(state := backend("b0")), asked := request(), NOW)
    state.health.state = backend("b0", condition).health.state  # what the attempt has made of it
    state.health.since = NOW
    error = refusal(plan, [gone], asked, NOW)
    assert told(error) == ("backend_warming", 429)
    assert error.retry_after == 10.0, "two good health checks"
    assert "b0 connect: refused" in error.message


def test_a_backend_that_went_long_ago_has_failed() -> None:
    gone = FailedAttempt("b0", "failed", "connect: refused", gone=True)
    plan = make_plan(alias("b0"), fleet(state := backend("b0")), asked := request(), NOW)
    state.health = backend("b0", "down").health
    assert told(refusal(plan, [gone], asked, NOW)) == ("upstream_error", 502)


def test_a_real_failure_is_told_though_another_backend_has_just_gone() -> None:
    gone, failed = (
        FailedAttempt("b0", "failed", "connect: refused", gone=True),
        FailedAttempt("b1", "failed", "answered 500"),
    )
    for tried in ((gone, failed), (failed, gone)):
        assert told(refuse("ok", "ok", tried=tried)) == ("upstream_error", 502)


def test_a_pause_met_on_the_way_is_told_like_one_known_before() -> None:
    states = [backend("b0")]
    asked = request()
    plan = make_plan(alias("b0"), fleet(*states), asked, NOW)
    states[0].evidence.cool_down(7.0, NOW)
    plan.outcomes["b0"] = "cooldown"
    error = refusal(plan, [FailedAttempt("b0", "cooldown", "answered 429")], asked, NOW)
    assert (told(error), error.retry_after) == (("rate_limit_exceeded", 429), 7.0)


def test_every_backend_is_named_with_its_reason() -> None:
    error = refuse("down", "parked", "misconfigured")
    assert error.message.startswith("No healthy backend for alias 'alias': ")
    for name, word in (("b0", "down"), ("b1", "parked"), ("b2", "misconfigured")):
        assert name in error.message
        assert word in error.message


def test_an_endpoint_that_nobody_serves_is_told_by_its_path() -> None:
    state = backend("b0")
    state.facts.learn_lack("endpoint:embeddings", NOW)
    asked = request(EMBEDDINGS, input="x")
    error = refusal(make_plan(alias("b0"), fleet(state), asked, NOW), [], asked, NOW)
    assert told(error) == ("input_unsupported", 400)
    assert "/embeddings" in error.message


def test_pictures_that_nobody_takes() -> None:
    asked = request(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}])
    state = backend("b0", vision=False)
    error = refusal(make_plan(alias("b0"), fleet(state), asked, NOW), [], asked, NOW)
    assert told(error) == ("input_unsupported", 400)


# -- which flag is missing --------------------------------------------------------------------------------------------


def refused(state: BackendState, **body: Any) -> GatewayError:
    asked = request(**body)
    return refusal(make_plan(alias(state.name), fleet(state), asked, NOW), [], asked, NOW)


@pytest.mark.parametrize(
    ("keys", "on", "words"),
    [
        ({"thinking": "never"}, True, "b0 cannot think (thinking: never in routes.yaml)"),
        ({"thinking": "always"}, False, "b0 cannot be kept from thinking (thinking: always in routes.yaml)"),
        ({"model": "Qwen3-4B-Instruct-2507"}, True, "b0 cannot think: its model (Qwen3-Instruct) has no switch"),
        ({"model": "MiniMax-M2"}, False, "b0 cannot be kept from thinking: its model (MiniMax-M2) has no switch"),
    ],
)
def test_thinking_that_nobody_can_switch(keys: dict[str, Any], on: bool, words: str) -> None:
    error = refused(backend("b0", **keys), chat_template_kwargs={"enable_thinking": on})
    assert told(error) == ("thinking_unsupported", 400)
    assert words in error.message


def test_tools_are_told_before_thinking_and_that_before_the_input() -> None:
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]
    keys: dict[str, Any] = {"vision": False, "thinking": "never", "tool_parser": "none"}
    everything: dict[str, Any] = {"messages": picture, "think": True, "tools": TOOLS}
    assert refused(backend("b0", **keys), **everything).code == "tool_choice_unsupported"
    assert refused(backend("b0", **keys), **everything | {"tools": []}).code == "thinking_unsupported"
    assert refused(backend("b0", **keys), messages=picture).code == "input_unsupported"


def test_a_schema_that_nobody_keeps_to_is_an_input_nobody_takes() -> None:
    state = backend("b0")
    state.facts.observe({"json_schema": Observation("no", "prose")})
    error = refused(state, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {}}})
    assert told(error) == ("input_unsupported", 400)
    assert "JSON schema" in error.message


def test_the_last_one_that_did_not_call_is_named() -> None:
    asked = request(tools=TOOLS, tool_choice="required")
    plan = make_plan(alias("b0", "b1"), fleet(backend("b0"), backend("b1")), asked, NOW)
    disobeyed = FailedAttempt("b1", "disobeyed", "did not call the tool that it had to call")
    for first in (FailedAttempt("b0", "disobeyed", "did not call"), FailedAttempt("b0", "failed", "answered 500")):
        error = refusal(plan, [first, disobeyed], asked, NOW)
        assert (told(error), error.param) == (("tool_choice_unsupported", 400), "tool_choice")
        assert "b1 did not call the tool that it had to call" in error.message
    failed = FailedAttempt("b1", "failed", "answered 500")
    assert refusal(plan, [FailedAttempt("b0", "disobeyed", "did not"), failed], asked, NOW).code == "upstream_error"


def test_a_backend_that_comes_back_may_obey_tool_choice() -> None:
    asked = request(tools=TOOLS, tool_choice="required")
    plan = make_plan(alias("b0", "b1"), fleet(backend("b0", "warming"), backend("b1")), asked, NOW)
    assert refusal(plan, [FailedAttempt("b1", "disobeyed", "did not call")], asked, NOW).code == "backend_warming"


def test_a_backend_that_was_tried_is_named_once() -> None:
    asked = request(tools=TOOLS)
    states = fleet(backend("b0"), backend("b1", "incapable"))
    plan = make_plan(alias("b0", "b1"), states, asked, NOW, resort="mend", outcomes={"b0": "failed"})
    message = refusal(plan, [FailedAttempt("b0", "failed", "answered 500")], asked, NOW).message
    assert message.count("b0") == 1


# -- the words --------------------------------------------------------------------------------------------------------


def overflow(*windows: int, size: int = 400_000, **tried: Any) -> str:
    states = [backend(f"b{n}", context=window) for n, window in enumerate(windows)]
    asked = request(messages=[{"role": "user", "content": "x" * size}])
    plan = make_plan(alias(*(s.name for s in states)), fleet(*states), asked, NOW)
    attempts = [FailedAttempt("b0", "too_long", "was too small", **tried)] if tried else []
    for attempt in attempts:
        plan.outcomes[attempt.backend] = attempt.kind
    error = refusal(plan, attempts, asked, NOW)
    assert told(error) == ("context_length_exceeded", 400)
    assert error.param == "messages"
    return error.message


def test_an_overflow_is_told_in_the_words_that_agents_compact_on() -> None:
    message = overflow(32768)
    assert message.startswith("This model's maximum context length is 32768 tokens. However, your prompt contains ")
    assert message.endswith(" input tokens. Please reduce the length of the messages.")


def test_the_largest_window_is_told_and_a_prompt_larger_than_it() -> None:
    for windows in ((32768, 65536, 16384), (65536,), (1, 65536)):
        message = overflow(*windows)
        assert "maximum context length is 65536 tokens" in message
        assert int(message.split("contains ")[1].split(" ")[0]) > 65536


def test_the_prompt_that_the_backend_counted_is_told_rather_than_our_guess() -> None:
    message = overflow(100_000, size=300_000, window=100_000, prompt_tokens=140_000)
    assert "contains 140000 input tokens" in message


@pytest.mark.parametrize(
    "conditions", [c for c in product(OUT, repeat=2) if refuse(*c).code != "context_length_exceeded"]
)
def test_no_other_error_makes_an_agent_throw_away_its_history(conditions: tuple[Condition, Condition]) -> None:
    message = refuse(*conditions).message.lower()
    assert [word for word in COMPACTING if word in message] == []


@pytest.mark.parametrize("word", COMPACTING)
def test_a_backends_own_words_do_not_make_an_agent_throw_away_its_history(word: str) -> None:
    """An engine that died may say anything."""
    error = refuse("ok", tried=(FailedAttempt("b0", "failed", f"answered 500: out of memory, {word} is too large"),))
    assert error.code == "upstream_error"
    assert word not in error.message.lower()


@pytest.mark.parametrize("conditions", list(product(OUT, repeat=2)))
def test_no_refusal_says_what_turns_an_agent_away_from_waiting(conditions: tuple[Condition, Condition]) -> None:
    """On "overloaded" and "at capacity" Retry-After is ignored; "not found" makes it give up."""
    message = refuse(*conditions).message.lower()
    assert not any(word in message for word in ("overloaded", "at capacity", "not found", "does not exist"))


@pytest.mark.parametrize(("away", "wait"), [(0.0, 10.0), (5.0, 10.0), (45.0, 45.0), (600.0, 120.0)])
def test_the_wait_grows_with_the_time_a_backend_has_been_away(away: float, wait: float) -> None:
    """An agent with three attempts would otherwise have spent them before an engine has loaded."""
    plan = make_plan(alias("b0"), fleet(state := backend("b0", "warming")), asked := request(), NOW)
    state.health.since = NOW - away
    assert refusal(plan, [], asked, NOW).retry_after == wait
