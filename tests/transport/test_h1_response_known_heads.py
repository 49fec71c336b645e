"""Heads of answers that are like one before: recognised only as the parser would read them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.h1_response import AnswerHeads, known_head, known_stream_head

LENGTHS = (b"12", b"012", b"1", b"", b"+1", b"1 ", b"\xb2", b"9" * 19)
ANSWER = (
    b"HTTP/1.1 200 OK\r\ndate: %s\r\nserver: uvicorn\r\ncontent-length: %s\r\ncontent-type: application/json\r\n\r\n%s"
)
FIRST = b"Sat, 21 Nov 2026 00:53:11 GMT"
dates = st.one_of(
    st.just(b"Sun, 22 Nov 2026 10:00:00 GMT"),
    st.binary(min_size=29, max_size=29),
    st.just(b"x\r\nTransfer-Encoding: chunked\r"),
)


@given(dates, st.binary(max_size=30), st.sampled_from(LENGTHS), st.booleans(), st.binary(max_size=3))
def test_an_answer_is_recognised_only_as_the_parser_would_read_it(
    date: bytes, body: bytes, number: bytes, right: bool, more: bytes
) -> None:
    known = known_head(ANSWER % (FIRST, b"2", b"{}"), {})
    assert known is not None
    assert known.body_of(ANSWER % (FIRST, b"2", b"{}")) == b"{}"
    number = b"%d" % len(body) if right else number
    found = known.body_of(ANSWER % (date, number, body + more))
    plain = date.isascii() and b"\r" not in date and b"\n" not in date
    if plain and number.isdigit() and len(number) < 19 and int(number) == len(body + more):
        assert found == body + more
        assert known.body_of(ANSWER % (date, b"2", b"{}")) == b"{}", "in the same second"
    else:
        assert found is None
    assert known.body_of(ANSWER % (FIRST, b"2", b"{}")) == b"{}"


def test_a_head_that_says_something_twice_is_not_remembered() -> None:
    once = ANSWER % (FIRST, b"2", b"{}")
    for line in (b"Date: " + FIRST, b"Content-Length: 2"):
        assert known_head(once.replace(b"server: uvicorn", line), {}) is None
    assert known_head(once.replace(b"date: " + FIRST, b"x-date: 1"), {}) is None
    assert known_head(b"HTTP/1.1 200 OK\r\ncontent-length: 2", {}) is None


STREAM = b"HTTP/1.1 200 OK\r\ndate: %s\r\ntransfer-encoding: chunked\r\n\r\n"


def test_a_new_connection_knows_the_heads_of_others_and_each_keeps_its_own() -> None:
    latest = AnswerHeads()
    first, second = AnswerHeads(latest), AnswerHeads(latest)
    first.learn_whole(ANSWER % (FIRST, b"2", b"{}"), {"content-length": "2"})
    first.learn_stream(STREAM % FIRST, {"transfer-encoding": "chunked"})
    third = AnswerHeads(latest)
    assert third.whole is not None
    assert third.stream is not None
    assert third.whole.body_of(ANSWER % (FIRST, b"3", b"{ }")) == b"{ }"
    assert third.stream.end_in(STREAM % FIRST) == len(STREAM % FIRST)
    assert second.whole is None
    assert second.stream is None


@given(dates, st.sampled_from([b"", b"x", b"\r\n"]))
def test_the_head_of_a_stream_is_recognised_with_another_date(date: bytes, behind: bytes) -> None:
    known = known_stream_head(STREAM % FIRST + b"5\r\nHello\r\n")
    assert known is not None
    assert known.head == STREAM % FIRST
    plain = date.isascii() and b"\r" not in date and b"\n" not in date
    assert known.end_in(STREAM % date + behind) == (len(STREAM % FIRST) if plain else 0)
    assert known.end_in(STREAM % FIRST[1:] + behind) == 0
    assert known.end_in((STREAM % FIRST).replace(b"chunked", b"Chunked") + behind) == 0
    assert known.end_in((STREAM % FIRST)[:-1]) == 0


def test_a_stream_s_head_without_a_date_is_recognised_and_one_with_two_is_not() -> None:
    without = STREAM.replace(b"date: %s\r\n", b"")
    known = known_stream_head(without)
    assert known is not None
    assert known.end_in(without + b"5\r\n") == len(without)
    assert known_stream_head((STREAM % FIRST).replace(b"transfer", b"Date: x\r\ntransfer")) is None
    assert known_stream_head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked") is None
