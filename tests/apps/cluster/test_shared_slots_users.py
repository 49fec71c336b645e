"""Limits of the users behind one key, and the slots of an engine with adapters, over all gateways."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.admission.backend_queue import Quota
from gateway.apps.cluster.shared_slots import slots_key
from gateway.config.snapshot import Backend, Client
from gateway.errors import GatewayError
from tests.apps.cluster.joined import CHAT, FAST, Counting, ask, gateways
from tests.apps.cluster.office import MadeUp, Place, later, lent, served, settle
from tests.apps.cluster.redis_server import RedisServer
from tests.raw_client import chat

PAGE = Client("page", rpm=4, tpm=1000)
ALICE, BOB = (replace(PAGE, name=f"page/{name}", rpm=2, tpm=None, parent=PAGE) for name in ("alice", "bob"))


def quota(user: Client, tokens: int = 1) -> Quota:
    return Quota(PAGE, tokens, 0.0, user)


def test_the_rpm_of_a_user_and_that_of_its_client_count_over_all_gateways(three: list[MadeUp]) -> None:
    one, two, other = three
    for number, gateway in enumerate(three):
        gateway.comes(f"a{number}", "b", client="page/alice", quota=quota(ALICE))
    assert len(served(*three)) == 2
    refused = other.waiters["a2"].refused
    assert isinstance(refused, GatewayError)
    assert "'page/alice' has had its 2 requests (rpm)" in str(refused)
    one.comes("b0", "b", client="page/bob", quota=quota(BOB))
    two.comes("b1", "a", client="page/bob", quota=quota(BOB))
    assert len(served(*three)) == 4, "what a user is refused counts for nobody"
    other.comes("own", "a", client="page", quota=Quota(PAGE, 1, 0.0))
    assert "'page' has had its 4 requests (rpm)" in str(other.waiters["own"].refused)
    later(62.0, *three)
    other.comes("later", "a", client="page/alice", quota=quota(ALICE))
    assert "later" in other.served


def test_tokens_of_users_count_for_their_client(three: list[MadeUp]) -> None:
    one, two, _ = three
    one.comes("a", "b", client="page/alice", quota=quota(ALICE, 900))
    two.comes("b", "b", client="page/bob", quota=quota(BOB, 200))
    assert "'page' has had its 1000 tokens (tpm)" in str(two.waiters["b"].refused)
    one.slots.settled(one.waiters["a"], 900, 100)
    one.go()
    two.comes("again", "b", client="page/bob", quota=quota(BOB, 200))
    assert "again" in two.served


def test_max_inflight_of_a_client_holds_for_all_its_users_over_all_gateways(three: list[MadeUp], place: Place) -> None:
    one, two, other = three
    one.comes("a", "b", client="page/alice", within=2)
    two.comes("b", "b", client="page/bob", within=2)
    other.comes("c", "b", client="page/carol", within=2)
    other.comes("own", "b", client="page", limit=2)
    other.comes("stranger", "b", client="else", limit=2)
    assert (other.waiting, list(other.served)) == (["c", "own"], ["stranger"])
    one.end("a")
    settle(*three)
    assert (other.waiting, list(other.served)) == (["own"], ["stranger", "c"])
    for gateway, name in ((two, "b"), (other, "c"), (other, "stranger")):
        gateway.end(name)
    settle(*three)
    other.end("own")
    settle(*three)
    assert place.left() == set()


def test_max_inflight_of_a_user_holds_over_all_gateways(three: list[MadeUp]) -> None:
    one, two, _ = three
    one.comes("a", "b", client="page/alice", limit=1, within=3)
    two.comes("again", "b", client="page/alice", limit=1, within=3)
    two.comes("b", "b", client="page/bob", limit=1, within=3)
    assert (two.waiting, list(two.served)) == (["again"], ["b"])


@pytest.fixture
def engines(place: Place) -> list[MadeUp]:
    """Two gateways before an engine of two slots, with an adapter."""
    found = [MadeUp(name, place, {"a": 2, "lora": 2}) for name in ("g1", "g2")]
    for gateway in found:
        host, adapter = gateway.states["a"], gateway.states["lora"]
        adapter.backend = Backend("lora", on="a", url=host.backend.url, engine=host.backend.engine, slots=2)
        host.siblings, adapter.siblings = (adapter,), (host,)
        gateway.renew()
    return found


def test_the_slots_of_an_engine_are_those_of_its_adapters_too(engines: list[MadeUp], place: Place) -> None:
    one, two = engines
    assert slots_key(one.states["lora"]) == slots_key(one.states["a"])
    one.comes("a", "a")
    two.comes("l", "lora")
    two.comes("more", "lora")
    one.comes("either", "lora", "a")
    assert (lent(place, one.states["a"]), two.waiting, one.waiting) == (2, ["more"], ["either"])
    assert two.served["l"].state is two.states["lora"]
    two.renew()
    assert two.states["lora"].under_way == 2, "with the one of the other gateway"
    one.end("a")
    settle(*engines)
    assert two.served["more"].state is two.states["lora"]
    for name in ("l", "more"):
        two.end(name)
    settle(*engines)
    assert one.served["either"].state is one.states["lora"], "its first choice"


def test_alone_the_models_of_an_engine_have_one_share(engines: list[MadeUp]) -> None:
    one, two = engines
    for gateway in engines:
        gateway.knew = 2
        gateway.serve_alone()
    for number, name in enumerate(("a", "lora", "lora")):
        one.ask(f"r{number}", name)
    two.ask("other", "lora")
    assert (len(one.served), len(two.served)) == (1, 1)


async def test_two_gateways_send_an_engine_and_its_adapter_no_more_than_its_slots(redis: RedisServer) -> None:
    sim = Counting("a", served=["m", "l"], decode=60.0)
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{url}', model: m, slots: 2}}, lora: {{on: a, model: l}}}}"
        async with gateways(redis, FAST + routes) as both:
            sim.most = 0
            asked = [(g, name) for g in both for name in ("a", "lora") for _ in range(4)]
            answers = await asyncio.gather(*(ask(g, name, "20 words please") for g, name in asked))
    assert [answer.status_code for answer in answers] == [200] * 16
    assert sim.most == 2


async def test_a_user_of_two_gateways_has_one_limit(redis: RedisServer) -> None:
    key = "a-key-of-a-page"
    sim = Counting("a", decode=20.0)
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{url}', slots: 8}}}}\n"
        routes += (
            f"clients: {{page: {{key: {key}, max_inflight: 3, users: {{from: header, rpm: 5, max_inflight: 2}}}}}}\n"
        )
        async with gateways(redis, FAST + routes) as both:
            sim.most = 0

            async def asked(number: int, user: str) -> int:
                headers = {"authorization": f"Bearer {key}", "x-openwebui-user-id": user}
                body = chat("a", "10 words please")
                return (await both[number % 2].client.post(CHAT, json=body, headers=headers)).status_code

            codes = await asyncio.gather(*(asked(n, "alice") for n in range(8)))
            assert (sorted(codes), sim.most) == ([200] * 5 + [429] * 3, 2)
            sim.most = 0
            others = await asyncio.gather(*(asked(n, f"user{n // 2}") for n in range(8)))
            assert (others, sim.most) == ([200] * 8, 3)
