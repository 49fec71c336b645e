"""Which call a result is of."""

from __future__ import annotations

import time

from gateway.domain.open_calls import OpenCalls


def test_a_result_belongs_to_the_first_open_call_of_its_id_or_its_tool_or_to_the_first() -> None:
    calls = OpenCalls()
    assert calls.take() is None
    calls.begin([("a", "read"), ("b", "write"), ("c", "read"), ("a", "write"), ("d", "read")])
    taken = [calls.take("a"), calls.take(None, "read"), calls.take(None, "write"), calls.take("a"), calls.take("a")]
    assert taken == ["a", "c", "b", "a", None]
    assert [calls.take(None, "other"), calls.take(), calls.take()] == [None, "d", None]
    calls.begin([("a", "read")])
    calls.begin([("b", "read")])
    assert [calls.take("a"), calls.take(None, "read")] == [None, "b"]


def test_many_results_in_any_order_take_as_long_as_there_are() -> None:
    calls, many = OpenCalls(), 40_000
    began = time.thread_time()
    calls.begin((f"c{number}", f"t{number}") for number in range(many))
    assert all(calls.take(None, f"t{number}") for number in range(many - 1, many // 2, -1))
    assert all(calls.take() for _ in range(many // 2))
    assert time.thread_time() - began < 5.0  # with a look at each of the others, a minute
