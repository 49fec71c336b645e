"""Tokens guessed from bytes: wide before anything was learned, bounded after, and never a limit beyond the window."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.domain.endpoints import CHAT, EMBEDDINGS
from gateway.domain.request import IMAGE_TOKENS
from gateway.domain.tokens import (
    LEARN_FROM,
    MIN_ROOM,
    RATIO_LEAST,
    RATIO_MOST,
    SENDERS_MOST,
    Estimate,
    TokenRatio,
    clamp,
    clamp_again,
    fits,
    room_needed,
    surely_fits,
)
from tests.routing.parts import request

unhurried = settings(deadline=None)  # the machine may be busy

sizes = st.integers(0, 2**28)
tokens = st.integers(0, 2**24)
windows = st.integers(1, 2**21)
observations = st.lists(st.tuples(sizes, st.integers(-5, 2**24)), max_size=20)


def learned(ratio: float) -> TokenRatio:
    return TokenRatio(value=ratio)


def ratio_after(story: list[tuple[int, int]]) -> TokenRatio:
    ratio = TokenRatio()
    for prompt_bytes, prompt_tokens in story:
        ratio.learn(prompt_bytes, prompt_tokens)
    return ratio


# -- the estimate -----------------------------------------------------------------------------------------------------


@unhurried
@given(observations, sizes, st.integers(0, 50))
def test_low_is_at_most_mid_is_at_most_high(story: list[tuple[int, int]], prompt_bytes: int, images: int) -> None:
    guess = ratio_after(story).estimate(prompt_bytes, images)
    assert images * IMAGE_TOKENS <= guess.low <= guess.mid <= guess.high


@unhurried
@given(observations, sizes, sizes)
def test_a_longer_prompt_is_never_guessed_shorter(story: list[tuple[int, int]], one: int, other: int) -> None:
    ratio = ratio_after(story)
    short, long = ratio.estimate(min(one, other)), ratio.estimate(max(one, other))
    assert (short.low <= long.low, short.mid <= long.mid, short.high <= long.high) == (True, True, True)


@unhurried
@given(st.integers(LEARN_FROM, 2**24), st.floats(2.5, 4.8))
def test_before_anything_is_learned_usual_text_lies_within(prompt_bytes: int, bytes_per_token: float) -> None:
    real = int(prompt_bytes / bytes_per_token)
    guess = TokenRatio().estimate(prompt_bytes)
    assert guess.low <= real <= guess.high


def test_a_picture_costs_tokens() -> None:
    ratio = TokenRatio()
    assert ratio.estimate(1000, 2).mid - ratio.estimate(1000).mid == 2 * IMAGE_TOKENS


# -- learning ---------------------------------------------------------------------------------------------------------


@unhurried
@given(observations)
def test_a_learned_token_ratio_stays_within_its_bounds(story: list[tuple[int, int]]) -> None:
    value = ratio_after(story).value
    assert value is None or RATIO_LEAST - 1e-9 <= value <= RATIO_MOST + 1e-9


def test_a_prompt_of_one_letter_teaches_no_more_than_the_bounds() -> None:
    assert ratio_after([(1_000_000, 1)]).value == 6.0
    assert ratio_after([(1_000_000, 1_000_000)]).value == 1.5


def test_short_prompts_teach_nothing_since_they_are_mostly_template() -> None:
    assert ratio_after([(LEARN_FROM - 1, 100), (LEARN_FROM, 0)]).value is None
    assert ratio_after([(LEARN_FROM, 512)]).value == 4.0


def test_one_odd_answer_moves_it_only_a_little() -> None:
    ratio = ratio_after([(40_000, 10_000)])
    ratio.learn(40_000, 20_000)
    assert ratio.value == pytest.approx(4.0 * 0.8 + 2.0 * 0.2)


@unhurried
@given(st.floats(RATIO_LEAST, RATIO_MOST))
def test_the_token_ratio_comes_close_to_the_backends_own(real: float) -> None:
    ratio = ratio_after([(1_000_000, int(1_000_000 / real))] * 30)
    guess = ratio.estimate(500_000)
    assert guess.low <= 500_000 / real <= guess.high


@unhurried
@given(st.lists(st.tuples(sizes, tokens), max_size=20), sizes)
def test_the_token_ratio_of_one_sender_changes_no_other_estimate(
    story: list[tuple[int, int]], prompt_bytes: int
) -> None:
    ratio, untaught = ratio_after([(40_000, 10_000)]), TokenRatio()
    before = ratio.estimate(prompt_bytes), untaught.estimate(prompt_bytes)
    for seen_bytes, seen_tokens in story:
        for one in (ratio, untaught):
            one.learn(seen_bytes, seen_tokens, "odd")
    assert (ratio.estimate(prompt_bytes), untaught.estimate(prompt_bytes)) == before


def test_only_so_many_senders_are_remembered() -> None:
    ratio = TokenRatio()
    for number in range(1000):
        ratio.learn(40_000, 10_000, f"sender {number}")
    assert len(ratio.own) == SENDERS_MOST
    assert ratio.estimate(40_000, sender="sender 999").mid == 10_000


@unhurried
@given(st.integers(1, 2**24), st.lists(tokens, min_size=3, max_size=3), windows, sizes, st.booleans())
def test_a_limit_for_a_second_try_leaves_room_for_the_careful_guess_where_there_is_some(
    limit: int, guess: list[int], window: int, prompt_bytes: int, exact: bool
) -> None:
    estimate = Estimate(*sorted(guess))
    sent = clamp_again(limit, estimate, window, prompt_bytes=prompt_bytes, exact=exact)
    assert 1 <= sent <= limit
    if sent > 1:
        assert estimate.mid + sent <= window
    if window - estimate.high >= 2 * MIN_ROOM:
        assert estimate.high + sent <= window


# -- does it fit ------------------------------------------------------------------------------------------------------


def test_room_is_what_was_asked_but_no_more_than_is_fair_to_insist_on() -> None:
    assert room_needed(request(), None) == MIN_ROOM
    assert room_needed(request(max_tokens=100), None) == 100
    assert room_needed(request(max_tokens=65536), None) == MIN_ROOM
    assert room_needed(request(max_tokens=100), 10_000) == 10_000, "min_max_tokens raises it"
    assert room_needed(request(max_tokens=65536), 10_000) == 10_000
    assert room_needed(request(EMBEDDINGS, input="x"), None) == 0


def test_of_a_backend_that_refuses_the_generous_guess_decides_of_one_that_cuts_the_careful_one() -> None:
    guess = Estimate(800, 1000, 1200)
    assert fits(guess, 100, 900, careful=False)
    assert not fits(guess, 101, 900, careful=False)
    assert not fits(guess, 100, 1299, careful=True)
    assert fits(guess, 100, 1300, careful=True)
    assert fits(guess, 100, None, careful=True), "a window nobody knows"


@unhurried
@given(st.lists(tokens, min_size=3, max_size=3), tokens, windows)
def test_what_fits_where_it_would_be_cut_fits_also_where_it_would_be_refused(
    guess: list[int], room: int, window: int
) -> None:
    estimate = Estimate(*sorted(guess))
    if fits(estimate, room, window, careful=True):
        assert fits(estimate, room, window, careful=False)


@unhurried
@given(observations, sizes, st.integers(0, 2**16), windows)
def test_what_surely_fits_fits_by_every_guess(
    story: list[tuple[int, int]], prompt_bytes: int, room: int, window: int
) -> None:
    assume(surely_fits(prompt_bytes, room, window))
    for ratio in (ratio_after(story), TokenRatio(), learned(RATIO_LEAST), learned(RATIO_MOST)):
        assert fits(ratio.estimate(prompt_bytes), room, window, careful=True)


# -- the clamp --------------------------------------------------------------------------------------------------------


@unhurried
@given(st.integers(1, 2**24), st.lists(tokens, min_size=3, max_size=3), windows, st.booleans())
def test_a_clamped_limit_never_exceeds_the_window_nor_what_was_asked(
    limit: int, guess: list[int], window: int, server_clamps: bool
) -> None:
    estimate = Estimate(*sorted(guess))
    sent = clamp(limit, estimate, window, server_clamps=server_clamps)
    assert 1 <= sent <= min(limit, window)
    if not server_clamps and sent > 1:
        assert estimate.high + sent <= window, "prompt and answer together fit by the most careful guess"


def test_a_limit_that_fits_is_left_alone() -> None:
    guess = Estimate(800, 1000, 1200)
    assert clamp(4096, guess, 32768, server_clamps=False) == 4096
    assert clamp(65536, guess, None, server_clamps=False) == 65536
    assert clamp(65536, guess, 32768, server_clamps=True) == 32768
    assert clamp(65536, guess, 32768, server_clamps=False) == int((32768 - 1200) * 0.98)


def test_the_prompt_that_is_learned_from_is_looked_at_once_in_sixteen() -> None:
    ratio = TokenRatio()
    assert ratio.due(LEARN_FROM), "the first"
    ratio.learn(LEARN_FROM, 512)
    assert sum(ratio.due(LEARN_FROM) for _ in range(160)) == 10
    assert not TokenRatio().due(LEARN_FROM - 1)


def test_chat_has_limits_to_clamp() -> None:
    assert CHAT.limits == ("max_completion_tokens", "max_tokens")
