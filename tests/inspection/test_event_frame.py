"""When an event is taken for one that differs from an earlier one only in its text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.inspection.event_frame import EventFrame
from gateway.transport.sse import Choice, data_of, read_chunk


def event(text: str, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    fields = {"id": "x", "model": "served", "choices": [choice], **more}
    return b"data: " + json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def told(one: bytes) -> bytes:
    return one.replace(b'"model":"served"', b'"model":"alias"', 1)


def frame_of(one: bytes) -> EventFrame | None:
    chunk = read_chunk(data_of(one) or b"")
    choice = chunk.choices[0] if chunk is not None and chunk.choices else Choice()
    return EventFrame.of(one, told(one), choice)


HELLO = event("Hello")


@given(st.text(min_size=1), st.text())
def test_the_text_and_what_is_sent_are_those_of_the_event(first: str, text: str) -> None:
    frame = frame_of(event(first))
    other = event(text)
    found = frame.text_in(other) if frame is not None else None
    if found is None:
        assert frame is None or not text or json.dumps(text, ensure_ascii=False) != f'"{text}"'
        return
    assert frame is not None
    assert found.decode() == text
    assert frame.sent_before + found + frame.sent_after == told(other)


@given(st.binary(max_size=12), st.integers(0, len(HELLO)), st.integers(0, 12))
def test_any_other_bytes_are_no_such_event(more: bytes, at: int, left_out: int) -> None:
    """Whatever is put in or left out: only an event whose text alone differs is found."""
    frame = frame_of(HELLO)
    assert frame is not None
    data = HELLO[:at] + more + HELLO[at + left_out :]
    found = frame.text_in(data)
    if found is None:
        return
    before, after = HELLO.split(b"Hello")
    assert data == before + found + after
    assert found
    assert not set(found) & set(b'"\\\r\n')


@pytest.mark.parametrize(
    "one",
    [
        event("Hello", note={"content": "Hello"}),  # which of them is the text?
        event('a "quoted" text'),
        HELLO.replace(b'"finish_reason":null', b'"finish_reason":"stop"'),
        HELLO.replace(b"\n\n", b"\r\n\r\n"),
        HELLO.replace(b"\n\n", b"\r\n\n"),
        HELLO + HELLO,
        HELLO[:-1],
        b": a comment\n\n",
        b"data: [DONE]\n\n",
    ],
    ids=["another content", "escaped", "an end", "CRLF", "CR", "two", "cut", "a comment", "done"],
)
def test_an_event_in_which_the_text_is_not_certain_is_no_pattern(one: bytes) -> None:
    assert frame_of(one) is None


@pytest.mark.parametrize(
    "text", [b"", b'"', b'a","b":"', b"\\n", b"a\nb", b"a\n\ndata: b", b"a\r", b"a\r\rb"], ids=repr
)
def test_a_text_that_is_empty_or_not_what_its_bytes_are_has_to_be_read(text: bytes) -> None:
    frame = frame_of(HELLO)
    assert frame is not None
    assert frame.text_in(HELLO.replace(b"Hello", text)) is None


def test_the_quote_before_a_text_is_not_taken_for_the_one_behind_it() -> None:
    frame = frame_of(HELLO)
    assert frame is not None
    assert frame.text_in(HELLO.replace(b'"Hello"', b'"')) is None


def test_two_events_in_one_read_are_not_one() -> None:
    frame = frame_of(HELLO)
    assert frame is not None
    assert frame.text_in(HELLO + HELLO) is None
    assert frame.text_in(HELLO[:-2]) is None
