"""Gateways that are given the same `server.data`, one after the other or at the same time: what each has spent counts
once, everywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from gateway.accounting.accounts import today
from gateway.accounting.budgets import Account
from gateway.accounting.ledger import Ledger
from gateway.apps.cluster import membership as gateways_module
from gateway.apps.cluster.redis_connection import RedisUnavailable
from gateway.config.snapshot import Budget
from simulator import SimVllm
from tests.apps.cluster.joined import CHAT, shared, until_joined
from tests.apps.cluster.redis_server import RedisServer
from tests.raw_client import chat
from tests.support import RunningGateway, running_gateway

MONTH = Budget(1e9, "month")
ACCOUNT = Account("backend", "c")


class Fleet:
    """Gateways of one fleet: each request to `c` costs 1 USD."""

    def __init__(self, redis: RedisServer, url: str) -> None:
        price = "price: {input: 0, output: 1000000}, budget: 1000000 USD/month"
        self.backend = f"c: {{engine: openai, url: '{url}', cloud: true, model: model, {price}}}"
        self.redis = redis
        self.stack = AsyncExitStack()

    async def enter(self, data: Path) -> RunningGateway:
        """One that runs until the end, or `stack` is closed."""
        return await self.stack.enter_async_context(self.gateway(data))

    @asynccontextmanager
    async def gateway(self, data: Path) -> AsyncIterator[RunningGateway]:
        server = f"server: {{shared: '{self.redis.url}?socket_timeout=2', data: '{data}'}}\n"
        routes = f"{server}backends: {{{self.backend}}}\naliases: {{x: [c]}}"
        async with running_gateway(routes) as gateway:
            await until_joined(gateway, True)
            yield gateway


def spent(gateway: RunningGateway) -> float:
    """USD, as this gateway counts them over all."""
    return round(gateway.gateway.accounts.budgets.spent(ACCOUNT, MONTH, today()), 6)


async def spend(gateway: RunningGateway, requests: int) -> None:
    for _ in range(requests):
        answer = await gateway.client.post(CHAT, json=chat("x", "1 words", max_tokens=1))
        assert answer.status_code == 200, answer.text
    await gateway.until(gateway.idle)
    written = gateway.gateway.accounts.ledger
    await gateway.until(lambda: not written._queue and not written._held)  # who starts now reads it


def at_the_same_moment(*spent: tuple[RunningGateway, float]) -> None:
    """None hears of the others' before it has spent."""
    for gateway, usd in spent:
        gateway.gateway.accounts.budgets.add("c", "open", usd, today())


async def until_all_count(usd: float, *gateways: RunningGateway) -> None:
    """When each has told, and has heard the others, twice."""
    for _ in range(2):
        for gateway in gateways:
            renewed = shared(gateway).trips + 2
            await gateway.until(lambda g=gateway, r=renewed: shared(g).trips >= r)  # type: ignore[misc]  # binds names
    for gateway in gateways:
        with suppress(TimeoutError):
            await gateway.until(lambda g=gateway: spent(g) == usd)  # type: ignore[misc]  # binds the name
    assert [spent(gateway) for gateway in gateways] == [usd] * len(gateways)


@asynccontextmanager
async def fleet(redis: RedisServer) -> AsyncIterator[Fleet]:
    async with SimVllm("c", generic=True).serve() as url:
        made = Fleet(redis, url)
        async with made.stack:
            yield made


async def cut(gateway: RunningGateway, patch: pytest.MonkeyPatch) -> None:
    """It alone is away from Redis, until the patch is undone."""

    async def refuse() -> None:
        raise RedisUnavailable("cut off by the test")

    link = shared(gateway)._redis
    patch.setattr(link, "open", refuse)
    link._fail("cut off by the test")
    await until_joined(gateway, False)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways_module, "RENEW", 0.1)
    monkeypatch.setattr(Ledger, "flush", 0.01)


async def test_two_at_the_same_time_count_what_was_before_and_what_each_spends_once(
    redis: RedisServer, tmp_path: Path
) -> None:
    async with fleet(redis) as made:
        other, one = await made.enter(tmp_path / "other"), await made.enter(tmp_path / "same")
        await spend(one, 2)
        two = await made.enter(tmp_path / "same")
        await until_all_count(2, one, two, other)
        at_the_same_moment((one, 1), (two, 3), (other, 1))
        await until_all_count(7, one, two, other)


async def test_one_that_takes_over_goes_on_under_the_name_at_its_next_start(redis: RedisServer, tmp_path: Path) -> None:
    """Its ledger has all that both have spent; the others count that once."""
    async with fleet(redis) as made, made.gateway(tmp_path / "other") as other:
        async with made.gateway(tmp_path / "same") as one:
            await spend(one, 2)
            two = await made.enter(tmp_path / "same")
            await spend(two, 3)
        await until_all_count(5, two, other)
        await spend(two, 1)
        await until_all_count(6, two, other)
        await made.stack.aclose()
        async with made.gateway(tmp_path / "same") as three:
            await until_all_count(6, three, other)
            await spend(three, 1)
            await until_all_count(7, three, other)
            async with made.gateway(tmp_path / "late") as late:
                await until_all_count(7, three, other, late)


async def test_who_was_away_when_another_took_over_counts_it_once_too(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(redis) as made, made.gateway(tmp_path / "other") as other:
        async with made.gateway(tmp_path / "same"), made.gateway(tmp_path / "same") as two:
            await spend(two, 3)
            await until_all_count(3, other)
        with monkeypatch.context() as cut_off:
            await cut(other, cut_off)
            three = await made.enter(tmp_path / "same")
        await until_joined(other, True)
        await until_all_count(3, three, other)


async def test_each_takes_over_from_the_one_before(redis: RedisServer, tmp_path: Path) -> None:
    """The third starts while the second is there, and the first has gone."""
    async with fleet(redis) as made, made.gateway(tmp_path / "other") as other:
        async with made.gateway(tmp_path / "same") as one:
            await spend(one, 2)
            two = await made.enter(tmp_path / "same")
        await spend(two, 3)
        async with made.gateway(tmp_path / "same") as three:
            await until_all_count(5, two, three, other)
            await spend(three, 1)
            await spend(two, 1)
            await until_all_count(7, two, three, other)
            await made.stack.aclose()
            await spend(three, 1)
            await until_all_count(8, three, other)
        async with made.gateway(tmp_path / "same") as four:
            await until_all_count(8, four, other)


async def test_one_that_was_taken_for_gone_leaves_the_name_to_who_has_it_now(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        fleet(redis) as made,
        made.gateway(tmp_path / "other") as other,
        made.gateway(tmp_path / "same") as one,
    ):
        await spend(one, 2)
        with monkeypatch.context() as cut_off:
            await cut(one, cut_off)
            with redis.client() as client:
                client.zadd("spark-gateway:gateways", {shared(one).id: 1})  # its time is over
            two = await made.enter(tmp_path / "same")
        await until_joined(one, True)
        at_the_same_moment((one, 3), (two, 1))
        await until_all_count(6, one, two, other)
