"""A head that a client has sent before is recognised on its next connection, too."""

from __future__ import annotations

import json

import pytest

from gateway.admission.access import Caller
from gateway.config.load import load_text
from gateway.config.snapshot import Snapshot
from gateway.domain.endpoints import CHAT
from gateway.http.connection import Connection
from gateway.http.request_head import KEPT, KnownHeads, RepeatedHead, parse_head, repeated_head
from gateway.proxy.header_map import header_map
from tests.proxy.house import PATH, house
from tests.raw_client import chat, raw_client
from tests.support import RunningGateway


def snapshot() -> Snapshot:
    return load_text("backends: {a: {url: 'http://127.0.0.1:9'}}", environ={}).snapshot


def raw_head(note: object = "x", length: int = 5) -> bytes:
    return f"POST {PATH} HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\nx-note: {note}".encode()


def repeated(raw: bytes) -> RepeatedHead:
    head = parse_head(raw)
    found = repeated_head(raw, head, Caller(header_map(head.headers), "peer"), CHAT)
    assert found is not None
    return found


def test_a_head_that_came_twice_is_found_with_any_length_and_only_for_its_address() -> None:
    heads, rules, head = KnownHeads(), snapshot(), repeated(raw_head())
    heads.note(rules, "peer", head)
    assert heads.find(rules, "peer", raw_head()) is None, "it may never come again"
    heads.note(rules, "peer", head)
    assert heads.find(rules, "peer", raw_head(length=123)) is head
    assert heads.find(rules, "other", raw_head()) is None
    assert heads.find(rules, "peer", raw_head("y")) is None
    assert heads.find(rules, "peer", b"GET / HTTP/1.1\r\nhost: h") is None


def test_with_other_rules_nothing_is_known() -> None:
    heads, rules, head = KnownHeads(), snapshot(), repeated(raw_head())
    for _ in range(2):
        heads.note(rules, "peer", head)
    assert heads.find(snapshot(), "peer", raw_head()) is None
    assert heads.find(rules, "peer", raw_head()) is None


def test_heads_that_never_come_again_displace_none_that_do() -> None:
    heads, rules, head = KnownHeads(), snapshot(), repeated(raw_head())
    for _ in range(2):
        heads.note(rules, "peer", head)
    for number in range(3 * KEPT):
        heads.note(rules, "peer", repeated(raw_head(number)))
    assert heads.find(rules, "peer", raw_head()) is head
    assert len(heads._once) == KEPT


def test_of_too_many_heads_those_used_last_stay() -> None:
    heads, rules = KnownHeads(), snapshot()
    for number in range(KEPT):
        for _ in range(2):
            heads.note(rules, "peer", repeated(raw_head(number)))
    assert heads.find(rules, "peer", raw_head(0)) is not None
    for _ in range(2):
        heads.note(rules, "peer", repeated(raw_head("one more")))
    assert heads.find(rules, "peer", raw_head(0)) is not None
    assert heads.find(rules, "peer", raw_head(1)) is None
    assert len(heads._known) == KEPT


def known(gateway: RunningGateway) -> KnownHeads:
    kind = gateway.server.config.http
    assert isinstance(kind, type)
    assert issubclass(kind, Connection)
    return kind.listener.known_heads


@pytest.mark.parametrize("in_two_parts", [False, True])
async def test_a_client_with_a_new_connection_for_each_request_runs_on_what_was_decided(in_two_parts: bool) -> None:
    async with house() as h:
        for _ in range(5):
            async with raw_client(h.gateway.url) as h.client:
                if in_two_parts:
                    body = json.dumps(chat("chain"), separators=(",", ":")).encode()
                    head = f"POST {PATH} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
                    await h.client.send(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body[:9])
                    await h.client.send(body[9:])
                else:
                    await h.ask()
                assert (await h.client.answer())[0] == 200
                await h.gateway.until(h.gateway.idle)
        assert len(h.kept) == 3, "the first was seen once, the second kept"
        assert h.gateway.gateway.memory.used == 0


async def test_two_heads_in_turns_on_one_connection_are_both_known() -> None:
    async with house() as h:
        for number in range(10):
            h.headers = f"x-turn: {number % 2}\r\n"
            await h.ask()
            assert (await h.client.answer())[0] == 200
            await h.gateway.until(h.gateway.idle)
        assert len(h.kept) == 6


async def test_the_head_of_an_unknown_client_is_not_kept() -> None:
    async with house(client="rpm: 1000") as h:
        right = h.headers
        for headers, status, kept in ((right.replace("k-one", "k-no"), 401, 0), (right, 200, 1)):
            h.headers = headers
            for _ in range(3):
                async with raw_client(h.gateway.url) as h.client:
                    await h.ask()
                    assert (await h.client.answer())[0] == status
            heads = known(h.gateway)
            assert (len(heads._known), len(heads._once)) == (kept, 0)


@pytest.mark.parametrize(
    "line",
    [
        "x-gateway-local-only: maybe",
        "origin: http://evil.example",
        "host: evil.example",
        "sec-fetch-site: cross-site",
        "content-type: text/plain",
        "content-encoding: gzip",
        "content-encoding: br",
        "x-api-key: abc",
        "authorization: Basic abc",
        "x-request-id: abc",
        "x-openwebui-chat-id: 5",
        "idempotency-key: k",
        "expect: 100-continue",
        "connection: close",
    ],
)
async def test_what_a_head_was_answered_with_it_is_answered_with_again(line: str) -> None:
    usual = ("host: gateway", "content-type: application/json")
    lines = [one for one in usual if not one.startswith(line.partition(":")[0])] + [line]
    body = json.dumps(chat("chain"), separators=(",", ":")).encode()
    head = "".join(f"{one}\r\n" for one in lines).encode() + b"content-length: %d\r\n\r\n" % len(body)
    async with house() as h:
        found = set()
        for _ in range(5):
            async with raw_client(h.gateway.url) as client:
                await client.send(f"POST {PATH} HTTP/1.1\r\n".encode() + head + body)
                if line.startswith("expect"):
                    await client.until(b"100 Continue\r\n\r\n")
                found.add((await client.answer())[0])
        assert len(found) == 1
