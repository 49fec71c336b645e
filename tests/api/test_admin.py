"""`POST /admin/backends/{name}/probe`: what it answers, and to whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.admission.origins import hostname, is_foreign, is_loopback
from gateway.health.checks import ALL
from simulator import SimVllm
from tests.support import RunningGateway, running_gateway

OPS, HERMES = "ops-key-1", "hermes-key-2"
CLIENTS = f"clients: {{ops: {{key: '{OPS}', admin: true}}, hermes: {{key: '{HERMES}'}}}}"
PROBE = "/admin/backends/chat/probe"
NDJSON = {"accept": "application/x-ndjson"}


@asynccontextmanager
async def gateway_of(sim: SimVllm, more: str = "", declared: str = "") -> AsyncIterator[RunningGateway]:
    async with (
        sim.serve() as url,
        running_gateway(f"backends: {{chat: {{url: '{url}'{declared}}}}}\n{more}") as gateway,
    ):
        await gateway.until_ready("chat")
        yield gateway


def chat(**more: Any) -> SimVllm:
    return SimVllm(**{"name": "chat", "served": ["Qwen3-4B-Instruct-2507"], "context": 8192, **more})


def refused(answer: httpx.Response) -> tuple[int, str]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return answer.status_code, error["code"]


# -- what it answers --------------------------------------------------------------------------------------------------


async def test_the_findings_are_told_and_count_from_then_on() -> None:
    async with gateway_of(chat(tool_parser=None), declared=", tool_parser: hermes") as gateway:
        findings = (await gateway.client.post(PROBE)).json()
        head = {key: findings[key] for key in ("backend", "engine", "model", "state")}
        assert head == {"backend": "chat", "engine": "vllm", "model": "Qwen3-4B-Instruct-2507", "state": "ready"}
        assert list(findings["checks"]) == list(ALL)
        assert findings["checks"]["plain"]["result"] == "yes"
        assert [problem.partition(":")[0] for problem in findings["problems"]] == [
            "tool_auto", "tool_required", "tool_named"
        ]  # fmt: skip
        assert any("tool_parser: hermes is declared" in line for line in findings["drift"])
        assert gateway.gateway.fleet["chat"].facts.observed["tool_auto"].result == "no"
        metrics = (await gateway.client.get("/metrics")).text
        assert 'gateway_canary{backend="chat",check="plain"} 1.0' in metrics
        assert 'gateway_canary{backend="chat",check="tool_auto"} 0.0' in metrics
        assert 'check="reasoning"' not in metrics


async def test_the_checks_are_told_one_by_one_to_who_wants_lines() -> None:
    async with gateway_of(chat()) as gateway:
        answer = await gateway.client.post(PROBE, headers=NDJSON)
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        *lines, last = (json.loads(line) for line in answer.text.splitlines())
        assert [line["check"] for line in lines] == list(ALL)
        assert last["checks"]["plain"] == {key: lines[0][key] for key in ("result", "seen", "at")}


async def test_lines_come_while_it_runs_and_a_second_asker_gets_the_same_probe() -> None:
    sim = chat()
    async with gateway_of(sim) as gateway:
        sim.fault("hang_engine")
        first = asyncio.create_task(gateway.client.post(PROBE))
        await sim.wait_inflight(1)
        async with gateway.client.stream("POST", PROBE, headers=NDJSON) as second:
            sim.clear()
            lines = [json.loads(line) async for line in second.aiter_lines()]
        assert (await first).json() == lines[-1]
        assert [line["check"] for line in lines[:-1]] == list(ALL)
        assert len(sim.requests) == 10  # one probe, of a model that never thinks


async def test_it_goes_on_when_the_asker_leaves() -> None:
    sim = chat()
    async with gateway_of(sim) as gateway:
        sim.fault("hang_engine")
        task = asyncio.create_task(gateway.client.post(PROBE))
        await sim.wait_inflight(1)
        task.cancel()
        sim.clear()
        await gateway.until(lambda: "window" in gateway.gateway.fleet["chat"].facts.observed)


@pytest.mark.parametrize("lines", [False, True])
async def test_it_does_not_hold_up_a_gateway_that_stops(lines: bool) -> None:
    sim = chat()
    async with gateway_of(sim) as gateway:
        sim.fault("hang_engine")
        task = asyncio.create_task(gateway.client.post(PROBE, headers=NDJSON if lines else {}))
        await sim.wait_inflight(1)
        gateway.gateway.begin_stop()
        answer = await task
        if lines:
            assert answer.text == ""  # no findings
        else:
            assert refused(answer) == (503, "no_backend_available")
        await sim.wait_aborted(1)


async def test_a_busy_backend_is_waited_for_unless_asked_now() -> None:
    async with gateway_of(chat()) as gateway:
        state = gateway.gateway.fleet["chat"]
        state.inflight = 1
        assert (await gateway.client.post(PROBE + "?now=1")).json()["checks"]["plain"]["result"] == "yes"
        task = asyncio.create_task(gateway.client.post(PROBE))
        state.inflight = 0
        assert (await task).json()["checks"]["plain"]["result"] == "yes"


async def test_a_backend_that_is_not_there_is_a_404_with_a_hint() -> None:
    async with gateway_of(chat()) as gateway:
        answer = await gateway.client.post("/admin/backends/chatt/probe")
        assert refused(answer) == (404, "not_found")
        assert answer.json()["error"]["message"] == "There is no backend 'chatt'. Did you mean 'chat'?"
        assert (await gateway.client.get(PROBE)).status_code == 405


# -- to whom ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
async def test_with_clients_only_an_admin_is_answered(header: str) -> None:
    def with_key(key: str) -> dict[str, str]:
        return {header: f"Bearer {key}" if header == "authorization" else key}

    sim = chat()
    async with gateway_of(sim, CLIENTS) as gateway:
        assert refused(await gateway.client.post(PROBE)) == (401, "invalid_api_key")
        assert refused(await gateway.client.post(PROBE, headers=with_key("nobody"))) == (401, "invalid_api_key")
        assert refused(await gateway.client.post(PROBE, headers=with_key(HERMES))) == (403, "admin_only")
        assert refused(await gateway.client.post("/admin/backends/x/probe")) == (
            401,
            "invalid_api_key",
        )  # tells nothing
        assert not sim.requests
        assert (await gateway.client.post(PROBE, headers=with_key(OPS))).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://[", ""])
@pytest.mark.parametrize("clients", ["", CLIENTS], ids=["open", "keys"])
async def test_a_page_of_another_site_is_refused(origin: str, clients: str) -> None:
    sim = chat()
    async with gateway_of(sim, clients) as gateway:
        headers = {"origin": origin, "authorization": f"Bearer {OPS}"}
        assert refused(await gateway.client.post(PROBE, headers=headers)) == (403, "foreign_origin")
        assert not sim.requests
        assert (await gateway.client.post(PROBE, headers={**headers, "origin": gateway.url})).status_code == 200


async def test_without_clients_a_name_that_only_leads_here_is_refused() -> None:
    """A page at evil.example whose name is made to resolve to 127.0.0.1 has an Origin that equals its Host."""
    async with gateway_of(chat()) as gateway:
        headers = {"host": "evil.example:4000", "origin": "http://evil.example:4000"}
        assert refused(await gateway.client.post(PROBE, headers=headers)) == (403, "admin_only")
        assert (await gateway.client.post(PROBE, headers={"host": "localhost:4000"})).status_code == 200


async def test_without_clients_other_machines_are_refused() -> None:
    async with gateway_of(chat()) as gateway:
        transport = httpx.ASGITransport(gateway.app, client=("192.168.1.30", 5555))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:4000") as other:
            assert refused(await other.post(PROBE)) == (403, "admin_only")


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("localhost", True),
     ("192.168.1.11", False), ("fe80::1%eth0", False), ("spark1", False), ("localhost.evil.example", False),
     ("", False)],
)  # fmt: skip
def test_what_means_this_machine(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_the_parts_of_host_and_origin() -> None:
    assert [hostname(host) for host in ("localhost:4000", "[::1]:4000", "[::1", "")] == ["localhost", "::1", "", ""]
    assert not is_foreign(None, "a:4000")
    assert not is_foreign("http://A:4000", "a:4000")
    assert is_foreign("http://a:4001", "a:4000")
