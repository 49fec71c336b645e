"""One redis-server for the tests of this folder; each test finds it empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.shared.redis_server import RedisServer, running_redis


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
