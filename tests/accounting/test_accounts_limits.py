"""rpm and tpm: no minute has more than the limit, nothing is refused without need, and Retry-After is true."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.accounting.accounts import SECONDS, RateLimits, Window, estimate
from gateway.config.snapshot import Client
from gateway.domain.endpoints import EMBEDDINGS
from gateway.domain.request import InferenceRequest
from gateway.errors import GatewayError
from tests.routing.parts import NOW, request

GAPS = st.one_of(st.just(0.0), st.floats(0.0, 2.0), st.floats(0.0, 200.0))
ASKED = st.lists(st.tuples(GAPS, st.integers(1, 60)), max_size=60)
LIMIT = 40
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 300_000}}


def let_in(asked: list[tuple[float, int]]) -> list[tuple[float, int, float]]:
    """(when, how much, the wait it was told) of each, asked one after the other; 0 = it was let in."""
    window, now, told = Window(), NOW, []
    for gap, amount in asked:
        now += gap
        wait = window.wait(LIMIT, amount, now)
        if not wait:
            window.add(amount, now)
        told.append((now, amount, wait))
    return told


@given(ASKED)
def test_no_minute_ever_holds_more_than_the_limit(asked: list[tuple[float, int]]) -> None:
    taken = [(at, min(amount, LIMIT)) for at, amount, wait in let_in(asked) if not wait]
    for start, _ in taken:
        assert sum(amount for at, amount in taken if start <= at < start + SECONDS) <= LIMIT


@given(ASKED)
def test_no_request_is_refused_that_would_fit_the_limit(asked: list[tuple[float, int]]) -> None:
    """Entries of more than 61 seconds ago never count."""
    seen = let_in(asked)
    for index, (now, amount, wait) in enumerate(seen):
        if wait:
            lately = sum(min(a, LIMIT) for at, a, w in seen[:index] if not w and at > now - SECONDS - 1)
            assert lately + min(amount, LIMIT) > LIMIT


@given(ASKED, st.integers(1, 60))
def test_after_the_wait_that_was_told_it_fits_and_not_much_before(asked: list[tuple[float, int]], amount: int) -> None:
    window, now = Window(), NOW
    for gap, some in asked:
        now += gap
        if not window.wait(LIMIT, some, now):
            window.add(some, now)
    wait = window.wait(LIMIT, amount, now)
    assert 0.0 <= wait <= SECONDS + 1
    if wait > 0.001:
        assert window.wait(LIMIT, amount, now + wait - 0.001) > 0.0
    assert window.wait(LIMIT, amount, now + wait + 1e-6) == 0.0


@given(ASKED, st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(0, 80)), max_size=60))
def test_corrections_end_at_what_was_really_used(asked: list[tuple[float, int]], ends: list[tuple[float, int]]) -> None:
    """Whatever order requests end in: the sum is never negative, and of an idle minute nothing is left."""
    limits, now = RateLimits(), NOW
    client = Client("c", tpm=1_000_000)
    charges = []
    for gap, _ in asked:
        now += gap
        charge = limits.check(client, request(max_tokens=10), now)
        assert charge is not None
        charges.append(charge)
    for charge, (gap, tokens) in zip(charges, ends, strict=False):
        now += gap
        limits.spent(charge, tokens, now)
        assert charge.window.used(now) >= 0
        assert charge.window.used(now) >= tokens - charge.tokens
    if charges:
        assert charges[0].window.used(now + SECONDS + 1) == 0


def refused(limits: RateLimits, client: Client, now: float, **body: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        limits.check(client, request(**body), now)
    return caught.value


def test_requests_beyond_rpm_are_refused_with_a_wait_that_is_true() -> None:
    limits, client = RateLimits(), Client("hermes", rpm=3)
    for _ in range(3):
        limits.check(client, request(), NOW)
    error = refused(limits, client, NOW + 20.0)
    assert (error.code, error.status) == ("rate_limit_exceeded", 429)
    assert error.message == "Client 'hermes' has had its 3 requests (rpm) of this minute: ask again in 41 s."
    assert error.headers() == [(b"retry-after", b"41")]
    limits.check(client, request(), NOW + 20.0 + 41.0)


def test_a_refused_request_does_not_count_against_the_limit() -> None:
    limits, client = RateLimits(), Client("hermes", rpm=1)
    limits.check(client, request(), NOW)
    for second in range(1, 61):
        refused(limits, client, NOW + second)
    limits.check(client, request(), NOW + 61.0)


def test_a_request_refused_for_its_tokens_does_not_count_as_one() -> None:
    limits, client = RateLimits(), Client("c", rpm=2, tpm=1500)
    limits.check(client, request(max_tokens=1000), NOW)
    error = refused(limits, client, NOW, max_tokens=1000)
    assert "1500 tokens (tpm)" in error.message
    limits.check(client, request(max_tokens=1), NOW)


def test_real_usage_takes_the_place_of_the_estimate() -> None:
    limits, client = RateLimits(), Client("c", tpm=2000)
    charge = limits.check(client, request(max_tokens=900), NOW)
    assert charge is not None
    refused(limits, client, NOW + 1.0, max_tokens=2000, messages=[{"role": "user", "content": "x" * 3600}])
    limits.spent(charge, 100, NOW + 2.0)
    again = limits.check(client, request(max_tokens=800, messages=[{"role": "user", "content": "x" * 3600}]), NOW + 2.0)
    assert again is not None
    limits.spent(again, 5000, NOW + 90.0)  # far more than was thought, told when its minute was over
    refused(limits, client, NOW + 91.0, max_tokens=1)
    assert again.window.used(NOW + 91.0) == 5000 - again.tokens


def test_a_request_larger_than_the_limit_waits_for_an_empty_minute() -> None:
    limits, client = RateLimits(), Client("c", tpm=500)
    limits.check(client, request(max_tokens=1), NOW)
    big: dict[str, Any] = {"messages": [{"role": "user", "content": "x" * 36_000}]}
    wait = refused(limits, client, NOW, **big).retry_after
    assert wait == 61
    limits.check(client, request(**big), NOW + wait)


def test_clients_do_not_share_a_window() -> None:
    limits = RateLimits()
    limits.check(Client("a", rpm=1), request(), NOW)
    limits.check(Client("b", rpm=1), request(), NOW)
    refused(limits, Client("a", rpm=1), NOW)


def test_an_edited_limit_holds_at_once_and_keeps_what_was_counted() -> None:
    limits = RateLimits()
    for _ in range(5):
        limits.check(Client("a", rpm=10), request(), NOW)
    refused(limits, Client("a", rpm=5), NOW)
    limits.check(Client("a", rpm=6), request(), NOW)


def test_without_limits_nothing_is_counted() -> None:
    limits = RateLimits()
    for client in (None, Client("free")):
        for _ in range(1000):
            assert limits.check(client, request(), NOW) is None


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [
        (request(max_tokens=100), 100, 130),
        (request(max_tokens=32_000), 1024, 1060),
        (request(), 1024, 1060),
        (request(n=3, max_tokens=100), 300, 330),
        (request(messages=[{"role": "user", "content": [PICTURE]}], max_tokens=1), 1500, 1600),
        (request(EMBEDDINGS, input="x" * 3600), 1000, 1010),
    ],
    ids=["short", "long", "unsaid", "choices", "picture", "embeddings"],
)
def test_the_estimate_counts_prompt_answer_and_pictures(asked: InferenceRequest, least: int, most: int) -> None:
    """Not the base64 of a picture; and no more of an answer than answers mostly have."""
    assert least <= estimate(asked) <= most


def test_the_words_are_none_that_make_agents_throw_away_history() -> None:
    limits, client = RateLimits(), Client("c", tpm=1)
    limits.check(client, request(), NOW)
    message = refused(limits, client, NOW).message.lower()
    assert not [w for w in ("context", "token limit", "too many tokens", "exceeds", "overloaded") if w in message]
