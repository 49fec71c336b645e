"""The numbers behind the page: `/status`' own, `/status/history`, `/status/usage`, and samples in `/events`."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.apps.page import history, status
from gateway.domain.health_state import State
from simulator import SimVllm
from tests.apps.page.test_status import FAST, Reader, asked, body, two
from tests.support import PATIENCE, RunningGateway, running_gateway

CLIENTS = """
clients:
  ops: {key: ops-key, admin: true}
  hermes: {key: hermes-key, budget: 1 USD/day}
  webui: {key: webui-key, budget: 2 USD/day}
"""
OPS, HERMES = {"x-api-key": "ops-key"}, {"x-api-key": "hermes-key"}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "EVERY", 0.05)
    monkeypatch.setattr(status, "LOOK", 0.02)


async def chat(gateway: RunningGateway, **headers: str) -> None:
    answer = await gateway.client.post("/v1/chat/completions", json=body(), headers=headers)
    assert answer.status_code == 200


async def got(gateway: RunningGateway, path: str, **headers: str) -> Any:
    answer = await gateway.client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


async def test_status_has_what_was_measured() -> None:
    async with two() as (gateway, _, _):
        await chat(gateway)
        latest = gateway.gateway.apps.page.latest
        await gateway.until(
            lambda: gateway.gateway.apps.page.latest["aliases"].get("w", {}).get("ttft_p50") is not None
        )
        assert latest is not gateway.gateway.apps.page.latest
        told = await asked(gateway)
        assert told["aliases"]["w"]["now"]["ttft_p95"] > 0.0
        assert told["backends"]["a"]["now"]["ttft_p95"] > 0.0
        assert told["backends"]["b"]["now"]["ttft_p95"] is None
        await gateway.until(lambda: gateway.gateway.apps.page.latest["backends"]["a"]["from"] == "engine")
        assert (await asked(gateway))["nodes"] == {}


async def test_the_last_hour_is_told_in_columns_that_end_now() -> None:
    async with two() as (gateway, _, _):
        await chat(gateway)
        await gateway.until(lambda: gateway.gateway.apps.page.latest["backends"]["a"]["ttft_p50"] is not None)
        await gateway.until(lambda: gateway.gateway.apps.page.latest["backends"]["b"]["kv"] is not None)
        told = await got(gateway, "/status/history")
        assert len(told["at"]) > 1
        assert told["at"] == sorted(told["at"])
        assert abs(told["at"][-1] - time.time()) < PATIENCE
        a = told["backends"]["a"]
        assert len(a["inflight"]) == len(a["ttft_p50"]) == len(told["at"])
        assert a["ttft_p50"][-1] > 0.0
        assert told["backends"]["b"]["kv"][-1] is not None


async def test_samples_come_to_those_who_ask_for_them() -> None:
    async with two() as (gateway, _, _), gateway.client.stream("GET", "/events?samples=true") as answer:
        reader = Reader(answer.aiter_lines())
        first = await reader.event()
        second = await reader.event()
        assert [first[0], second[0]] == ["sample", "sample"]
        assert set(second[1]) == {"at", "backends", "aliases", "nodes", "gateway"}
        assert second[1]["at"] > first[1]["at"]
        assert second[1]["backends"]["a"]["inflight"] == 0


async def test_others_hear_of_events_alone() -> None:
    async with two() as (gateway, a, _), gateway.client.stream("GET", "/events") as answer:
        reader = Reader(answer.aiter_lines())
        seen = gateway.gateway.apps.page.latest
        await gateway.until(lambda: gateway.gateway.apps.page.latest is not seen)
        await a.kill()
        assert (await reader.event())[0] == "state"


async def test_the_viewer_is_told_who_it_is() -> None:
    async with two(CLIENTS) as (gateway, _, _):
        assert (await asked(gateway, **HERMES))["you"] == {"client": "hermes", "admin": False}
        assert (await asked(gateway, **OPS))["you"] == {"client": "ops", "admin": True}
    async with two() as (gateway, _, _):
        assert (await asked(gateway))["you"] == {"client": None, "admin": True}, "this machine itself"
        assert (await asked(gateway, host="gateway.lan"))["you"]["admin"] is False


@pytest.mark.parametrize("path", ["/status/history", "/status/usage", "/events?samples=true"])
async def test_with_clients_a_key_is_needed(path: str) -> None:
    async with two(CLIENTS) as (gateway, _, _):
        assert (await gateway.client.get(path)).status_code == 401


async def test_what_an_alias_has_cost_since_it_left_home() -> None:
    cloud = SimVllm("c", generic=True)
    home = SimVllm("a")
    async with home.serve() as first, cloud.serve() as second:
        routes = f"""{FAST}
backends:
  a: {{url: '{first}'}}
  c: {{url: '{second}', engine: openai, cloud: true, model: m, price: {{input: 1000, output: 1000}}}}
aliases: {{w: [a, c]}}
"""
        cloud.served = ["m"]
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            await chat(gateway)
            assert (await asked(gateway))["aliases"]["w"]["usd"] is None
            await home.kill()
            await gateway.until(lambda: gateway.state("a") is State.DOWN)
            assert (await asked(gateway))["aliases"]["w"]["usd"] == 0.0
            await chat(gateway)
            told = await asked(gateway)
            assert told["aliases"]["w"]["course"] == "cloud"
            assert told["aliases"]["w"]["usd"] == pytest.approx(
                gateway.metric("gateway_cloud_usd_total", backend="c", client="open")
            )
            assert told["aliases"]["w"]["usd"] > 0.0
            await home.revive()
            await gateway.until_ready("a")
            assert (await asked(gateway))["aliases"]["w"]["usd"] is None
