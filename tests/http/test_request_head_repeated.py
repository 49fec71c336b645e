"""A head that comes again on its connection is recognised, and means what it means when it is read."""

from __future__ import annotations

from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.access import Caller
from gateway.domain.endpoints import CHAT
from gateway.http.request_head import END, REPEATED_MOST, Head, RepeatedHead, parse_head, repeated_head
from gateway.proxy.header_map import header_map
from tests.editing import editor_of
from tests.raw_client import raw_client

LINES = (
    *(b"host: x", b"Authorization: Bearer k", b"x-note: content-length: 7", b"X-Empty:", b"connection: keep-alive"),
    *(b"content-type: application/json", b"x-number: 12"),
)
LENGTHS = (b"Content-Length: %d", b"content-length:%d", b"content-length:  %d\t", b"CONTENT-LENGTH: %d")


def head(before: list[bytes], length: bytes, after: list[bytes]) -> bytes:
    return b"\r\n".join([b"POST /v1/chat/completions HTTP/1.1", *before, length, *after])


def recogniser(raw: bytes) -> RepeatedHead:
    read = parse_head(raw)
    found = repeated_head(raw, read, Caller(header_map(read.headers), "local"), CHAT)
    assert found is not None
    return found


def meaning(read: Head) -> tuple[object, ...]:
    return read.method, read.target, read.http_1_0, read.length, read.keep_alive, read.expects_continue


def without_length(raw: bytes) -> dict[bytes, bytes]:
    headers = header_map(parse_head(raw).headers)
    del headers[b"content-length"]
    return headers


@st.composite
def parts(draw: st.DrawFn) -> tuple[list[bytes], bytes, list[bytes]]:
    """What stands before the length, the length with a place for its number, and what stands behind."""
    lines = draw(st.permutations(LINES))
    at, end = sorted(draw(st.tuples(st.integers(0, len(lines)), st.integers(0, len(lines)))))
    return lines[:at], draw(st.sampled_from(LENGTHS)), lines[at:end]


@given(parts(), st.integers(1, 10**17), st.integers(0, 10**17))
def test_another_length_is_read_and_all_else_is_known(
    given_parts: tuple[list[bytes], bytes, list[bytes]], first: int, second: int
) -> None:
    before, length, after = given_parts
    known, again = recogniser(head(before, length % first, after)), head(before, length % second, after)
    found = known.match(again)
    assert found is not None
    assert meaning(found) == meaning(parse_head(again))
    assert without_length(again) == without_length(head(before, length % first, after))


@given(parts(), st.integers(1, 1000), st.data())
def test_any_other_difference_is_no_repeat(
    given_parts: tuple[list[bytes], bytes, list[bytes]], size: int, data: st.DataObject
) -> None:
    before, length, after = given_parts
    raw = head(before, length % size, after)
    at = data.draw(st.integers(0, len(raw) - 1))
    other = raw[:at] + bytes([data.draw(st.integers(0, 255))]) + raw[at + 1 :]
    found = recogniser(raw).match(other)
    if found is not None:
        assert meaning(found) == meaning(parse_head(other))
        assert without_length(other) == without_length(raw)


def test_what_is_no_number_or_too_long_is_read_anew() -> None:
    known = recogniser(head([], b"content-length: 5", [b"host: x"]))
    for number in (b"", b"-5", b"5, 5", b"0x5", b"5\r\ncontent-length: 6", b"5\r\nx: y", "٣".encode(), b"1" * 19):
        assert known.match(head([], b"content-length: " + number, [b"host: x"])) is None, number


def test_long_heads_and_those_without_a_body_are_not_kept() -> None:
    for raw in (head([b"x: " + b"y" * REPEATED_MOST], b"content-length: 5", []), head([], b"content-length: 0", [])):
        read = parse_head(raw)
        assert repeated_head(raw, read, Caller({}, "local"), CHAT) is None


ONE, TWO = "k-one-long-enough", "k-two-long-enough"
KEYS = f"aliases: {{main: [a]}}\nclients: {{one: {{key: {ONE}}}, two: {{key: {TWO}}}}}\n"
TOKENS = "gateway_tokens_total"


def post(key: str, content: str) -> bytes:
    body = msgspec.json.encode({"model": "main", "max_tokens": 4, "messages": [{"role": "user", "content": content}]})
    fields = f"host: x\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    return b"POST /v1/chat/completions HTTP/1.1\r\n" + fields.encode() + body


async def test_each_request_on_a_connection_is_whose_its_head_says(tmp_path: Path) -> None:
    async with editor_of(tmp_path / "routes.yaml", "a", more=KEYS) as editor, raw_client(editor.gateway.url) as client:
        found = []
        for number, key in enumerate((ONE, ONE, TWO, ONE, "wrong-key-of-nobody")):
            await client.send(post(key, "x" * 10 * number))
            found.append((await client.answer())[0])
        assert found == [200, 200, 200, 200, 401]
        labels = {"alias": "main", "backend": "a", "kind": "completion"}
        one, two = (editor.gateway.metric(TOKENS, client=name, **labels) for name in ("one", "two"))
        assert one == 3 * two > 0


async def test_a_key_that_was_taken_away_ends_with_the_edit(tmp_path: Path) -> None:
    async with editor_of(tmp_path / "routes.yaml", "a", more=KEYS) as editor, raw_client(editor.gateway.url) as client:
        found = []
        for number in range(4):
            if number == 2:
                assert (await editor.edit(ONE, "k-another-long-enough")).after == "taken"
            await client.send(post(ONE, "x" * number))
            found.append((await client.answer())[0])
            if found[-1] == 401:
                break
        assert found == [200, 200, 401]


async def test_a_key_that_was_taken_away_ends_with_the_edit_for_new_connections(tmp_path: Path) -> None:
    async with editor_of(tmp_path / "routes.yaml", "a", more=KEYS) as editor:
        found = []
        for number in range(8):
            if number == 5:
                assert (await editor.edit(ONE, "k-another-long-enough")).after == "taken"
            async with raw_client(editor.gateway.url) as client:
                await client.send(post(ONE, "x" * number))
                found.append((await client.answer())[0])
        assert found == [200] * 5 + [401] * 3


NUMBERS = (b"12", b"012", b"1", b"", b"+1", b"1 ", b"\xb2", b"9" * 19)


@given(st.binary(max_size=40), st.sampled_from(NUMBERS), st.binary(max_size=4), st.booleans())
def test_a_request_is_taken_whole_only_as_it_would_be_read(
    body: bytes, number: bytes, more: bytes, right: bool
) -> None:
    raw = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %s\r\naccept: */*"
    known = repeated_head(raw % b"5", head := parse_head(raw % b"5"), Caller(header_map(head.headers), "local"), CHAT)
    assert known is not None
    number = b"%d" % len(body) if right else number
    taken = known.body_of(raw % number + END + body + more)
    again = known.match(raw % number)
    if again is not None and again.length == len(body + more):
        assert taken == body + more
    else:
        assert taken is None
