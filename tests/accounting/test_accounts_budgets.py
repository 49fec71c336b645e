"""Budgets through the gateway: the chain goes on, 402 only when nothing else stands there, no large overshoot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gateway.accounting.accounts import today
from tests.raw_client import chat
from tests.scripted import RawReply, Script, ScriptedBackend, Turn, json_answer, raw_post, request_bytes, scripted
from tests.support import RunningGateway, running_gateway

pytestmark = pytest.mark.decided_both_ways

PRICE = "price: {input: 1.0, output: 10.0}"  # USD per million
HERMES = ["authorization: Bearer hermes-key"]
OTHER = ["authorization: Bearer other-key"]


def answered(usd: float, wait: asyncio.Event | None = None) -> Script:
    """A whole answer that costs so much."""
    usage = {"prompt_tokens": 0, "completion_tokens": round(usd * 1e5)}
    message = {"role": "assistant", "content": "hello"}
    body = {"id": "x", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    async def play(turn: Turn) -> None:
        if wait is not None:
            await wait.wait()
        await turn.send(json_answer({**body, "usage": usage}))

    return play


@asynccontextmanager
async def house(
    backends: dict[str, str], script: Script, *, clients: str = "", data: Path | None = None
) -> AsyncIterator[tuple[RunningGateway, dict[str, ScriptedBackend]]]:
    """These backends (name -> further keys; `c...` are clouds) in a chain, the alias `chain`; each plays `script`."""
    async with AsyncExitStack() as stack:
        scripts = {name: await stack.enter_async_context(scripted(script)) for name in backends}
        lines = [f"server: {{data: '{data}'}}"] if data is not None else []
        lines += ["backends:"]
        for name, more in backends.items():
            cloud = "engine: openai, cloud: true, " if name.startswith("c") else ""
            lines.append(f"  {name}: {{url: '{scripts[name].url}', model: served/model, {cloud}{more}}}")
        chain = ", ".join(backends)
        lines += [f"aliases: {{chain: {{use: [{chain}], cloud_when: [down, busy, too_long, incapable]}}}}", clients]
        gateway = await stack.enter_async_context(running_gateway("\n".join(lines)))
        await gateway.until_ready(*(name for name in backends if not name.startswith("c")))
        yield gateway, scripts


async def ask(gateway: RunningGateway, headers: list[str] | None = None) -> RawReply:
    return await raw_post(gateway.url, chat("chain", max_tokens=100), headers=headers or [])


def untouched(gateway: RunningGateway) -> bool:
    """Is nothing reserved any more?"""
    return not gateway.gateway.accounts.budgets._reserved


async def test_at_its_budget_a_cloud_is_skipped_and_the_chain_goes_on() -> None:
    async with house({"c1": f"{PRICE}, budget: 1 USD/day", "c2": PRICE}, answered(0.6)) as (gateway, clouds):
        replies = [await ask(gateway) for _ in range(4)]
        assert [reply.headers["x-gateway-backend"] for reply in replies] == ["c1", "c1", "c2", "c2"]
        assert [reply.headers.get("x-gateway-fallback") for reply in replies] == [None, None, "budget", "budget"]
        assert replies[3].headers["x-gateway-attempts"] == "1"
        assert len(clouds["c1"].turns) == 2
        assert untouched(gateway)
        assert gateway.metric("gateway_cloud_usd_total", backend="c1", client="open") == pytest.approx(1.2)


async def test_when_only_the_budget_stands_there_it_is_402_and_says_until_when() -> None:
    async with house({"c1": f"{PRICE}, budget: 1 USD/month"}, answered(1.0)) as (gateway, clouds):
        assert (await ask(gateway)).status == 200
        refused = await ask(gateway)
        assert (refused.status, refused.json["error"]["code"]) == (402, "budget_exceeded")
        assert (
            "c1 costs money, and its budget is spent: 1.00 USD of 1 USD/month until 20"
            in refused.json["error"]["message"]
        )
        assert len(clouds["c1"].turns) == 1


async def test_where_something_else_may_come_back_it_is_not_402() -> None:
    fleet = {"a": "queue: {max_wait: 100ms}", "c1": f"{PRICE}, budget: 1 USD/day"}
    async with house(fleet, answered(1.0)) as (gateway, clouds):
        gateway.gateway.fleet["a"].evidence.cool_down(60.0, asyncio.get_running_loop().time())
        assert (await ask(gateway)).headers["x-gateway-backend"] == "c1"
        refused = await ask(gateway)
        assert (refused.status, refused.json["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "c1 costs money, and its budget is spent" in refused.json["error"]["message"]
        assert len(clouds["c1"].turns) == 1


CLIENTS = "clients: {hermes: {key: hermes-key, budget: 1 USD/week}, other: {key: other-key}}"


async def test_a_client_at_its_budget_is_served_by_what_costs_nothing() -> None:
    async with house({"c1": PRICE, "a": ""}, answered(1.0), clients=CLIENTS) as (gateway, _):
        assert (await ask(gateway, HERMES)).headers["x-gateway-backend"] == "c1"
        second = await ask(gateway, HERMES)
        assert (second.headers["x-gateway-backend"], second.headers["x-gateway-fallback"]) == ("a", "budget")
        assert (await ask(gateway, OTHER)).headers["x-gateway-backend"] == "c1", "another's money is its own"
        assert untouched(gateway)


async def test_spending_is_remembered_over_a_restart(tmp_path: Path) -> None:
    fleet = {"c1": f"{PRICE}, budget: 1 USD/month"}
    async with house(fleet, answered(1.0), data=tmp_path) as (gateway, _):
        assert (await ask(gateway)).status == 200
    async with house(fleet, answered(1.0), data=tmp_path) as (gateway, clouds):
        assert (await ask(gateway)).status == 402
        assert clouds["c1"].turns == []


async def test_many_at_a_time_overshoot_by_their_last_only() -> None:
    """Each probably costs 0.1 USD (100 tokens at 1,000 USD per million): so ten fit into 1 USD, and not one hundred."""
    go = asyncio.Event()
    fleet = {"c1": "price: {input: 0, output: 1000.0}, budget: 1 USD/day"}
    async with house(fleet, answered(0.001, go)) as (gateway, clouds):
        asking = [asyncio.create_task(ask(gateway)) for _ in range(100)]
        await gateway.until(lambda: sum(task.done() for task in asking) + len(clouds["c1"].turns) == 100)
        assert len(clouds["c1"].turns) == 10
        assert {task.result().status for task in asking if task.done()} == {402}
        go.set()
        replies = await asyncio.gather(*asking)
        assert sorted(reply.status for reply in replies) == [200] * 10 + [402] * 90
        assert untouched(gateway)


async def test_a_budget_that_is_spent_while_a_request_waits_for_a_slot_is_heeded() -> None:
    go = asyncio.Event()
    fleet = {"c1": f"{PRICE}, budget: 1 USD/day, slots: 1"}
    async with house(fleet, answered(1.0, go)) as (gateway, clouds):
        first, second = asyncio.create_task(ask(gateway)), asyncio.create_task(ask(gateway))
        await gateway.until(lambda: gateway.metric("gateway_queue_depth", backend="c1") == 1)
        go.set()
        codes = {reply.json.get("error", {}).get("code") for reply in await asyncio.gather(first, second)}
        assert codes == {None, "budget_exceeded"}
        assert len(clouds["c1"].turns) == 1
        assert untouched(gateway)


async def test_a_budget_that_is_spent_while_a_request_is_elsewhere_is_heeded() -> None:
    """Planned when there was money left; then its first backend took its time, and failed."""
    go = asyncio.Event()

    async def fails_late(turn: Turn) -> None:
        await go.wait()
        await turn.send(json_answer({"error": "no"}, "500 Internal Server Error"))

    async with house({"a": "", "c1": f"{PRICE}, budget: 1 USD/day"}, answered(1.0)) as (gateway, backends):
        backends["a"].play(fails_late)
        asking = asyncio.create_task(ask(gateway))
        await gateway.until(lambda: bool(backends["a"].turns))
        accounts = gateway.gateway.accounts
        accounts.budgets.add("c1", "another", 1.0, today())
        go.set()
        refused = await asking
        assert (refused.status, backends["c1"].turns) == (502, [])
        assert "c1 costs money, and its budget is spent" in refused.json["error"]["message"]


async def test_a_cloud_that_fails_gives_back_what_was_reserved() -> None:
    async def broken(turn: Turn) -> None:
        await turn.send(json_answer({"error": "no"}, "500 Internal Server Error"))

    async with house({"c1": f"{PRICE}, budget: 1 USD/day"}, broken) as (gateway, _):
        assert (await ask(gateway)).status == 502
        assert untouched(gateway)
        assert gateway.metric("gateway_cloud_usd_total", backend="c1", client="open") == 0.0


async def test_leaving_early_is_not_free() -> None:
    """A cloud that was asked and left is paid for its prompt, as far as that can be told."""
    never = asyncio.Event()
    fleet = {"c1": "price: {input: 1000.0, output: 0}, budget: 1 USD/day"}
    async with house(fleet, answered(0.0, never)) as (gateway, clouds):
        host, port = gateway.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_bytes(gateway.url, chat("chain", "x" * 5000)))
        await gateway.until(lambda: bool(clouds["c1"].turns))
        writer.close()
        await gateway.until(gateway.idle)
        assert gateway.metric("gateway_cloud_usd_total", backend="c1", client="open") > 1.0
        assert (await ask(gateway)).status == 402


async def test_an_unknown_price_is_said_and_held_by_no_budget(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    usage = answered(50.0)
    async with house({"c1": "budget: 1 USD/day"}, usage) as (gateway, _):
        assert [(await ask(gateway)).status for _ in range(3)] == [200] * 3
    said = [r.getMessage() for r in caplog.records if "what c1 costs is unknown" in r.getMessage()]
    assert len(said) == 1


async def test_a_request_that_costs_nothing_needs_no_budget() -> None:
    async with house({"a": "budget: 1 USD/day"}, answered(100.0)) as (gateway, _):
        assert [(await ask(gateway)).status for _ in range(3)] == [200] * 3


async def test_a_local_backend_may_have_a_price() -> None:
    async with house({"a": f"{PRICE}, budget: 1 USD/day", "b": ""}, answered(1.0)) as (gateway, _):
        assert [(await ask(gateway)).headers["x-gateway-backend"] for _ in range(2)] == ["a", "b"]
        assert gateway.metric("gateway_cloud_usd_total", backend="a", client="open") == 0.0, "it is no cloud"


async def test_explain_tells_of_a_spent_budget() -> None:
    async with house({"c1": f"{PRICE}, budget: 1 USD/day"}, answered(1.0)) as (gateway, _):
        await ask(gateway)
        told = (await gateway.client.post("/admin/explain", json={"alias": "chain"})).json()
        assert told["steps"][0]["backends"][0]["kind"] == "budget"
        assert told["error"]["code"] == "budget_exceeded"
