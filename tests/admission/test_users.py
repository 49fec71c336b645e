"""Users behind one key (`clients.X.users`): each has its own turn, limits and rows in the usage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from gateway.admission.access import Identity, user_of
from gateway.config.load import load_text
from gateway.config.snapshot import OTHER_USERS, USERS_MOST
from gateway.domain.endpoints import CHAT
from gateway.domain.request import parse
from simulator import SimVllm
from tests.support import RunningGateway, running_gateway

ROUTES = """
backends: {{a: {{url: "{url}", slots: 1, context: 32768, health: {{canary: none}}}}}}
clients:
  webui: {{key: key-webui, rpm: {rpm}, users: {{from: header, rpm: 2, max_inflight: 1}}}}
  apps: {{key: key-apps, max_inflight: 1, users: {{}}}}
  plain: {{key: key-plain}}
"""


@asynccontextmanager
async def stage(rpm: str = "none") -> AsyncIterator[tuple[RunningGateway, SimVllm]]:
    sim = SimVllm(name="a", served=["m"], context=32768)
    async with sim.serve(port=0) as url, running_gateway(ROUTES.format(url=url, rpm=rpm)) as gateway:
        await gateway.until_ready("a")
        yield gateway, sim


async def ask(gateway: RunningGateway, key: str, by_header: str = "", **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer key-{key}"} | ({"x-openwebui-user-id": by_header} if by_header else {})
    body = {"model": "a", "messages": [{"role": "user", "content": "hi"}], **fields}
    return await gateway.client.post("/v1/chat/completions", json=body, headers=headers)


async def test_each_user_has_requests_of_its_own() -> None:
    async with stage() as (gateway, _):
        told = [(await ask(gateway, "webui", user)).status_code for user in ("ann", "ann", "ann", "bob", "")]
        assert told == [200, 200, 429, 200, 200]
        refused = await ask(gateway, "webui", "ann")
        assert "Client 'webui/ann'" in refused.json()["error"]["message"]
        label = gateway.metric("gateway_tokens_total", client="webui", alias="a", backend="a", kind="completion")
        assert label > 0  # users are no labels of metrics
        assert (
            gateway.metric("gateway_tokens_total", client="webui/ann", alias="a", backend="a", kind="completion") == 0
        )


async def test_the_limit_of_the_client_counts_for_all_its_users_together() -> None:
    async with stage(rpm="2") as (gateway, _):
        told = [(await ask(gateway, "webui", user)).status_code for user in ("ann", "bob", "eve")]
        assert told == [200, 200, 429]


async def test_users_take_turns_in_the_queue_and_at_most_their_requests_at_a_time() -> None:
    async with stage() as (gateway, sim):
        sim.fault("hang_before", count=1)
        running = asyncio.create_task(ask(gateway, "plain"))
        states = gateway.gateway.fleet.states
        await gateway.until(lambda: states["a"].inflight == 1)
        order: list[str] = []

        async def waits(user: str) -> None:
            assert (await ask(gateway, "webui", user)).status_code == 200
            order.append(user)

        def queued(count: int) -> bool:
            return gateway.gateway.services.admission.queue_depth().get("a") == count

        waiting = []
        for i, user in enumerate(("ann", "ann", "bob"), start=1):
            waiting.append(asyncio.create_task(waits(user)))
            await gateway.until(partial(queued, i))
        running.cancel()
        await asyncio.gather(*waiting)
        assert order == ["ann", "bob", "ann"]


async def test_max_inflight_of_the_client_holds_for_its_users_together() -> None:
    async with stage() as (gateway, sim):
        sim.fault("hang_before", count=1)
        first = asyncio.create_task(ask(gateway, "apps", user="ann"))
        await gateway.until(lambda: gateway.gateway.fleet["a"].inflight == 1)
        second = asyncio.create_task(ask(gateway, "apps", safety_identifier="bob"))
        await gateway.until(lambda: gateway.gateway.services.admission.queue_depth().get("a") == 1)
        first.cancel()
        assert (await second).status_code == 200
        await gateway.until(gateway.idle)
        assert gateway.gateway.services.admission.scheduler._running == {}


async def test_the_usage_has_rows_of_users() -> None:
    async with stage() as (gateway, _):
        await ask(gateway, "webui", "ann")
        await ask(gateway, "apps", user="bob")
        await ask(gateway, "plain", "ann", user="ann")  # it has no users
        ledger = gateway.gateway.accounts.ledger
        await asyncio.to_thread(ledger.close)
        from gateway.accounting.ledger_file import sums_since

        rows = await asyncio.to_thread(sums_since, ledger.path, 0.0, ("client",))
        assert sorted(row.group[0] for row in rows) == ["apps/bob", "plain", "webui/ann"]


def identity(**users: Any) -> Identity:
    text = "backends: {a: {url: 'http://h.lan:1'}}\nclients: {w: {key: k, budget: 9 USD/day, users: {from: header}}}\n"
    client = load_text(text, environ={}).snapshot.clients["w"]
    return Identity(client.name, client.owner, client)


def user(who: Identity, headers: dict[bytes, bytes], body: bytes = b'{"model": "a"}') -> str:
    return user_of(who, headers, parse(CHAT, body)).name


@pytest.mark.parametrize(
    ("headers", "body", "name"),
    [
        ({}, b'{"model": "a"}', "w"),
        ({b"x-openwebui-user-id": b"u1", b"x-openwebui-user-email": b"a@b"}, b'{"model": "a"}', "w/u1"),
        ({b"x-openwebui-user-email": b"a@b"}, b'{"model": "a"}', "w/a@b"),
        ({}, b'{"model": "a", "user": "ann"}', "w/ann"),
        ({}, b'{"model": "a", "user": "ann", "safety_identifier": "s"}', "w/s"),
        ({}, b'{"model": "a", "user": 7}', "w"),
        ({}, b'{"model": "a", "user": " \\n"}', "w"),
        ({b"x-openwebui-user-id": b"\xff" * 500}, b'{"model": "a"}', "w/" + "\ufffd" * 64),
        ({b"x-openwebui-user-id": b"../ops"}, b'{"model": "a"}', "w/../ops"),
    ],
)
def test_who_the_user_is(headers: dict[bytes, bytes], body: bytes, name: str) -> None:
    assert user(identity(), headers, body) == name


def test_the_number_of_users_is_bounded() -> None:
    who = identity()
    names = {user(who, {b"x-openwebui-user-id": b"%d" % i}) for i in range(USERS_MOST + 50)}
    assert len(names) == USERS_MOST + 1
    assert f"w/{OTHER_USERS}" in names


def test_the_budget_of_the_client_holds_for_its_users_together() -> None:
    from gateway.accounting.accounts import _budgets_of
    from gateway.accounting.budgets import Account, Budgets

    who = identity()
    one = user_of(who, {b"x-openwebui-user-id": b"ann"}, parse(CHAT, b'{"model": "a"}')).client
    text = (
        "backends: {c: {engine: openai, url: 'http://h.lan:1', cloud: true, model: m, price: {input: 1, output: 1}}}\n"
    )
    backend = load_text(text, environ={}).snapshot.backends["c"]
    assert [account for account, _ in _budgets_of(backend, one)] == [Account("client", "w")]
    budgets = Budgets()
    budgets.add("c", "w/ann", 1.0, 5)
    budgets.add("c", "w/bob", 2.0, 5)
    assert [budgets.own(Account("client", name), 5) for name in ("w", "w/ann", "w/bob")] == [3.0, 1.0, 2.0]
    assert budgets.own(Account("backend", "c"), 5) == 3.0
