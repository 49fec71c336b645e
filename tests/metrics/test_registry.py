"""What /metrics says: valid for every parser, every name of the design, and no series that a client could make up."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from gateway.domain.facts import Observation
from gateway.errors import CATALOGUE
from simulator import SimVllm
from simulator.exporter import SimExporter
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

CHAT = "/v1/chat/completions"
DOCS = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}
MADE_UP = "made-up-by-a-client"
KEYS = {"authorization": "Bearer the-key-of-hermes"}

# The names that dashboards are written against, with their labels. `le` is every histogram's.
CONTRACT = {
    "gateway_requests_total": "alias backend endpoint code",
    "gateway_attempts_total": "backend outcome",
    "gateway_failovers_total": "alias reason",
    "gateway_inflight": "backend",
    "gateway_queue_depth": "backend",
    "gateway_queue_seconds": "",
    "gateway_time_to_first_token_seconds": "alias backend",
    "gateway_inter_token_seconds": "backend",
    "gateway_request_seconds": "",
    "gateway_tokens_total": "client alias backend kind",
    "gateway_violations_total": "backend kind",
    "gateway_adapted_total": "alias kind",
    "gateway_mended_total": "backend kind",
    "gateway_backend_state": "backend state",
    "gateway_alias_on_fallback": "alias",
    "gateway_cloud_usd_total": "backend client",
    "gateway_canary": "backend check",
}


@asynccontextmanager
async def busy() -> AsyncIterator[tuple[RunningGateway, SimVllm, SimVllm]]:
    """A gateway in which nearly everything that is counted has happened."""
    one, two = SimVllm("a", tool_parser="hermes"), SimVllm("b")
    async with one.serve() as first, two.serve() as second:
        routes = f"""
            backends:
              a: {{url: '{first}', slots: 4, tool_parser: hermes}}
              b:
                url: '{second}'
                cloud: true
                price: {{input: 1, output: 1}}
                budget: 5 USD/day
                health: {{every: 1s}}
            defaults: {{health: {{every: 1s}}}}
            aliases: {{chain: [a, b], short: {{use: [a], params: {{max_tokens: 9}}}}}}
            clients: {{hermes: {{key: the-key-of-hermes, admin: true}}}}
        """
        async with running_gateway(routes) as gateway:
            gateway.client.headers.update(KEYS)
            await gateway.until_ready("a", "b")
            for stream in (False, True):
                await gateway.client.post(CHAT, json=chat("chain", "20 words", stream=stream))
            await gateway.client.post(CHAT, json=chat("chain", max_tokens=10_000_000))
            one.fault("leak_think", count=1)
            await gateway.client.post(CHAT, json=chat("chain"))
            one.fault("status", status=500, count=1)
            await gateway.client.post(CHAT, json=chat("chain"))
            await gateway.until(gateway.idle)
            yield gateway, one, two


def read_openmetrics(text: str) -> list[Metric]:
    return list(openmetrics.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]  # theirs


def read_text(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


async def families(gateway: RunningGateway) -> dict[str, Metric]:
    answer = await gateway.client.get("/metrics", headers=OPENMETRICS)
    return {family.name: family for family in read_openmetrics(answer.text)}


async def labels(gateway: RunningGateway) -> dict[str, set[str]]:
    """Metric as documented (a counter with its _total, a histogram without suffix) -> its labels; ours alone."""
    found: dict[str, set[str]] = {}
    for name, family in (await families(gateway)).items():
        told = f"{name}_total" if family.type == "counter" else name
        for sample in family.samples:
            found.setdefault(told, set()).update(sample.labels.keys() - {"le"})
    return {name: keys for name, keys in found.items() if name.startswith("gateway_")}


async def test_what_is_said_is_valid_in_both_formats() -> None:
    async with busy() as (gateway, _, _):
        plain = await gateway.client.get("/metrics")
        asked = await gateway.client.get("/metrics", headers=OPENMETRICS)
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert asked.headers["content-type"].startswith("application/openmetrics-text")
    old, new = read_text(plain.text), read_openmetrics(asked.text)
    assert {family.name for family in old} == {family.name for family in new}
    assert all(family.documentation for family in new)
    assert asked.text.endswith("# EOF\n")


async def test_the_names_of_the_contract_are_there_with_their_labels() -> None:
    async with busy() as (gateway, _, _):
        gateway.gateway.fleet["a"].facts.observe({"plain": Observation("yes", "said it", 0.0)})
        found = await labels(gateway)
        gateway.gateway.metrics.cloud_usd.inc("b", "hermes")
        found |= await labels(gateway)
    for name, expected in CONTRACT.items():
        assert found.get(name) == set(expected.split()), name


async def test_every_metric_is_documented_with_its_labels() -> None:
    documented = {
        name: set(re.findall(r"`(\w+)`", cell))
        for name, cell in re.findall(r"^\| `(gateway_\w+)` \|([^|]*)\|", DOCS, re.M)
    }
    async with busy() as (gateway, _, _):
        found = await labels(gateway)
    assert found.keys() <= documented.keys()
    assert {name: documented[name] for name in found} == found


async def test_a_client_can_make_up_no_series() -> None:
    async with busy() as (gateway, _, _):
        before = {name: len(family.samples) for name, family in (await families(gateway)).items()}
        for i in range(20):
            headers = {
                "x-request-id": f"{MADE_UP}{i}",
                "user-agent": f"{MADE_UP}{i}",
                "x-gateway-client": f"{MADE_UP}{i}",
            }
            body = {**chat("chain"), "user": f"{MADE_UP}{i}", "stop": [f"{MADE_UP}{i}"]}
            await gateway.client.post(CHAT, json=body, headers=headers)
            await gateway.client.post(CHAT, json=chat(f"{MADE_UP}{i}"))
            await gateway.client.post(f"/v1/{MADE_UP}{i}", json={})
            await gateway.client.post(CHAT, json=chat("chain"), headers={"authorization": f"Bearer {MADE_UP}{i}"})
        await gateway.until(gateway.idle)
        text = (await gateway.client.get("/metrics")).text
        after = {name: len(family.samples) for name, family in (await families(gateway)).items()}
    assert MADE_UP not in text
    grown = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    for name in ("kv_cache_usage_ratio", "backend_prefix_cache_queries", "backend_prefix_cache_hits"):
        grown.pop(f"gateway_{name}", None)  # there as soon as the engines were looked at
    assert grown.pop("gateway_requests") == 2  # model_not_found and invalid_api_key, once each
    assert grown == {}


async def test_errors_are_counted_by_their_code() -> None:
    async with busy() as (gateway, one, two):
        for sim in (one, two):
            sim.fault("status", status=500)
        answer = await gateway.client.post(CHAT, json=chat("chain"))
        code = answer.json()["error"]["code"]
        await gateway.until(gateway.idle)
        assert gateway.metric("gateway_requests_total", alias="chain", backend="b", endpoint="chat", code=code) == 1
        codes = {s.labels["code"] for s in (await families(gateway))["gateway_requests"].samples}
    assert codes <= {"200", *CATALOGUE}


# -- what is read at a scrape -----------------------------------------------------------------------------------------


async def test_a_backends_slots_are_told_where_it_has_a_limit() -> None:
    async with busy() as (gateway, _, _):
        found = (await families(gateway))["gateway_slots"].samples
    assert [(sample.labels, sample.value) for sample in found] == [({"backend": "a"}, 4.0)]


async def test_the_use_of_the_kv_cache_is_what_the_engine_says() -> None:
    async with busy() as (gateway, one, _):
        one.fault("hang_mid", after=3, count=1)

        def used() -> float:
            return gateway.metric("gateway_kv_cache_usage_ratio", backend="a")

        assert used() == 0.0
        async with gateway.client.stream("POST", CHAT, json=chat("chain", "20 words", stream=True)):
            await gateway.until(lambda: 0.0 < used() <= 1.0)


async def test_drafts_and_the_prefix_cache_are_counted_as_the_engine_counts_them() -> None:
    sim, plain = SimVllm("a", prefix_cache=True, spec_tokens=2), SimVllm("b")
    async with sim.serve() as first, plain.serve() as second:
        routes = f"""
            backends: {{a: {{url: '{first}'}}, b: {{url: '{second}'}}}}
            defaults: {{health: {{every: 50ms}}}}
        """
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            await gateway.client.post(CHAT, json=chat("a", "200 words"))
            counters = sim.engine.counters

            def told(name: str, **labels: str) -> float:
                return gateway.metric(f"gateway_backend_{name}_total", backend="a", **labels)

            await gateway.until(lambda: 0 < counters.drafts == told("drafts"))
            assert told("draft_tokens") == 2 * counters.drafts
            assert told("accepted_tokens") == sum(counters.accepted)
            assert [told("accepted_position_tokens", position=str(i)) for i in range(2)] == counters.accepted
            assert told("prefix_cache_queries") == counters.prefix_queries > 0
            assert told("prefix_cache_hits") == counters.prefix_hits
            found = await families(gateway)
    assert {sample.labels["backend"] for sample in found["gateway_backend_drafts"].samples} == {"a"}
    assert {sample.labels["backend"] for sample in found["gateway_backend_prefix_cache_hits"].samples} == {"a", "b"}


async def test_memory_and_heat_of_a_node_are_what_its_exporter_says() -> None:
    machine = SimExporter([], 128 * 1024**3)
    async with machine.server, SimVllm("a").serve() as url:
        routes = f"""
            nodes: {{spark1: {{exporter: '{machine.url}'}}, spark2: {{exporter: 'http://127.0.0.1:9/metrics'}}}}
            backends: {{a: {{url: '{url}', node: spark1}}}}
        """
        async with running_gateway(routes) as gateway:
            await gateway.until(lambda: len(gateway.gateway.prober.machines) == 2)
            reported = gateway.gateway.prober.machines["spark1"]
            found = await families(gateway)
            assert gateway.metric("gateway_node_memory_used_bytes", node="spark1") == reported.memory_used
            assert gateway.metric("gateway_node_temperature_celsius", node="spark1") == reported.temperature
    told = {name: {s.labels["node"]: s.value for s in f.samples} for name, f in found.items() if "_node_" in name}
    assert told.pop("gateway_node_exporter_up") == {"spark1": 1.0, "spark2": 0.0}
    assert {frozenset(values) for values in told.values()} == {frozenset({"spark1"})}
    assert len(told) == 5


async def test_the_seconds_of_a_fallback_add_up_and_stop_when_it_is_over() -> None:
    async with busy() as (gateway, one, _):
        seconds = "gateway_alias_fallback_seconds_total"

        def told(name: str, **labels: str) -> float:
            return gateway.metric(name, alias="chain", **labels)

        assert told("gateway_alias_course", course="home") == 1.0
        await one.stop()
        await gateway.until(lambda: told("gateway_alias_course", course="cloud") == 1.0)
        assert told("gateway_alias_on_fallback") == 1.0
        assert gateway.metric("gateway_backend_up", backend="a") == 0.0
        first = told(seconds, course="cloud")
        await gateway.until(lambda: told(seconds, course="cloud") > first)
        assert told(seconds, course="fallback") == 0.0


async def test_an_edit_that_is_not_valid_is_seen_until_one_is() -> None:
    async with busy() as (gateway, _, _):
        assert gateway.metric("gateway_config_valid") == 1.0
        gateway.gateway.refused_edit = "routes.yaml:1 nothing follows"
        assert gateway.metric("gateway_config_valid") == 0.0
        gateway.gateway.refused_edit = None
        assert gateway.metric("gateway_config_valid") == 1.0


async def test_the_share_of_a_budget_that_is_spent_is_told() -> None:
    async with busy() as (gateway, _, _):
        spent = gateway.metric("gateway_budget_spent_ratio", budget="b")
        usd = gateway.metric("gateway_cloud_usd_total", backend="b", client="hermes")
    assert 0.0 < usd == pytest.approx(spent * 5)


async def test_what_nobody_took_is_counted() -> None:
    async with busy() as (gateway, _, _):
        assert gateway.metric("gateway_records_lost_total", kind="ledger") == 0.0
        gateway.gateway.accounts.ledger.lost += 3
        assert gateway.metric("gateway_records_lost_total", kind="ledger") == 3.0
        assert gateway.metric("gateway_records_lost_total", kind="log") == 0.0
        assert gateway.metric("gateway_records_lost_total", kind="spans") == 0.0
