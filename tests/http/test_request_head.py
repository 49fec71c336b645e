"""Heads are bounded before they cost anything: 64 KiB and 100 fields, of trailers and chunk extensions too."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from gateway.errors import GatewayError
from gateway.http.request_head import MAX_BYTES, MAX_FIELDS, parse_head
from tests.listening import CHAT, HEALTH, LAST, chat_body, connections, listening, request, said, statuses
from tests.raw_client import raw_client

FIRST = b"GET /health HTTP/1.1\r\nhost: x\r\n"
CHUNKED = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()
MB = 1024 * 1024

TOO_LARGE = {
    "one long value": FIRST + b"a: " + b"x" * MAX_BYTES + b"\r\n\r\n",
    "one long name": FIRST + b"x" * MAX_BYTES + b": a\r\n\r\n",
    "a long path": b"GET /" + b"x" * MAX_BYTES + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "a long query": b"GET /health?" + b"x" * MAX_BYTES + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "a long path of an inference request": b"POST /" + b"x" * MAX_BYTES + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "many fields": FIRST + b"a: b\r\n" * MAX_FIELDS + b"\r\n",
    "many empty fields": FIRST + b"a:\r\n" * 20_000 + b"\r\n",
    "fields without an end": FIRST + b"a: b\r\n" * 20_000,
    "a value without an end": FIRST + b"a: " + b"x" * 3 * MB,
    "a path without an end": b"GET /" + b"x" * 3 * MB,
    "many trailers": CHUNKED + b"0\r\n" + b"a: b\r\n" * (MAX_FIELDS + 1) + b"\r\n",
    "a long trailer": CHUNKED + b"0\r\na: " + b"x" * MAX_BYTES + b"\r\n\r\n",
    "a trailer without an end": CHUNKED + b"0\r\na: " + b"x" * 3 * MB,
    "a long extension": CHUNKED + b"5;" + b"x" * MAX_BYTES + b"\r\nhello\r\n0\r\n\r\n",
    "an extension without an end": CHUNKED + b"5;" + b"x" * 3 * MB,
    "many extensions": CHUNKED + (b"1;" + b"x" * 1000 + b"\r\nh\r\n") * 70 + b"0\r\n\r\n",
}


@pytest.mark.parametrize("apart", [False, True])
async def test_what_is_too_large_is_a_431_that_can_be_read(apart: bool) -> None:
    async with listening() as (gateway, sim):
        for kind, sent in TOO_LARGE.items():
            pieces = [sent[at : at + 10_000] for at in range(0, len(sent), 10_000)][:20] if apart else [sent]
            answers = await said(gateway, *pieces)
            assert statuses(answers) == [431], kind
            assert b"connection: close\r\n" in answers, kind
            error = msgspec.json.decode(answers.partition(b"\r\n\r\n")[2])["error"]
            assert (error["code"], error["type"]) == ("headers_too_large", "invalid_request_error"), kind
        assert not sim.requests
        assert gateway.metric("gateway_connections_closed_total", reason="headers_too_large") == len(TOO_LARGE)


async def test_as_much_as_is_allowed_is_answered() -> None:
    async with listening() as (gateway, _):
        fields = b"".join(b"x-%d: y\r\n" % n for n in range(MAX_FIELDS - 1))
        value = FIRST + b"a: " + b"x" * (MAX_BYTES - len(FIRST) - len(b"a: ")) + b"\r\n\r\n"
        trailers = CHUNKED + b"0\r\n" + b"a: b\r\n" * MAX_FIELDS + b"\r\n"
        answers = await said(gateway, FIRST + fields + b"\r\n" + value + trailers + LAST)
        assert statuses(answers) == [200, 200, 400, 200]  # the 400: an empty body


async def test_a_second_head_has_the_same_limit() -> None:
    async with listening() as (gateway, _):
        answers = await said(gateway, HEALTH, TOO_LARGE["one long value"])
        assert statuses(answers) == [200, 431]


async def test_a_large_head_that_comes_in_drops_costs_as_much_as_its_bytes() -> None:
    """In the connection, in one process: no socket's cost in between."""
    async with listening() as (gateway, _), raw_client(gateway.url) as client:
        await client.send(FIRST)
        await gateway.until(lambda: any(c._begun is not None for c in connections(gateway)))
        [connection] = [c for c in connections(gateway) if c._begun is not None]
        connection.data_received(b"a: ")
        began = time.thread_time()
        for _ in range(2000):
            connection.data_received(b"x")
        few = time.thread_time() - began
        for _ in range(28):
            connection.data_received(b"x" * 2000)
        began = time.thread_time()
        for _ in range(2000):
            connection.data_received(b"x")
        assert time.thread_time() - began < 10 * few + 0.05
        connection.data_received(b"x" * MAX_BYTES)
        assert statuses(await client.rest()) == [431]


async def test_others_are_served_while_somebody_sends_an_endless_head() -> None:
    async with listening() as (gateway, _), raw_client(gateway.url) as client:

        async def flood() -> None:
            try:
                await client.send(FIRST + b"a: ")
                for _ in range(200):
                    await client.send(b"x" * MB)
            except ConnectionError:
                pass

        flooding = asyncio.create_task(flood())
        began = time.process_time()
        for _ in range(20):
            assert (await gateway.client.get("/health")).status_code == 200
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        assert time.process_time() - began < 2


def test_a_head_of_a_hundred_fields_and_no_more() -> None:
    fields = b"\r\na: b" * MAX_FIELDS
    assert len(parse_head(b"GET / HTTP/1.1" + fields).headers) == MAX_FIELDS
    with pytest.raises(GatewayError) as refused:
        parse_head(b"GET / HTTP/1.1" + fields + b"\r\na: b")
    assert refused.value.code == "headers_too_large"


async def test_a_length_beyond_all_numbers_is_a_body_that_is_too_long() -> None:
    async with listening() as (gateway, _):
        for length in ("9" * 18, "9" * 19, "9" * 5000):
            sent = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode()
            assert statuses(await said(gateway, sent)) == [413]
        assert statuses(await said(gateway, request("POST", CHAT, chat_body()) + LAST)) == [200, 200]
