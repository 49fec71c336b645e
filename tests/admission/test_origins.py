"""Pages of other sites, names that only lead here, and proxies: what a browser can be made to send gets nowhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.origins import is_foreign, is_from_here, is_json, is_own_host
from gateway.domain.endpoints import ENDPOINTS
from simulator import SimVllm
from tests.raw_client import chat, raw_client
from tests.support import RunningGateway, running_gateway

OPS, HERMES = "ops-key-1", "hermes-key-2"
CLIENTS = f"clients: {{ops: {{key: '{OPS}', admin: true}}, hermes: {{key: '{HERMES}'}}}}\n"
KEY = {"authorization": f"Bearer {OPS}"}
CHAT = "/v1/chat/completions"
POSTS = [prefix + endpoint.path for endpoint in ENDPOINTS for prefix in ("/v1", "")]
POSTS += ["/v1/messages/count_tokens", "/messages/count_tokens"]
OLLAMAS = [path for path in POSTS if "/api/" in path]
TELLING = [
    "/status",
    "/status/history",
    "/status/usage",
    "/events",
    "/v1/models",
    "/models",
    "/v1/models/w",
    "/metrics",
]
ACTING = [
    f"/admin/{path}" for path in ("backends/a/drain", "backends/a/resume", "backends/a/probe", "reload", "explain")
]


@asynccontextmanager
async def gateway_of(more: str = "") -> AsyncIterator[tuple[RunningGateway, SimVllm]]:
    sim = SimVllm("a")
    async with (
        sim.serve() as url,
        running_gateway(f"{more}backends: {{a: {{url: '{url}'}}}}\naliases: {{w: [a]}}\n") as gateway,
    ):
        await gateway.until_ready("a")
        yield gateway, sim


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def status_of(gateway: RunningGateway, path: str, headers: dict[str, str]) -> int:
    """Of a GET, without waiting for the end of a stream."""
    async with gateway.client.stream("GET", path, headers=headers) as answer:
        return answer.status_code


def error_of(answer: httpx.Response) -> str:
    """The code in any envelope."""
    told = answer.json()
    return str(told["code"] if isinstance(told["error"], str) else told["error"]["code"])


# -- Origin -----------------------------------------------------------------------------------------------------------

FOREIGN = ["http://evil.example", "https://evil.example:443", "null", "", "http://127.0.0.1:1", "http://localhost", "x"]
FOREIGN += [
    "file://",
    "chrome-extension://abcdef",
    "http://{host}.evil.example",
    "http://{host}@evil.example",
    "{host}",
]
FOREIGN += ["http://{host}/", "http://evil.example, http://{host}"]


@pytest.mark.parametrize("clients", ["", CLIENTS], ids=["open", "keys"])
async def test_a_page_of_another_site_runs_reads_and_changes_nothing(clients: str) -> None:
    async with gateway_of(clients) as (gateway, sim):
        host = urlsplit(gateway.url).netloc
        for given_origin in FOREIGN:
            headers = {**KEY, "origin": given_origin.format(host=host)}
            for path in POSTS:
                answer = await gateway.client.post(path, json={**chat("w"), "max_tokens": 5}, headers=headers)
                assert (answer.status_code, error_of(answer)) == (403, "foreign_origin"), (path, given_origin)
            for path in TELLING:
                assert code(await gateway.client.get(path, headers=headers)) == (403, "foreign_origin"), path
            for path in ACTING:
                assert code(await gateway.client.post(path, headers=headers)) == (403, "foreign_origin"), path
        assert not sim.requests
        assert gateway.gateway.fleet["a"].health.usable(0.0)


@pytest.mark.parametrize("clients", ["", CLIENTS], ids=["open", "keys"])
async def test_the_gateways_own_page_and_programs_are_served(clients: str) -> None:
    async with gateway_of(clients) as (gateway, _):
        for headers in (KEY, {**KEY, "origin": gateway.url}, {**KEY, "origin": gateway.url.upper()}):
            assert (await gateway.client.post(CHAT, json=chat("w"), headers=headers)).status_code == 200
            for path in TELLING:
                assert await status_of(gateway, path, headers) == 200, path
            assert (await gateway.client.post("/admin/backends/a/resume", headers=headers)).status_code == 200


async def test_no_page_is_ever_given_leave_to_read() -> None:
    async with gateway_of() as (gateway, _):
        asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
        for path in (CHAT, "/status", "/admin/reload", "/v1/models"):
            answer = await gateway.client.options(path, headers=asked)
            assert answer.status_code == 405
            assert not [name for name in answer.headers if name.startswith("access-control")]


# -- Host -------------------------------------------------------------------------------------------------------------

OWN = [
    "127.0.0.1",
    "127.0.0.1:4000",
    "192.168.1.11:4000",
    "8.8.8.8",
    "[::1]:4000",
    "[fe80::1]",
    "localhost",
    "LOCALHOST:80",
]
OWN += [
    "gateway:4000",
    "spark_gateway",
    "spark1.",
    "spark1.local",
    "a.b.lan:4000",
    "gw.home.arpa",
    "x.internal:1",
    "a.localhost",
]
OTHERS = [
    "evil.example",
    "evil.example:4000",
    "localhost.evil.example",
    "127.0.0.1.nip.io",
    "127.0.0.1.evil.example:4000",
]
OTHERS += [
    "lan",
    "local.",
    "evil.example.",
    "evillan.example",
    "x.lan.evil.example",
    "[::1].evil.example",
    "localhost@evil.example",
]
OTHERS += [
    "evil.example,localhost",
    "localhost, evil.example",
    "[evil.example]",
    "é.lan",
    "localhost:4000:1",
    "spark.lan:x",
    ".lan",
]
OTHERS = [host for host in OTHERS if host not in ("lan", "local.")]  # names without a dot


@pytest.mark.parametrize("host", OWN)
def test_addresses_and_names_of_the_lan_are_the_gateways_own(host: str) -> None:
    assert is_own_host(host.encode())


@pytest.mark.parametrize("host", OTHERS)
def test_hosts_of_other_names_are_refused(host: str) -> None:
    assert not is_own_host(host.encode("latin-1"))


label = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)


@given(
    st.lists(label, min_size=1, max_size=3),
    st.sampled_from(["com", "example", "io", "org", "net", "dev"]),
    st.booleans(),
)
def test_no_public_name_is_the_gateways_own_until_it_is_listed(labels: list[str], top: str, port: bool) -> None:
    name = ".".join([*labels, top])
    host = (name.upper() + (":4000" if port else "")).encode()
    assert not is_own_host(host)
    assert is_own_host(host, (name,))
    assert not is_own_host(b"x." + host, (name,))


@given(st.ip_addresses(), st.sampled_from(["", ":1", ":4000"]))
def test_every_address_is(address: object, port: str) -> None:
    text = f"[{address}]" if ":" in str(address) else str(address)
    assert is_own_host((text + port).encode())


@given(st.binary(max_size=30))
def test_any_host_is_judged(host: bytes) -> None:
    assert is_own_host(host) in (True, False)


async def test_a_name_that_was_made_to_lead_here_runs_and_reads_nothing() -> None:
    async with gateway_of() as (gateway, sim):
        for name in ("evil.example:4000", "127.0.0.1.nip.io"):
            for headers in ({"host": name}, {"host": name, "origin": f"http://{name}"}):
                for path in POSTS:
                    answer = await gateway.client.post(path, json={**chat("w"), "max_tokens": 5}, headers=headers)
                    assert (answer.status_code, error_of(answer)) == (403, "foreign_host"), path
                for path in TELLING:
                    assert code(await gateway.client.get(path, headers=headers)) == (403, "foreign_host"), path
                for path in ACTING:
                    assert (await gateway.client.post(path, headers=headers)).status_code == 403, path
                ready = await gateway.client.get("/ready", headers=headers)
                assert (ready.status_code, ready.json()) == (200, {"status": "ready"}), "balancers ask by any name"
        assert not sim.requests
        for name in ("localhost:1", "192.168.1.11", "spark1.lan", "gateway:4000"):
            assert (await gateway.client.post(CHAT, json=chat("w"), headers={"host": name})).status_code == 200


async def test_where_no_host_is_sent_it_is_not_checked() -> None:
    async with gateway_of() as (gateway, _):
        for version in ("1.0", "1.1"):
            async with raw_client(gateway.url) as client:
                await client.send(f"GET /v1/models HTTP/{version}\r\nconnection: close\r\n\r\n".encode())
                assert b"200 OK" in await client.rest()
        async with raw_client(gateway.url) as client:
            await client.send(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n")
            assert (await client.answer())[0] == 400


async def test_further_names_are_listed_under_server_hosts() -> None:
    async with gateway_of("server: {hosts: [SparkGW.example.com]}\n") as (gateway, _):
        for name, status in (("sparkgw.example.com:4000", 200), ("SPARKGW.example.com.", 200), ("localhost", 200)):
            assert await status_of(gateway, "/status", {"host": name}) == status
        for name in ("other.example.com", "x.sparkgw.example.com", "example.com"):
            assert await status_of(gateway, "/status", {"host": name}) == 403


async def test_with_clients_names_are_checked_only_where_they_are_listed() -> None:
    async with gateway_of(CLIENTS) as (gateway, _):
        assert await status_of(gateway, "/status", {**KEY, "host": "any.example"}) == 200
        assert await status_of(gateway, "/status", {"host": "any.example"}) == 401
    async with gateway_of(CLIENTS + "server: {hosts: [gw.example]}\n") as (gateway, _):
        assert await status_of(gateway, "/status", {**KEY, "host": "any.example"}) == 403
        for name in ("gw.example", "127.0.0.1:4000", "gateway"):
            assert await status_of(gateway, "/status", {**KEY, "host": name}) == 200


# -- content-type -----------------------------------------------------------------------------------------------------

JSON = ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8", "text/json"]
JSON += ["application/vnd.api+json", "application/problem+json; a=b"]
NOT_JSON = [
    "text/plain",
    "text/plain;charset=UTF-8",
    "text/plain; application/json",
    "application/x-www-form-urlencoded",
]
NOT_JSON += ["multipart/form-data; boundary=x", "application/octet-stream", "json", "application/jsonx", "text/html"]
NOT_JSON += ["text/plain, application/json", "application/json, text/plain", "text/x+json", "application/x-ndjson"]


@pytest.mark.parametrize("clients", ["", CLIENTS], ids=["open", "keys"])
async def test_only_json_is_read_as_json(clients: str) -> None:
    async with gateway_of(clients) as (gateway, sim):
        for kind in NOT_JSON:
            for path in POSTS:
                body = b'{"model": "w", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}'
                headers = {**KEY, "content-type": kind}
                if path in OLLAMAS:  # reads any program's body as JSON, but no browser's
                    headers |= {"sec-fetch-site": "same-origin"}
                answer = await gateway.client.post(path, content=body, headers=headers)
                assert (answer.status_code, error_of(answer)) == (415, "unsupported_media_type"), (path, kind)
                assert "application/json" in answer.text
            for path in ("/admin/explain", "/admin/reload", "/admin/backends/a/drain"):
                answer = await gateway.client.post(path, content=b"{}", headers={**KEY, "content-type": kind})
                assert code(answer) == (415, "unsupported_media_type"), (path, kind)
        assert not sim.requests
        for kind in JSON:
            answer = await gateway.client.post(
                CHAT,
                content=httpx.Request("POST", "http://x", json=chat("w")).content,
                headers={**KEY, "content-type": kind},
            )
            assert answer.status_code == 200, kind


async def test_a_request_without_a_body_or_a_type_needs_no_content_type() -> None:
    async with gateway_of() as (gateway, _):
        body = httpx.Request("POST", "http://x", json=chat("w")).content
        assert (await gateway.client.post(CHAT, content=body)).status_code == 200
        for headers in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
            answer = await gateway.client.post("/admin/backends/a/resume", headers=headers)
            assert answer.status_code == 200


@given(
    st.sampled_from(["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]), st.text(max_size=20)
)
def test_content_types_that_a_page_may_send_unasked_are_no_json(kind: str, rest: str) -> None:
    assert not is_json(f"{kind};{rest}".encode())
    assert not is_json(f"{kind}{rest}".encode()) or rest.endswith("+json")


# -- proxies ----------------------------------------------------------------------------------------------------------

PROXIED = [
    "forwarded: for=203.0.113.9",
    "x-forwarded-for: 203.0.113.9",
    "X-Forwarded-Host: gw",
    "x-forwarded-proto: https",
]
PROXIED += [
    "x-forwarded: 1",
    "x-forwarded-port: 443",
    "x-real-ip: 203.0.113.9",
    "via: 1.1 proxy",
    "cf-connecting-ip: 1.2.3.4",
]
PROXIED += ["x-forwarded-for:", "x-forwarded-for: 127.0.0.1", "true-client-ip: 1.2.3.4"]


async def test_a_request_that_a_proxy_passed_on_is_not_of_this_machine() -> None:
    async with gateway_of() as (gateway, _):
        for line in PROXIED:
            name, _, value = line.partition(":")
            for path in ACTING:
                answer = await gateway.client.post(path, headers={name: value.strip()}, json={"alias": "w"})
                assert code(answer) == (403, "admin_only"), (path, line)
            told = (await gateway.client.get("/status", headers={name: value.strip()})).json()
            assert told["you"] == {"client": None, "admin": False}
            assert (await gateway.client.post(CHAT, json=chat("w"), headers={name: "x"})).status_code == 200
        assert (await gateway.client.post("/admin/backends/a/resume")).status_code == 200


async def test_http_1_0_is_taken_for_a_proxy() -> None:
    """nginx speaks it to its upstreams, and adds no header of its own."""
    async with gateway_of() as (gateway, _):
        for version, status in (("1.0", b"403"), ("1.1", b"200")):
            async with raw_client(gateway.url) as client:
                head = f"POST /admin/backends/a/resume HTTP/{version}\r\nhost: 127.0.0.1:4000\r\nconnection: close\r\n"
                await client.send(f"{head}content-length: 0\r\n\r\n".encode())
                assert (await client.rest()).startswith(b"HTTP/1.1 " + status)


async def test_with_clients_an_admins_key_is_enough_behind_a_proxy() -> None:
    async with gateway_of(CLIENTS) as (gateway, _):
        for line in PROXIED:
            name, _, value = line.partition(":")
            headers = {**KEY, name: value.strip()}
            assert (await gateway.client.post("/admin/backends/a/resume", headers=headers)).status_code == 200


# -- parts ------------------------------------------------------------------------------------------------------------


def test_an_origin_without_a_host_is_foreign() -> None:
    for origin in ("null", "", "://", "http://", "http://a"):
        assert is_foreign(origin, "")
    assert not is_foreign(None, "")


def test_a_default_port_may_be_left_out_of_either() -> None:
    assert not is_foreign("http://gw.lan", "gw.lan:80")
    assert not is_foreign("https://gw.lan:443", "GW.lan")
    assert is_foreign("http://gw.lan", "gw.lan:443")
    assert is_foreign("https://gw.lan", "gw.lan:80")
    assert is_foreign("http://gw.lan", "gw.lan:4000")


def test_only_a_loopback_peer_that_asks_for_this_machine_is_from_here() -> None:
    assert is_from_here({b"host": b"localhost:4000"}, "127.0.0.1")
    assert is_from_here({b"host": b"[::1]:4000"}, "::1")
    assert not is_from_here({b"host": b"localhost:4000"}, "192.168.1.30")
    assert not is_from_here({b"host": b"gateway.lan"}, "127.0.0.1")
    assert not is_from_here({}, "127.0.0.1")
