"""Failed requests and clouds, which are sent nothing of our own to find out whose fault it is."""

from __future__ import annotations

from gateway.domain.health_state import State
from tests.failing_fleet import CLOUD, POISON, Fleet, fail, fleet, good, picky
from tests.scripted import RawReply, raw_post

TWO_CLIENTS = "clients: {one: {key: key-1}, two: {key: key-2}}"


async def test_one_body_takes_no_cloud_out_however_often_it_is_sent() -> None:
    async with fleet(picky(), picky(), keys=CLOUD) as f:
        for _ in range(10):
            assert (await f.ask()).status in (500, 502)
            assert (await f.ask("hello")).status == 200
        assert State.DOWN not in f.states()
        assert len(f.backends["a"].turns) <= 20, "it is asked nothing of our own"


async def test_a_cloud_that_fails_several_bodies_is_down() -> None:
    async with fleet(fail, good, keys=CLOUD) as f:
        for number in range(4):
            assert (await f.ask(f"hello {number}")).headers["x-gateway-backend"] == "b"
        assert f.gateway.state("a") is State.DOWN


async def ask_as(f: Fleet, client: int, text: str) -> RawReply:
    body = {"model": "chat", "max_tokens": 50, "messages": [{"role": "user", "content": text}]}
    return await raw_post(f.gateway.url, body, headers=[f"authorization: Bearer key-{client}"])


async def test_one_client_takes_no_cloud_from_another() -> None:
    """However many different bodies fail; nothing of our own is sent to find out."""
    async with fleet(picky(), keys=CLOUD, more=TWO_CLIENTS) as f:
        for number in range(30):
            assert (await ask_as(f, 1, f"{POISON} {number}")).status in (500, 502)
        assert f.gateway.state("a") is State.SUSPECT
        assert (await ask_as(f, 2, "hello")).status == 200
        assert f.gateway.state("a") is State.READY
        assert len(f.backends["a"].turns) == 31


async def test_a_cloud_that_fails_two_clients_is_down() -> None:
    async with fleet(fail, keys=CLOUD, more=TWO_CLIENTS) as f:
        for number in range(20):
            await ask_as(f, 1, f"hello {number}")
        assert f.gateway.state("a") is State.SUSPECT
        await ask_as(f, 2, "hello")
        assert f.gateway.state("a") is State.DOWN


async def test_a_cloud_that_cannot_be_reached_is_down_whoever_asked_it() -> None:
    async with fleet(good, keys=CLOUD, more=TWO_CLIENTS) as f:
        f.backends["a"].deafen()
        for number in range(3):
            await ask_as(f, 1, f"hello {number}")
        assert f.gateway.state("a") is State.DOWN
