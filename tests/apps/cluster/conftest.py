"""One redis-server for the tests of this folder; each test finds it empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from gateway.apps.batches.redis_store import RedisBatchStore
from gateway.config.snapshot import Secret
from tests.apps.cluster.office import SLOTS, MadeUp, Place
from tests.apps.cluster.redis_server import RedisServer, running_redis

NewStore = Callable[[], RedisBatchStore]


@pytest.fixture(scope="session")
def redis_process() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def redis(redis_process: RedisServer) -> RedisServer:
    with redis_process.client() as client:
        client.flushall()
    return redis_process


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """One to kill."""
    with running_redis() as server:
        yield server


@pytest.fixture
def place(redis: RedisServer) -> Iterator[Place]:
    with redis.client() as client:
        yield Place(client)


@pytest.fixture
def three(place: Place) -> Iterator[list[MadeUp]]:
    """Three gateways that have joined, in front of a: 2, b: 4."""
    gateways = [MadeUp(name, place, SLOTS) for name in ("g1", "g2", "g3")]
    for gateway in gateways:
        gateway.renew()
    yield gateways
    for gateway in gateways:
        gateway.close()


@pytest.fixture
def new_store(redis: RedisServer) -> Iterator[NewStore]:
    """Makes the store of one more gateway."""
    with ExitStack() as stack:

        def make() -> RedisBatchStore:
            store = RedisBatchStore(Secret(redis.url))
            stack.callback(store.close)
            return store

        yield make
