"""A batch that is cancelled while its lines are looked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types import Batch

from gateway.apps.batches import lines
from simulator import SimVllm
from tests.apps.batches.filed import ended, filed, jsonl, line
from tests.apps.cluster.redis_server import RedisServer
from tests.apps.cluster.test_batches import asked, begin, several
from tests.waiting import PATIENCE, until

LINES = jsonl([line("r0"), line("r0"), *(line(f"r{n}") for n in range(1, 3000))])


class Gate:
    """Lines of an input file, which come on when `told` is set."""

    def __init__(self) -> None:
        self.reached, self.told = threading.Event(), threading.Event()

    def read_lines(self, *args: Any) -> Iterator[Any]:
        for number, found in enumerate(lines.read_lines(*args)):
            if number == 2500:
                self.reached.set()
                assert self.told.wait(PATIENCE)
            yield found


def is_cancelled_without_results(done: Batch) -> bool:
    assert done.request_counts is not None
    files = (done.output_file_id, done.error_file_id)
    counts = (done.request_counts.total, done.request_counts.completed, done.request_counts.failed)
    return (done.status, files, counts) == ("cancelled", (None, None), (0, 0, 0))


async def test_a_batch_is_cancelled_while_it_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    monkeypatch.setattr("gateway.apps.batches.sqlite_store.read_lines", gate.read_lines)
    async with filed() as f:
        batch = await f.begin(LINES)
        await until(gate.reached.is_set)
        cancelling = asyncio.create_task(f.client.batches.cancel(batch.id))  # it waits for the store's one thread
        await f.gateway.until(lambda: f.gateway.gateway.apps.batches._threads._thread._work_queue.qsize() > 0)
        gate.told.set()
        assert (await cancelling).status == "cancelling"
        assert is_cancelled_without_results(await f.ended(batch))
        assert f.asked() == []
        assert f.gateway.gateway.apps.batches._store.take(batch.id, -1, 5, ()) == []


async def test_a_batch_is_cancelled_at_another_gateway_than_the_one_that_validates_it(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, sim = Gate(), SimVllm("a", served=["m"])
    monkeypatch.setattr("gateway.apps.batches.redis_store.read_lines", gate.read_lines)
    async with several(redis, sim) as (_, clients):
        batch = await begin(clients[0], LINES)
        await until(gate.reached.is_set)
        # At once: a gateway that looks for what another has cancelled may end the batch soon.
        cancelled = await asyncio.gather(*[client.batches.cancel(batch.id) for client in clients])
        assert [one.status for one in cancelled] == ["cancelling"] * len(clients)
        gate.told.set()
        assert is_cancelled_without_results(await ended(clients[0], batch.id))
        assert asked(sim) == []
