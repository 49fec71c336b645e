"""Whose fault failures are, and which bodies are remembered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.culprits import KEPT, MOST, SHUNNED_LEAST, SHUNNED_MOST, Culprits, Failure, fault_of, key_of
from tests.routing.parts import request

failures = st.lists(
    st.builds(Failure, st.sampled_from("abc"), st.sampled_from([True, False, None]), st.booleans()), max_size=6
)


@given(failures)
def test_a_single_failure_blames_nobody_and_two_need_a_backend_that_lives(found: list[Failure]) -> None:
    fault = fault_of(found)
    assert (fault == "open") == (len(found) < 2)
    if len(found) >= 2 and any(failure.lives for failure in found):
        assert fault == "request"
    if all(failure.lives is False and not failure.broke for failure in found):
        assert fault != "request"


@given(failures, failures)
def test_more_failures_never_exonerate_a_culprit(before: list[Failure], after: list[Failure]) -> None:
    if fault_of(before) == "request":
        assert fault_of(before + after) == "request"


def test_two_backends_have_to_die_of_a_body() -> None:
    dead = Failure("a", lives=False, broke=True)
    assert fault_of([dead, dead]) == "backends"
    assert fault_of([dead, dead._replace(backend="b")]) == "request"


def test_a_body_is_the_same_streamed_or_not_and_by_any_name_of_the_alias() -> None:
    asked = request(messages=[{"role": "user", "content": "hi"}])
    streamed = request(
        messages=[{"role": "user", "content": "hi"}], stream=True, stream_options={"include_usage": True}
    )
    other = request(messages=[{"role": "user", "content": "ho"}])
    assert key_of(asked, "w", "me") == key_of(streamed, "w", "me")
    assert len({key_of(asked, "w", "me"), key_of(other, "w", "me"), key_of(asked, "v", "me")}) == 3
    assert key_of(asked, "w", "me") != key_of(asked, "w", "you"), "what one client sends changes nothing for others"


def test_a_culprit_is_remembered_for_a_time_and_forgiven_when_it_is_answered() -> None:
    culprits, asked = Culprits(), request(messages=[])
    key = key_of(asked, "w", "me")
    assert culprits.find(asked, "w", "me", 0.0) is None
    culprits.suspect(key, asked.prompt_bytes, [Failure("a")], 0.0)
    found = culprits.find(asked, "w", "me", 1.0)
    assert found is not None
    assert (found.failures, found.proven) == ((Failure("a"),), False)
    culprits.convict(key, asked.prompt_bytes, 1.0, broke=False)
    assert culprits.find(asked, "w", "me", KEPT) is not None
    assert culprits.find(asked, "w", "you", KEPT) is None
    assert culprits.find(asked, "w", "me", KEPT + 2.0) is None
    culprits.acquit(key)
    assert culprits.find(asked, "w", "me", 2.0) is None


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_a_body_that_backends_died_of_is_shunned_ever_longer_and_never_for_ever(broke: list[bool]) -> None:
    culprits, asked, now, before = Culprits(), request(messages=[]), 0.0, 0.0
    key = key_of(asked, "w", "me")
    for one in broke:
        culprits.convict(key, asked.prompt_bytes, now, broke=one)
        found = culprits.find(asked, "w", "me", now)
        assert found is not None
        pause = found.shunned_until - now
        assert pause <= SHUNNED_MOST
        if one:
            assert pause >= max(SHUNNED_LEAST, min(before, SHUNNED_MOST))
            before = pause
            now = found.shunned_until
        else:
            assert pause <= 0.0


@given(st.lists(st.integers(0, 3 * MOST), max_size=200))
def test_only_so_many_are_remembered(numbers: list[int]) -> None:
    culprits = Culprits()
    for number in range(MOST):
        culprits.convict(b"old %d" % number, 1, 0.0, broke=False)
    for number in numbers:
        culprits.convict(b"%d" % number, 1, 1.0, broke=False)
        assert len(culprits) <= MOST
