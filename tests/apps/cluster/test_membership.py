"""That a gateway comes or goes is known to the others at once, and not only when they renew themselves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from gateway.accounting.accounts import today
from gateway.accounting.budgets import Account
from gateway.apps.cluster import membership as gateways_module
from gateway.apps.cluster import redis_connection as link
from gateway.apps.cluster.membership import Membership
from gateway.apps.cluster.redis_connection import RedisUnavailable
from simulator import SimVllm
from tests.apps.cluster.joined import one_more, shared, slots_of
from tests.apps.cluster.redis_server import RedisServer
from tests.support import RunningGateway

NEVER = 3600.0  # seconds


@pytest.fixture(autouse=True)
def no_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known within this test is not known by a renewal in its turn."""
    monkeypatch.setattr(gateways_module, "RENEW", NEVER)
    monkeypatch.setattr(gateways_module, "SETTLED", 0.0)
    monkeypatch.setattr(link, "PRESENT", NEVER)


def knows(gateway: RunningGateway, count: int) -> Callable[[], bool]:
    return lambda: shared(gateway).gateways == count


async def test_that_a_gateway_came_or_stopped_is_known_at_once(redis: RedisServer) -> None:
    async with SimVllm("a").serve() as url, one_more(redis, slots_of(url, 4), 1) as one:
        async with one_more(redis, slots_of(url, 4), 2) as two:
            await one.until(knows(one, 2))
            async with one_more(redis, slots_of(url, 4), 3):
                await one.until(knows(one, 3))
                await two.until(knows(two, 3))
            await two.until(knows(two, 2))
        await one.until(knows(one, 1))


async def test_that_a_gateway_has_gone_without_a_word_is_known_when_anybody_finds_it(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that it had under way counts from then on."""
    account = Account("client", "c")
    async with SimVllm("a").serve() as url, AsyncExitStack() as stack:
        one, two, lost = [await stack.enter_async_context(one_more(redis, slots_of(url, 4), n)) for n in (1, 2, 3)]
        lost.gateway.accounts.budgets.reserve(account, 5.0)
        await one.until(lambda: one.gateway.accounts.budgets.reserved(account) == 5.0)

        async def away(_: Membership) -> None:
            raise RedisUnavailable("the test cut it off")

        monkeypatch.setattr(shared(lost)._redis, "open", lambda: away(shared(lost)))
        shared(lost)._redis._fail("the test cut it off")
        await lost.until(lambda: not shared(lost).joined)
        with redis.client() as client:
            client.zadd("spark-gateway:gateways", {shared(lost).id: 1})  # its time is over
        two.gateway.accounts.budgets.add("a", "c", 1.0, today())  # a batch that is no renewal
        await one.until(knows(one, 2))
        await two.until(knows(two, 2))
        assert one.gateway.accounts.budgets.reserved(account) == 0.0
        lost.gateway.accounts.budgets.release(account, 5.0)
