"""No byte of a request's body is ever read as a request, whatever its head says and however early it is answered; what
two readers could understand differently is refused."""

from __future__ import annotations

import itertools

import pytest

from tests.listening import CHAT, HEALTH, LAST, chat_body, listening, request, said, statuses
from tests.raw_client import raw_client

SMUGGLED = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
FOUND = b'{"version"'
KEYS = "clients: {c: {key: the-right-key}}"

UPGRADES = {
    "plain": (),
    "websocket": ("connection: Upgrade", "upgrade: websocket"),
    "x": ("Connection: upgrade", "Upgrade: x"),
    "h2c": ("connection: Upgrade, HTTP2-Settings", "http2-settings: AAMAAABkAARAAAAAAAIAAAAA", "upgrade: h2c"),
}
# (method, path, content-encoding or none, longer than `max_body`)
EARLY = {
    "health": ("GET", "/health", "", False),
    "models": ("GET", "/v1/models", "", False),
    "not found": ("POST", "/nowhere", "", False),
    "wrong method": ("PUT", "/health", "", False),
    "wrong method of chat": ("PUT", CHAT, "", False),
    "head": ("HEAD", "/health", "", False),
    "options": ("OPTIONS", "/health", "", False),
    "count tokens": ("POST", "/v1/messages/count_tokens", "", False),
    "count tokens, too long": ("POST", "/v1/messages/count_tokens", "", True),
    "tokenize": ("POST", "/tokenize", "", False),
    "detokenize, too long": ("POST", "/v1/detokenize", "", True),
    "no json": ("POST", CHAT, "", False),
    "messages": ("POST", "/v1/messages", "", False),
    "escaped": ("POST", "/v1/chat%2Fcompletions", "", False),
    "brotli": ("POST", CHAT, "br", False),
    "too long": ("POST", CHAT, "", True),
    "too long for nobody": ("POST", "/nowhere", "", True),
    "explain": ("POST", "/admin/explain", "", True),
    "page": ("GET", "/", "", False),
}


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("clients", ["", KEYS], ids=["open", "no key"])
async def test_a_body_is_no_request(upgrade: str, clients: str, chunked: bool) -> None:
    async with listening(clients) as (gateway, _):
        for kind, (method, path, encoding, long) in EARLY.items():
            body = SMUGGLED * (800 if long else 2)
            fields = UPGRADES[upgrade] + ((f"content-encoding: {encoding}",) if encoding else ())
            sent = request(method, path, body, *fields, chunked=chunked)
            head, _, rest = sent.partition(b"\r\n\r\n")
            for pieces in ([sent + LAST], [head + b"\r\n\r\n", rest + LAST]):
                answers = await said(gateway, *pieces, apart=len(pieces) > 1)
                assert FOUND not in answers, kind
                assert 1 <= len(statuses(answers)) <= 2, (kind, answers)


@pytest.mark.parametrize("upgrade", UPGRADES)
async def test_an_offered_upgrade_is_declined_and_the_connection_goes_on(upgrade: str) -> None:
    async with listening() as (gateway, sim):
        fields = UPGRADES[upgrade]
        chat = request("POST", CHAT, chat_body(), *fields)
        chunked = request("POST", CHAT, chat_body(stream=True), *fields, chunked=True)
        answers = await said(gateway, chat + chunked + request("GET", "/health", b"", *fields) + chat + LAST)
        assert statuses(answers) == [200] * 5
        assert len(sim.requests) == 3


async def test_an_upgrade_of_a_request_without_a_body_takes_no_bytes() -> None:
    async with listening() as (gateway, _):
        head = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        answers = await said(gateway, head + SMUGGLED + LAST)
        assert statuses(answers) == [200, 200, 200]  # it was the next request, as any reader must see it


async def test_an_answer_before_the_end_of_the_body_is_the_last() -> None:
    async with listening() as (gateway, _), raw_client(gateway.url) as client:
        await client.send(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        head = await client.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404 ")
        assert b"connection: close\r\n" in head
        await client.rest()
        await client.send(SMUGGLED * 40)
        gateway.server.listener.check_deadlines(0)
        assert gateway.server.server_state.total_requests == 1


async def test_expect_100_continue_with_an_early_answer() -> None:
    async with listening() as (gateway, _):
        for path, length, wanted in ((CHAT, 10**9, 413), ("/nowhere", 50, 404), ("/health", 50, 405)):
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
            answers = await said(gateway, head.encode(), SMUGGLED * 3, apart=True)
            assert statuses(answers) == [wanted], path
            assert b"100 Continue" not in answers
            assert b"connection: close\r\n" in answers


@pytest.mark.parametrize("size", [200_000, 5_000_000])
async def test_the_refusal_of_a_long_body_can_be_read_after_it_was_sent(size: int) -> None:
    """A connection that is closed with bytes unread is reset, and the answer lost."""
    async with listening() as (gateway, _):
        for path, wanted in ((CHAT, 413), ("/nowhere", 404), ("/v1/messages/count_tokens", 413), ("/health", 405)):
            for chunked in (False, True):
                sent = request("POST", path, b"x" * size, chunked=chunked)
                assert statuses(await said(gateway, sent)) == [wanted], (path, chunked)


async def test_a_body_that_the_app_reads_has_the_same_limit() -> None:
    async with listening() as (gateway, _):
        for chunked in (False, True):
            sent = request("POST", "/admin/explain", b"x" * 3_000_000, chunked=chunked)
            answers = await said(gateway, sent.replace(b"host: x", b"host: localhost"))
            assert statuses(answers) == [413]


def head(*lines: str, first: str = f"POST {CHAT} HTTP/1.1") -> bytes:
    return "\r\n".join([first, "host: x", *lines, "", ""]).encode("latin-1")


CHUNKED = "transfer-encoding: chunked"
ODD = {
    "length and chunked": head("content-length: 5", CHUNKED),
    "chunked and length": head(CHUNKED, "content-length: 5"),
    "two lengths": head("content-length: 5", "content-length: 6"),
    "two equal lengths": head("content-length: 5", "content-length: 5"),
    "list of lengths": head("content-length: 5, 5"),
    "plus": head("content-length: +5"),
    "minus": head("content-length: -5"),
    "hex": head("content-length: 0x5"),
    "space inside": head("content-length: 5 5"),
    "empty length": head("content-length:"),
    "digits of another script": head("content-length: \u00b2"),
    "xchunked": head("transfer-encoding: xchunked"),
    "chunked, identity": head("transfer-encoding: chunked, identity"),
    "identity": head("transfer-encoding: identity"),
    "gzip, chunked": head("transfer-encoding: gzip, chunked"),
    "chunked, chunked": head("transfer-encoding: chunked, chunked"),
    "chunked twice": head(CHUNKED, CHUNKED),
    "chunked then identity": head(CHUNKED, "transfer-encoding: identity"),
    "quoted": head('transfer-encoding: "chunked"'),
    "vertical tab": head("transfer-encoding: \x0bchunked"),
    "empty coding": head("transfer-encoding:"),
    "chunked of 1.0": head(CHUNKED, first=f"POST {CHAT} HTTP/1.0"),
    "two hosts": head("host: y"),
    "folded": head("x-a: b", " c: d"),
    "folded first": b"GET /health HTTP/1.1\r\n host: x\r\n\r\n",
    "folded length": head("content-length:", " 5"),
    "space before colon": head("content-length : 5"),
    "tab before colon": head("transfer-encoding\t: chunked"),
    "no colon": head("nonsense"),
    "no name": head(": value"),
    "name with a bracket": head("content-length[]: 5"),
    "name beyond ascii": head("content-l\u00e9ngth: 5"),
    "bare lf": b"GET /health HTTP/1.1\nhost: x\n\n",
    "bare lf in the head": b"GET /health HTTP/1.1\r\nx: y\nhost: x\r\n\r\n",
    "bare lf at the end": b"GET /health HTTP/1.1\r\nhost: x\n\r\n",
    "bare cr": b"GET /health HTTP/1.1\r\nx: y\rcontent-length: 5\r\n\r\n",
    "cr cr lf": b"GET /health HTTP/1.1\r\nhost: x\r\r\n\r\n",
    "nul in a value": head("x: a\0b"),
    "nul in a name": head("x\0: a"),
    "delete": head("x: a\x7f"),
    "nul in the path": b"GET /hea\0lth HTTP/1.1\r\nhost: x\r\n\r\n",
    "two spaces": b"GET  /health HTTP/1.1\r\nhost: x\r\n\r\n",
    "tab": b"GET\t/health HTTP/1.1\r\nhost: x\r\n\r\n",
    "four words": b"GET /health x HTTP/1.1\r\nhost: x\r\n\r\n",
    "space at the end": b"GET /health HTTP/1.1 \r\nhost: x\r\n\r\n",
    "lower case": b"get /health HTTP/1.1\r\nhost: x\r\n\r\n",
    "0.9": b"GET /health\r\n",
    "1.2": b"GET /health HTTP/1.2\r\nhost: x\r\n\r\n",
    "01.1": b"GET /health HTTP/01.1\r\nhost: x\r\n\r\n",
    "http/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "path without slash": b"GET health HTTP/1.1\r\nhost: x\r\n\r\n",
    "authority": b"GET x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    "fragment": b"GET /health#x HTTP/1.1\r\nhost: x\r\n\r\n",
    "path beyond ascii": "GET /h\u00e9alth HTTP/1.1\r\nhost: x\r\n\r\n".encode(),
    "another host's url": b"GET http://y/health HTTP/1.1\r\nhost: x\r\n\r\n",
    "url with a user": b"GET http://a@x/health HTTP/1.1\r\nhost: x\r\n\r\n",
    "url of another scheme": b"GET ftp://x/health HTTP/1.1\r\nhost: x\r\n\r\n",
    "blank lines": b"\r\n\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n",
    "chunk without a size": head(CHUNKED) + b"\r\n",
    "chunk size beyond hex": head(CHUNKED) + b"g\r\n",
    "chunk size with 0x": head(CHUNKED) + b"0x5\r\nhello\r\n0\r\n\r\n",
    "chunk size with a sign": head(CHUNKED) + b"+5\r\nhello\r\n0\r\n\r\n",
    "chunk size with a space": head(CHUNKED) + b"5 \r\nhello\r\n0\r\n\r\n",
    "chunk size of 17 digits": head(CHUNKED) + b"1" * 17 + b"\r\n",
    "chunk size ended by lf": head(CHUNKED) + b"5\nhello\r\n0\r\n\r\n",
    "chunk that is longer": head(CHUNKED) + b"5\r\nhello!\r\n0\r\n\r\n",
    "chunk ended by lf": head(CHUNKED) + b"5\r\nhello\n0\r\n\r\n",
    "chunk extension with lf": head(CHUNKED) + b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "last chunk ended by lf": head(CHUNKED) + b"5\r\nhello\r\n0\n\n",
    "trailer without a colon": head(CHUNKED) + b"0\r\nnonsense\r\n\r\n",
    "trailer ended by lf": head(CHUNKED) + b"0\r\na: b\n\r\n",
    "folded trailer": head(CHUNKED) + b"0\r\na: b\r\n c\r\n\r\n",
}


@pytest.mark.parametrize("apart", [False, True])
async def test_what_could_be_understood_in_two_ways_is_refused(apart: bool) -> None:
    async with listening() as (gateway, sim):
        for kind, odd in ODD.items():
            pieces = [odd[:-1], odd[-1:], SMUGGLED] if apart else [odd + SMUGGLED + LAST]
            answers = await said(gateway, *pieces, apart=apart)
            assert statuses(answers) == [400], kind
            assert b"connection: close\r\n" in answers, kind
            assert b'"error":{"message":' in answers, kind
            assert FOUND not in answers, kind
        assert not sim.requests


CLEAR = (
    head("content-length: \t 5 ", first="POST /nowhere HTTP/1.1") + b"hello",
    head("Content-LENGTH: 005", first="POST /nowhere HTTP/1.1") + b"hello",
    head("transfer-encoding: Chunked", first="POST /nowhere HTTP/1.1") + b'5;a=b;c="d"\r\nhello\r\n00\r\nx: y\r\n\r\n',
    b"\r\n" + head(first="GET /nowhere HTTP/1.1"),
    head(first="GET http://X/nowhere?a=b HTTP/1.1"),
    b"GET https://x HTTP/1.1\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
)


async def test_what_is_unusual_but_clear_is_answered() -> None:
    async with listening() as (gateway, _):
        for sent in CLEAR:
            first, last = statuses(await said(gateway, sent + LAST))
            assert (first in (200, 404), last) == (True, 200), sent


async def test_connect_is_refused_and_its_tunnel_not_read() -> None:
    async with listening() as (gateway, _):
        answers = await said(gateway, b"CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n" + SMUGGLED)
        assert statuses(answers) == [405]
        assert FOUND not in answers


async def test_requests_split_anywhere_are_the_same_requests() -> None:
    async with listening() as (gateway, _):
        sent = HEALTH + request("POST", "/nowhere", b"0\r\n\r\n", chunked=True) + LAST
        for at in range(1, len(sent)):
            parts = sent[:at], sent[at:]
            async with raw_client(gateway.url) as client:
                await client.send(parts[0])
                await gateway.client.get("/version")  # the first part was read
                await client.send(parts[1])
                found = statuses(await client.rest())
            assert found in ([200, 404, 200], [200, 404]), (at, found)


async def test_a_proxy_that_keeps_one_connection_for_all_gives_nobody_the_answer_of_another() -> None:
    """As nginx with its usual websocket map: the attacker's body, then the victim's request."""
    async with listening(KEYS) as (gateway, _):
        for method, path in itertools.product(("GET", "POST"), ("/health", "/v1/models", "/nowhere")):
            attack = request(method, path, SMUGGLED, "connection: upgrade", "upgrade: x")
            victim = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer the-right-key\r\n\r\n"
            async with raw_client(gateway.url) as client:
                await client.send(attack)
                await client.until(b"\r\n\r\n")
                try:
                    await client.send(victim + LAST)
                    rest = await client.rest()
                except ConnectionError:
                    continue  # closed: the proxy asks again on another one
            assert FOUND not in rest
            assert b'"object":"list"' in rest or statuses(rest) == []
