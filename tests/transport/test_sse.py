"""Server-sent events: the same events however their bytes arrive, and what a chunk says."""

from __future__ import annotations

import json
from itertools import pairwise, product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.upstream import ProtocolFailure
from gateway.transport import sse
from gateway.transport.sse import Choice, Framer, data_of, has_content, has_reasoning, is_plain, read_chunk
from tests.limits import cpu_within

ENDS = (b"\n", b"\r\n", b"\r")

# Short pieces that collide often, so that every mix of line ends meets every cut.
noise = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"data: x", b": c", b"data:", b"event: e", b"a", b"\xef\xbb\xbf"]),
    max_size=24,
).map(b"".join)
line = st.sampled_from([b"data: x", b"data: {}", b": a comment", b"event: ping", b"id: 7", b"data:", b"data"])
events = st.lists(st.lists(line, min_size=1, max_size=3), max_size=6)


def framed(data: bytes, cuts: list[int]) -> list[bytes]:
    """All events of `data`, fed in the pieces that `cuts` makes; the unfinished last one included."""
    framer = Framer()
    places = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    found = [event for a, b in pairwise(places) for event in framer.feed(data[a:b])]
    return found + framer.finish()


def plain(event: bytes) -> list[bytes]:
    """An event's lines, whatever ended them."""
    return [part for part in event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n") if part]


@given(noise, st.lists(st.integers(0, 10_000), max_size=40))
def test_any_bytes_split_anywhere_give_the_same_events(data: bytes, cuts: list[int]) -> None:
    assert [plain(e) for e in framed(data, cuts)] == [plain(e) for e in framed(data, [])]


@given(noise)
@example(b"\r\r\n\n")
@example(b"a\r\r\n\na\r\r")
def test_one_byte_at_a_time_gives_the_same_events(data: bytes) -> None:
    assert [plain(e) for e in framed(data, list(range(len(data))))] == [plain(e) for e in framed(data, [])]


def test_every_mix_of_line_ends_gives_the_same_events_at_every_cut() -> None:
    for length in range(1, 7):
        for letters in product((b"a", b"\r", b"\n"), repeat=length):
            data = b"".join(letters)
            whole = [plain(e) for e in framed(data, [])]
            for cuts in (list(range(length)), *([cut] for cut in range(1, length))):
                assert [plain(e) for e in framed(data, cuts)] == whole, (data, cuts)


@given(events, st.sampled_from(ENDS), st.lists(st.integers(0, 10_000), max_size=20))
def test_events_are_cut_where_their_writer_ended_them(events: list[list[bytes]], end: bytes, cuts: list[int]) -> None:
    data = b"".join(b"".join(line + end for line in event) + end for event in events)
    assert [plain(e) for e in framed(data, cuts)] == events


@given(events, st.data())
def test_line_ends_may_be_mixed_within_a_stream(events: list[list[bytes]], drawn: st.DataObject) -> None:
    # A lone CR just before an LF would be one line end, so a line that ended in CR is not followed by one.
    parts: list[bytes] = []
    for event in events:
        for line in [*event, b""]:
            end = drawn.draw(st.sampled_from(ENDS))
            if not line and parts and parts[-1].endswith(b"\r") and not parts[-1].endswith(b"\r\n"):
                end = b"\r"
            parts.append(line + end)
    cuts = drawn.draw(st.lists(st.integers(0, 10_000), max_size=20))
    assert [plain(e) for e in framed(b"".join(parts), cuts)] == events


@given(events, st.lists(st.integers(0, 10_000), max_size=20))
def test_with_lf_every_byte_is_kept(events: list[list[bytes]], cuts: list[int]) -> None:
    data = b"".join(b"\n".join(event) + b"\n\n" for event in events)
    assert b"".join(framed(data, cuts)) == data


@given(events, st.sampled_from(ENDS), st.booleans(), st.sampled_from([b"", b" ", b"  "]), st.data())
def test_an_event_leaves_with_its_whole_end_wherever_it_is_cut(
    events: list[list[bytes]], end: bytes, bom: bool, space: bytes, drawn: st.DataObject
) -> None:
    data = b"".join(b"".join(line + end for line in event) + end for event in events).replace(b": ", b":" + space)
    sent = b"\xef\xbb\xbf" * bom + data
    cuts = drawn.draw(st.lists(st.integers(0, len(sent)), max_size=20))
    found = framed(sent, cuts)
    assert all(event.endswith(end + end) for event in found)
    assert [plain(event) for event in found] == [[line.replace(b": ", b":" + space) for line in e] for e in events]
    assert b"".join(found) == data


@given(noise, st.lists(st.integers(0, 10_000), max_size=40))
def test_any_cut_gives_the_same_bytes(data: bytes, cuts: list[int]) -> None:
    """What a stream ends with, behind its last event, may be completed or left out."""
    kept = b"".join(framed(data, cuts)).rstrip(b"\r\n")
    whole = b"".join(framed(data, [])).rstrip(b"\r\n")
    assert kept == whole == data.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")


def test_an_event_waits_for_the_second_half_of_its_end() -> None:
    framer = Framer()
    assert framer.feed(b"data: a\r\n\r") == []
    assert framer.feed(b"\n") == [b"data: a\r\n\r\n"]
    assert framer.feed(b"data: b\r\n\r") == []
    assert framer.finish() == [b"data: b\r\n\r\n"]


def test_where_lines_end_in_cr_alone_nothing_waits() -> None:
    framer = Framer()
    assert framer.feed(b"data: a\r\r") == [b"data: a\r\r"]
    assert framer.feed(b"data: b\r") == []
    assert framer.feed(b"\r") == [b"data: b\r\r"]


def test_a_byte_order_mark_does_not_hide_the_first_event() -> None:
    for cut in range(4):
        framer = Framer()
        data = b"\xef\xbb\xbfdata: a\n\n"
        assert [*framer.feed(data[:cut]), *framer.feed(data[cut:])] == [b"data: a\n\n"]


def test_a_crlf_blank_line_cut_in_the_middle_is_one_blank_line() -> None:
    framer = Framer()
    found = framer.feed(b"data: a\r\n\r")
    found += framer.feed(b"\ndata: b\r\n\r\n")
    assert [data_of(e) for e in found] == [b"a", b"b"]
    assert framer.finish() == []


def test_an_event_is_out_as_soon_as_its_blank_line_is_there() -> None:
    framer = Framer()
    assert framer.feed(b"data: a\n") == []
    assert framer.feed(b"\ndata: b") == [b"data: a\n\n"]
    assert framer.feed(b"\n\n") == [b"data: b\n\n"]


def test_the_last_event_needs_no_blank_line() -> None:
    for end in (b"", *ENDS):
        framer = Framer()
        assert framer.feed(b"data: a" + end) == []
        assert framer.finish() == [b"data: a\n\n"]
        assert framer.finish() == []


def test_an_event_without_end_is_refused() -> None:
    framer = Framer()
    framer.feed(b"x" * sse.EVENT_MOST)
    with pytest.raises(ProtocolFailure):
        framer.feed(b"x")


ADVERSARIAL = {
    "one long line": [b"x" * 65536] * 160,
    "line after line": [b"data: x\n" * 8192] * 160,
    "CR and text": [b"\rx" * 32768] * 160,
    "blank lines": [b"\n" * 65536] * 160,
    "CRs": [b"\r" * 65536] * 16,
    "small pieces of one line": [b"x" * 100] * 20_000,
    "small pieces of one line after a CR": [b"\r", *[b"x" * 100] * 100_000],
    "small pieces with CRs": [b"x\r" * 50] * 100_000,
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_ten_megabytes_of_anything_take_linear_time(name: str) -> None:
    framer = Framer()
    with cpu_within(4.0):
        for piece in ADVERSARIAL[name]:
            framer.feed(piece)


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x\n\n", b" x"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data: a\r\ndata: b\r\n\r\n", b"a\nb"),
        (b"data: a\rdata: b\r\r", b"a\nb"),
        (b"data: x\r\n\r\n", b"x"),
        (b"event: e\ndata: x\nid: 1\n\n", b"x"),
        (b": comment\ndata: x\n\n", b"x"),
        (b"\xef\xbb\xbfdata: x\n\n", b"x"),
        (b"data\n\n", b""),
        (b"data:\n\n", b""),
        (b"data: a:b\n\n", b"a:b"),
        (b": comment\n\n", None),
        (b"event: e\n\n", None),
        (b"database: x\n\n", None),
        (b"\n\n", None),
    ],
)
def test_data_is_read_as_the_standard_says(event: bytes, data: bytes | None) -> None:
    assert data_of(event) == data


@pytest.mark.parametrize("data", [b"", b"[DONE]", b"{", b"[1]", b'{"choices": 3}', b"\xff", b'{"a":' * 100_000])
def test_what_is_no_chunk_is_none(data: bytes) -> None:
    assert read_chunk(data) is None


@pytest.mark.parametrize(
    ("delta", "content", "thought"),
    [
        ({"role": "assistant", "content": ""}, False, False),
        ({}, False, False),
        ({"content": None}, False, False),
        ({"content": " "}, True, False),
        ({"refusal": "no"}, True, False),
        ({"tool_calls": [{"index": 0}]}, True, False),
        ({"tool_calls": []}, False, False),
        ({"function_call": {"name": "f"}}, True, False),
        ({"reasoning": "hm"}, False, True),
        ({"reasoning_content": "hm"}, False, True),
        ({"reasoning": ""}, False, False),
        ({"reasoning": "hm", "content": "x"}, True, True),
        ("text", False, False),
        (None, False, False),
    ],
)
def test_content_is_told_from_reasoning_and_from_preamble(delta: object, content: bool, thought: bool) -> None:
    choice = Choice(delta=delta)
    assert (has_content(choice), has_reasoning(choice)) == (content, thought)


def test_the_text_of_a_completion_is_content() -> None:
    assert has_content(Choice(text="x"))
    assert not has_content(Choice(text=""))


text = st.text() | st.sampled_from(
    ['"finish_reason":"stop"', '"finish_reason":null', '"error"', '"usage":{}', "\r\n\r\n", '\\"usage":null', "\\"]
)


finishes = st.lists(st.sampled_from([None, "stop", "abort"]), min_size=1, max_size=2)


@given(text, finishes, st.booleans(), st.booleans(), st.booleans())
def test_an_event_taken_for_plain_ends_nothing_and_is_no_error(
    content: str, finishes: list[str | None], used: bool, failed: bool, compact: bool
) -> None:
    """Whatever text the model says: `is_plain` is never true of an event that has to be looked at."""
    choices = [{"index": i, "delta": {"content": content}, "finish_reason": f} for i, f in enumerate(finishes)]
    chunk: dict[str, object] = {"choices": choices}
    if used:
        chunk["usage"] = {"prompt_tokens": 1}
    if failed:
        chunk["error"] = {"message": "x"}
    separators = (",", ":") if compact else None
    event = b"data: " + json.dumps(chunk, separators=separators, ensure_ascii=False).encode() + b"\n\n"
    if is_plain(event):
        assert set(finishes) == {None}
        assert not failed


def test_vllms_ordinary_delta_is_plain() -> None:
    assert is_plain(b'data: {"choices":[{"index":0,"delta":{"content":"\\"usage\\":1"},"finish_reason":null}]}\n\n')


@pytest.mark.parametrize("reason", ["stop", "length", "abort"])
def test_an_event_that_ends_one_of_two_choices_is_not_plain(reason: str) -> None:
    going_on = '{"index":0,"delta":{"content":"x"},"finish_reason":null}'
    ending = f'{{"index":1,"delta":{{}},"finish_reason":"{reason}"}}'
    assert not is_plain(f'data: {{"choices":[{going_on},{ending}]}}\n\n'.encode())
