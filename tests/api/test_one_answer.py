"""`/status`, `/ready`, `/v1/models` and `/admin/explain` give one answer about who serves an alias: the planner's."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping

import pytest

from gateway.domain.health_state import State
from gateway.routing.plan import make_plan
from tests.routing.fleets import asked
from tests.routing.test_serving import tried
from tests.support import RunningGateway, running_gateway

ROUTES = """\
defaults: {health: {every: none}}
backends:
  first: {url: "http://127.0.0.1:9/v1", model: m, context: 32768, tool_parser: hermes}
  never: {url: "http://127.0.0.1:9/v1", model: m, context: 32768, thinking: never}
  small: {engine: ollama, url: "http://127.0.0.1:9", model: m, context: 8192}
  cloud: {engine: openai, url: "https://api.example.com/v1", cloud: true, model: x, api_key: k, context: 131072}
aliases:
  chain: [first, never, small]
  thinker: {use: [never, first], thinking: "on"}
  leaving: [first, cloud]
  closed: {use: [first, cloud], cloud_when: [too_long]}
  side: [[never, small], cloud]
"""
READY, DOWN, PARKED, MISCONFIGURED = State.READY, State.DOWN, State.PARKED, State.MISCONFIGURED


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with running_gateway(ROUTES) as running:
        yield running


@pytest.mark.parametrize(
    "states",
    [
        {},
        {"first": DOWN},
        {"first": DOWN, "never": DOWN},
        {"first": DOWN, "cloud": DOWN},
        {"first": PARKED, "small": State.DRAINING},
        {"first": MISCONFIGURED, "never": State.WARMING, "small": DOWN},
        {"first": DOWN, "never": DOWN, "small": DOWN},
        dict.fromkeys(("first", "never", "small", "cloud"), PARKED),
    ],
    ids=lambda states: ",".join(f"{name} {state.value}" for name, state in states.items()) or "all ready",
)
async def test_all_say_what_the_planner_says(gateway: RunningGateway, states: Mapping[str, State]) -> None:
    fleet = gateway.gateway.fleet.states
    for name, state in fleet.items():
        state.health.state = states.get(name, READY)
        state.health.retry_at = time.monotonic() + 3600.0
    status = (await gateway.client.get("/status")).json()["aliases"]
    ready = await gateway.client.get("/ready")
    cards = {card["id"]: card for card in (await gateway.client.get("/v1/models")).json()["data"]}
    served = []
    for alias in gateway.gateway.snapshot.aliases.values():
        order = list(tried(make_plan(alias, fleet, asked("chat"), time.monotonic())))
        served += [alias.name] * bool(order)
        shown = status[alias.name]
        step = next((step for step in alias.steps if set(step) & set(order)), ())
        assert shown["serving"] == [name for name in step if name in order]
        assert cards[alias.name]["x_gateway"]["serving"] == shown["serving"][:1]
        explained = (await gateway.client.post("/admin/explain", json={"alias": alias.name})).json()
        assert (explained["order"], explained["served"]) == (order, bool(order))
        for one in (one for part in explained["steps"] for one in part["backends"] if one["kind"] is not None):
            before = alias.steps[: (shown["step"] or len(alias.steps) + 1) - 1]
            assert f"{one['backend']} " in shown["why"] or one["backend"] not in [n for s in before for n in s]
    assert (ready.status_code, ready.json()["aliases"]) == (200 if served else 503, served)


async def test_a_forced_call_goes_to_the_ollama_and_explain_says_how(gateway: RunningGateway) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": "required"}
    explained = (await gateway.client.post("/admin/explain", json={"alias": "small", "request": body})).json()
    (small,) = explained["steps"][0]["backends"]
    assert (explained["served"], small["verdict"]) == (True, "use")
    assert small["reasons"] == [
        "the gateway makes the call: its answer is forced into a schema of the tools, and checked"
    ]
