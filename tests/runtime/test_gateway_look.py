"""When the aliases are looked at after a change of state: not before the answers at hand are sent."""

from __future__ import annotations

import pytest

from gateway.accounting.record import RequestLine
from gateway.domain.health_state import State
from simulator import SimVllm
from tests.proxy.house import well
from tests.raw_client import chat
from tests.scripted import Turn, scripted
from tests.support import running_gateway


async def gone(turn: Turn) -> None:
    turn.close()


async def test_the_answer_of_a_failover_is_sent_before_the_aliases_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.runtime.gateway.LOOK_AFTER", 1.0)  # longer than the simulated backend takes
    second = SimVllm("second")
    async with scripted(well) as first, second.serve() as other:
        routes = (
            "defaults: {health: {every: 600s, fail_after: 1}}\n"
            f"backends: {{first: {{url: '{first.url}'}}, second: {{url: '{other}'}}}}\n"
            "aliases: {both: [first, second]}\n"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("first", "second")
            tracker, settled, answered = gateway.gateway.alias_status, list[RequestLine](), list[int]()
            gateway.gateway.services.line_observers.append(settled.append)
            look = tracker.look

            def noted() -> None:
                answered.append(len(settled))
                look()

            monkeypatch.setattr(tracker, "look", noted)
            first.play(gone)
            first.deafen()  # the connection that is open is closed, and a new one refused
            reply = await gateway.client.post("/v1/chat/completions", json=chat("both"))
            assert (reply.status_code, reply.headers["x-gateway-backend"]) == (200, "second")
            await gateway.until(lambda: gateway.state("first") is not State.READY and bool(answered))
            assert answered[0] == 1, "settled, so sent"
            await gateway.until(lambda: tracker.aliases["both"].course != "home")


async def test_the_cost_of_the_first_answer_of_a_failover_is_counted_though_the_look_comes_later() -> None:
    first, second = SimVllm("first"), SimVllm("second")
    async with first.serve() as one, second.serve() as other:
        routes = (
            "defaults: {health: {every: 600s, fail_after: 1}}\n"
            f"backends: {{first: {{url: '{one}'}}, "
            f"second: {{url: '{other}', price: {{input: 1000, output: 1000}}}}}}\n"
            "aliases: {both: [first, second]}\n"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("first", "second")
            first.fault("status", status=500)
            reply = await gateway.client.post("/v1/chat/completions", json=chat("both"))
            assert reply.headers["x-gateway-backend"] == "second"
            await gateway.until(lambda: (gateway.gateway.alias_status.cost("both") or 0) > 0)
