"""A conversation that comes to another gateway goes on where its cache is."""

from __future__ import annotations

import time

from gateway.apps.cluster.redis_connection import key_of
from gateway.apps.cluster.state_sync import SharedPlacements
from gateway.routing.placements import NEWS_MOST, Placements
from simulator import SimVllm
from tests.apps.cluster.joined import CHAT, gateways
from tests.apps.cluster.redis_server import RedisServer
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway


async def served_by(gateway: RunningGateway, session: str) -> str:
    headers = {"x-session-id": session}
    reply = await gateway.client.post(CHAT, json=chat("both"), headers=headers)
    assert reply.status_code == 200
    return reply.headers["x-gateway-backend"]


async def test_a_conversation_is_found_where_another_gateway_has_placed_it(redis: RedisServer) -> None:
    async with SimVllm("a").serve() as a, SimVllm("b").serve() as b:
        routes = f"backends: {{a: {{url: '{a}'}}, b: {{url: '{b}'}}}}\naliases: {{both: [[a, b]]}}\n"
        async with gateways(redis, routes) as (first, second):
            sessions = [f"session {number}" for number in range(12)]
            busy = first.gateway.fleet["a"].prefill.begin(1_000_000, time.monotonic())
            assert {await served_by(first, one) for one in sessions} == {"b"}
            busy.end()
            known = second.gateway.services.placements
            await second.until(lambda: len(known) >= len(sessions))
            assert {await served_by(second, one) for one in sessions} == {"b"}
            assert {await served_by(second, f"new {one}") for one in sessions} == {"a", "b"}, "others by their names"


async def test_what_no_gateway_writes_is_left_out() -> None:
    async with SimVllm("a").serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        states = gateway.gateway.fleet.states
        placements = Placements()
        shared = SharedPlacements(placements, lambda: states)
        at = key_of(states["a"].backend)
        good = [["client", f"{number:032x}", at] for number in range(2 * NEWS_MOST)]
        odd = [[1, "k", at], ["c", ["k"], at], ["c", "k"], None, "placed", ["c", "k" * 10_000, at], ["c", "k", "other"]]
        for placed in (None, 5, {"c": "k"}, odd):
            shared.receive(placed)
        assert len(placements) == 0
        shared.receive(good)
        assert len(placements) == NEWS_MOST
