"""Prompts of `gateway bench`: as long as wanted, and no two that begin alike."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.apps.bench.targets import RequestSpec, Sizing, body, prompt, sizing
from simulator.tokens import count


def spec(words: int = 100, nonce: str = "a1", seed: int = 0, **more: Any) -> RequestSpec:
    return RequestSpec(words, 128, nonce, seed)._replace(**more)


def test_the_nonce_stands_before_everything_else() -> None:
    assert prompt(spec(nonce="4f2a")).startswith("[4f2a] ")


def test_compared_prompts_differ_in_nothing_but_the_nonce() -> None:
    one, other = prompt(spec(nonce="aaaa", seed=3)), prompt(spec(nonce="bbbb", seed=3))
    assert one.replace("aaaa", "bbbb") == other
    assert prompt(spec(nonce="bbbb", seed=4)) != other


@given(st.floats(0.5, 4), st.floats(0, 500), st.integers(100, 100_000))
def test_two_counted_prompts_tell_how_long_every_other_will_be(per_word: float, overhead: float, wanted: int) -> None:
    def tokens(words: int) -> int:
        return round(overhead + per_word * words)

    size = sizing([(512, tokens(512)), (64, tokens(64))])
    words = size.words(wanted)
    if words:
        assert abs(tokens(words) - wanted) <= per_word + 2 + 0.005 * wanted / per_word
    else:
        assert tokens(2) >= wanted - 5


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=1))
def test_without_two_counts_a_guess_is_made(seen: list[tuple[int, int]]) -> None:
    assert sizing(seen) == Sizing()
    assert sizing([(64, 90), (64, 91)]) == Sizing()
    assert sizing([(64, 90), (512, 90)]) == Sizing()


@given(st.integers(1000, 50_000))
def test_the_words_come_out_at_about_the_tokens_of_a_real_text(words: int) -> None:
    assert 0.8 * words <= count(prompt(spec(words)).encode()) <= 1.8 * words


def test_the_answer_is_made_as_long_as_it_is_asked_for() -> None:
    forced = body(spec(), "m")
    assert (forced["ignore_eos"], forced["min_tokens"], forced["max_tokens"]) == (True, 128, 128)
    assert forced["stream_options"] == {"include_usage": True}
    free = body(spec(forced=False), None)
    assert free.keys().isdisjoint({"ignore_eos", "min_tokens", "model", "chat_template_kwargs"})
    assert "at least 128 words" in free["messages"][0]["content"], (
        "an engine that takes no such field is asked in words"
    )
    assert body(spec(thinking=False), "m")["chat_template_kwargs"] == {"enable_thinking": False}
