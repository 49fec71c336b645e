"""What sharing costs a request: trips to Redis."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from gateway.apps.cluster import membership as gateways_module
from gateway.apps.cluster.redis_connection import Operation, RedisConnection
from simulator import SimVllm
from tests.apps.cluster.joined import CHAT, ask, one_more
from tests.apps.cluster.redis_server import RedisServer
from tests.queueing import Gate
from tests.raw_client import chat
from tests.scripted import raw_post


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[list[Operation]]:
    """Every batch that goes to Redis, but for renewals: those are put off."""
    found: list[list[Operation]] = []
    trip = RedisConnection._trip

    async def noted(self: RedisConnection, operations: list[Operation]) -> list[Any]:
        found.append(operations)
        return await trip(self, operations)

    monkeypatch.setattr(RedisConnection, "_trip", noted)
    return found


def kinds(batches: list[list[Operation]]) -> list[list[str]]:
    return [[operation[0] for operation in batch] for batch in batches]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_need_not_wait_waits_for_one_trip(
    redis: RedisServer, trips: list[list[Operation]], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """With all that is counted of it: limits, max_inflight and the slot. Its end waits for none, a chunk asks none."""
    monkeypatch.setattr(gateways_module, "RENEW", 60.0)
    clients = "clients: {c: {key: k, rpm: 100, tpm: 100000, max_inflight: 5}}"
    async with SimVllm("a").serve() as url, one_more(redis, f"backends: {{a: {{url: '{url}'}}}}\n{clients}", 1) as one:
        await one.until_ready("a")
        await one.until(lambda: kinds(trips)[-1][:1] == ["renew"])
        trips.clear()
        headers = {"authorization": "Bearer k"}
        answer = await one.client.post(CHAT, json=chat("a", "200 words", stream=stream), headers=headers)
        assert answer.status_code == 200
        await one.until(lambda: len(trips) == 2)
        assert kinds(trips) == [["acquire"], ["used", "drop"]]


async def test_the_end_of_a_request_does_not_wait_for_redis(redis: RedisServer) -> None:
    gate = Gate()
    gate.backend.scripts = (gate.hold,)
    async with gate.backend.serve(), one_more(redis, f"backends: {{a: {{url: '{gate.backend.url}'}}}}", 1) as one:
        await one.until_ready("a")
        asking = asyncio.create_task(raw_post(one.url, chat("a", "r")))
        await one.until(lambda: "r" in gate.inside)
        redis.freeze()
        try:
            gate.end("r")
            async with asyncio.timeout(1.5):  # the patience with Redis is 2 s
                assert (await asking).status == 200
            await one.until(one.idle)
        finally:
            redis.thaw()


async def test_a_cloud_without_limits_asks_nobody(
    redis: RedisServer, trips: list[list[Operation]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways_module, "RENEW", 60.0)
    async with SimVllm("c", generic=True).serve() as url:
        routes = f"backends: {{c: {{engine: openai, url: '{url}', cloud: true, model: model}}}}\naliases: {{x: [c]}}"
        async with one_more(redis, routes, 1) as one:
            await one.until(lambda: len(trips) >= 2)
            trips.clear()
            assert (await ask(one, "x")).status_code == 200
            await one.until(one.idle)
            assert trips == []


def test_without_shared_redis_is_not_even_imported() -> None:
    code = (
        "import sys\nfrom gateway.http.app import App\nfrom gateway.config.load import load_text\n"
        "App(load_text('backends: {a: {url: \"http://127.0.0.1:1\"}}', 'routes.yaml', {}).snapshot)\n"
        "print([name for name in sys.modules if name.startswith(('redis', 'gateway.apps.cluster.'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['gateway.apps.cluster.app']"
