"""One operation at a time over all gateways: all know of it, and one whose gateway is gone is ended by another."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.apps.control.other_gateways import ALONE
from gateway.apps.control.record import INTERRUPTED, SHARED_MOST, save
from tests.apps.cluster.joined import one_more, shared, until_joined
from tests.apps.cluster.redis_server import RedisServer
from tests.apps.control.machine import FAST, Machine, begin, ended, error, machine, steps, switched
from tests.gateway_process import GatewayProcess, gateway_process
from tests.support import RunningGateway
from tests.waiting import until_said

MODES = "modes: {daily: [a], ds4: [c]}\n"
PRESENT = 20.0  # seconds within which a gateway that was killed counts as gone


def routes_of(there: Machine) -> str:
    return f"{FAST}backends:\n{''.join(there.backend(name) for name in there.sims)}{MODES}"


@asynccontextmanager
async def two(redis: RedisServer, there: Machine) -> AsyncIterator[list[RunningGateway]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(one_more(redis, routes_of(there), n)) for n in (1, 2)]


async def seen(gateway: RunningGateway, name: str) -> dict[str, Any] | None:
    """The operation as this gateway knows it; None = it does not."""
    answer = await gateway.client.get(f"/admin/operations/{name}")
    found: dict[str, Any] | None = answer.json() if answer.status_code == 200 else None
    return found


async def test_while_one_gateway_switches_no_other_does_and_all_see_it(redis: RedisServer, tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="c") as there, two(redis, there) as (one, other):
        there.faults["stop a"] = "hang"
        operation = await begin(one, "ds4")
        refused = error(await other.client.post("/admin/mode", json={"mode": "ds4"}))
        assert refused[:2] == (409, "operation_running")
        assert operation["id"] in refused[2]
        assert f"at gateway {shared(one).operations.name}" in refused[2]
        await there.until_asked("stop a")

        async def stopping() -> dict[str, Any] | None:
            found = await seen(other, operation["id"])
            return found if found is not None and "stop a: running" in steps(found) else None

        found = await until_said(stopping)
        assert found["gateway"] == shared(one).operations.name
        latest = (await other.client.get("/admin/operations")).json()["operation"]
        assert latest["id"] == operation["id"]
        there.go_on()
        done = await ended(one, operation)
        assert done["state"] == "done"

        async def over() -> bool:
            return await seen(other, operation["id"]) == done

        await until_said(over)
        back = await switched(other, "daily")
        assert (back["state"], back["gateway"]) == ("done", shared(other).operations.name)


async def test_of_two_that_begin_at_once_one_runs(redis: RedisServer, tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="c") as there, two(redis, there) as gateways:
        there.faults["stop a"] = "hang"
        asks = [gateway.client.post("/admin/mode", json={"mode": "ds4"}) for gateway in gateways]
        answers = await asyncio.gather(*asks)
        assert sorted(answer.status_code for answer in answers) == [202, 409]
        began = next(answer.json() for answer in answers if answer.status_code == 202)
        refused = next(answer for answer in answers if answer.status_code == 409)
        assert began["id"] in error(refused)[2]
        there.go_on()
        await until_said(lambda: _done(gateways[0], began["id"]))
        assert there.orders == ["stop a", "start c"]


async def test_another_may_begin_as_soon_as_it_knows_the_end_though_a_disk_is_slow(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = threading.Event()

    def slow(operation: bytes, folder: Path) -> None:
        if msgspec.json.decode(operation)["state"] != "running":
            written.wait(30)
        save(operation, folder)

    async with machine(tmp_path, "a", away="c") as there, two(redis, there) as (one, other):
        monkeypatch.setattr("gateway.apps.control.operations.save", slow)
        operation = await begin(one, "ds4")
        try:
            await until_said(lambda: _done(other, operation["id"]))
            again = await begin(other, "daily")
        finally:
            written.set()
        assert (await ended(other, again))["state"] == "done"


async def _done(gateway: RunningGateway, name: str) -> bool:
    found = await seen(gateway, name)
    return found is not None and found["state"] == "done"


async def test_a_gateway_that_starts_later_knows_the_latest(redis: RedisServer, tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="c") as there, two(redis, there) as (one, _):
        done = await switched(one, "ds4")
        async with one_more(redis, routes_of(there), 3) as later:
            assert await seen(later, done["id"]) == done
            assert later.gateway.snapshot.mode == "ds4"


async def test_what_others_get_of_an_output_is_bounded(redis: RedisServer, tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="c") as there, two(redis, there) as (one, other):
        done = await switched(one, "ds4")
        known = one.gateway.apps.control.operations.get(done["id"])
        known.steps[0].output = "x" * (2 * SHARED_MOST)
        shared(one).operations.publish(known.for_others())

        async def cut() -> bool:
            found = await seen(other, done["id"])
            return found is not None and len(found["steps"][0]["output"]) == SHARED_MOST

        await until_said(cut)


async def test_one_whose_gateway_was_killed_is_ended_by_another(redis: RedisServer, tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="c") as there:
        there.faults["start c"] = "hang"
        server = f"server: {{shared: '{redis.url}?socket_timeout=2'}}\n"
        async with (
            gateway_process(tmp_path, server + routes_of(there)) as killed,
            one_more(redis, routes_of(there), 2) as other,
        ):
            begun = (await killed.client.post("/admin/mode", json={"mode": "ds4"})).json()
            await there.until_asked("start c")
            os.kill(killed.pid, signal.SIGKILL)

            async def failed() -> dict[str, Any] | None:
                found = await seen(other, begun["id"])
                return found if found is not None and found["state"] == "failed" else None

            found = await until_said(failed, PRESENT)
            assert found["error"] == f"interrupted: gateway {begun['gateway']} is gone"
            assert "start c: failed" in steps(found)
            assert "`gateway fleet switch daily` goes back" in found["hint"]
            assert other.gateway.snapshot.mode == "ds4"
            there.go_on()
            assert (await switched(other, "ds4"))["state"] == "done"


@pytest.mark.parametrize("later", [False, True])
async def test_a_gateway_that_was_killed_and_starts_again_says_so_itself(
    redis: RedisServer, tmp_path: Path, later: bool
) -> None:
    async with machine(tmp_path, "a", away="c") as there:
        there.faults["start c"] = "hang"
        routes = f"server: {{shared: '{redis.url}?socket_timeout=2'}}\n{routes_of(there)}"
        async with gateway_process(tmp_path, routes) as killed:
            begun = (await killed.client.post("/admin/mode", json={"mode": "ds4"})).json()
            await there.until_asked("start c")
            os.kill(killed.pid, signal.SIGKILL)
        there.go_on()
        if later:
            with redis.client() as looking:
                looking.delete("spark-gateway:gateways")  # it counts as gone by now
        async with gateway_process(tmp_path, routes) as again:
            found = (await again.client.get(f"/admin/operations/{begun['id']}")).json()
            assert (found["state"], found["error"]) == ("failed", INTERRUPTED)
            await until_said(lambda: _alone(again), PRESENT)
            async with one_more(redis, routes_of(there), 2) as other:
                assert await seen(other, begun["id"]) == found


async def _alone(gateway: GatewayProcess) -> bool:
    """Is it the only one that counts as present?"""
    return bool((await gateway.client.get("/status")).json()["shared"]["gateways"] == 1)


async def test_without_redis_a_gateway_switches_alone_and_says_so(own_redis: RedisServer, tmp_path: Path) -> None:
    async with machine(tmp_path, "a", away="c") as there, two(own_redis, there) as (one, other):
        there.faults["stop a"] = "hang"
        begun = await begin(one, "ds4")
        await until_said(lambda: seen(other, begun["id"]))
        own_redis.kill()
        for gateway in (one, other):
            await until_joined(gateway, False)
        assert error(await one.client.post("/admin/mode", json={"mode": "ds4"}))[0] == 409, "its own still counts"
        alone = await begin(other, "daily")
        assert alone["notes"] == [ALONE]
        await ended(other, alone)  # before the other operation stops what this one waits for
        there.go_on()
        assert (await ended(one, begun))["state"] == "done"
        own_redis.start()
        for gateway in (one, other):
            await until_joined(gateway, True)
        assert (await switched(one, "daily"))["notes"] == []
