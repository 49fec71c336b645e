"""A conversation that comes to another gateway goes on where its cache is."""

from __future__ import annotations

import time

from simulator import SimVllm
from tests.apps.cluster.joined import CHAT, gateways
from tests.apps.cluster.redis_server import RedisServer
from tests.raw_client import chat
from tests.support import RunningGateway


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
