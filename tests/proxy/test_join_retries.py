"""`join_retries: true`: a repeat gets the answer of the first request, and only a true repeat does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from simulator import SimVllm
from tests.queueing import queue
from tests.raw_client import chat, raw_client
from tests.scripted import json_answer
from tests.support import RunningGateway, from_clients, running_gateway

CHAT = "/v1/chat/completions"
KEYS = "clients: {one: {key: one-key}, two: {key: two-key}, few: {key: few-key, rpm: 2, tpm: 1200}}\n"
ONE = {"authorization": "Bearer one-key"}
KEY = {"idempotency_key": "k1"}


@asynccontextmanager
async def joining(sim: SimVllm, more: str = KEYS) -> AsyncIterator[RunningGateway]:
    async with sim.serve() as url:
        backends = f"backends: {{a: {{url: '{url}', slots: 8}}}}\n"
        aliases = "aliases: {j: {use: [a], join_retries: true}, other: {use: [a], join_retries: true}, plain: [a]}\n"
        async with running_gateway(backends + aliases + more) as gateway:
            await gateway.until_ready("a")
            yield gateway


async def ask(gateway: RunningGateway, path: str = CHAT, body: Any = None, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    fields = {**ONE, "content-type": "application/json", **named}
    return await gateway.client.post(path, content=json.dumps(body or chat("j")), headers=fields)


def asked(sim: SimVllm) -> int:
    return len(from_clients(sim.requests))


async def waiting(gateway: RunningGateway, count: int) -> None:
    """So many requests are under way, all but one of which wait for its answer."""
    await gateway.until(lambda: len(gateway.requests()) == count)
    await gateway.until(lambda: sum(len(r._waiting) for r in gateway.gateway.services.joins.running.values()) > 0)


BODIES = {
    CHAT: chat("j"),
    "/v1/completions": {"model": "j", "prompt": "say it", "max_tokens": 8},
    "/v1/messages": {"model": "j", "max_tokens": 8, "messages": [{"role": "user", "content": "say it"}]},
    "/v1/embeddings": {"model": "j", "input": "say it"},
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_repeat_within_a_minute_gets_the_same_answer(path: str) -> None:
    sim = SimVllm("a", pooling=path == "/v1/embeddings")
    async with joining(sim) as gateway:
        first = await ask(gateway, path, BODIES[path], idempotency_key="k1", x_request_id="first")
        again = await ask(gateway, path, BODIES[path], idempotency_key="k1", x_request_id="again")
        assert (first.status_code, again.status_code, asked(sim)) == (200, 200, 1)
        assert "x-gateway-joined" not in first.headers
        assert (again.headers["x-gateway-joined"], again.headers["x-request-id"]) == ("first", "again")
        assert again.headers["x-gateway-backend"] == "a"
        ours = {"id"} if path == "/v1/messages" else set()  # made of the request's own id
        same = [{name: value for name, value in one.json().items() if name not in ours} for one in (first, again)]
        assert same[0] == same[1]


async def test_a_repeat_is_counted_as_a_request_and_costs_nothing() -> None:
    sim = SimVllm("a")
    async with joining(sim) as gateway:
        for _ in range(3):
            await ask(gateway, **KEY)
        await gateway.until(gateway.idle)
        labels = {"alias": "j", "endpoint": "chat"}
        assert gateway.metric("gateway_requests_total", backend="a", code="200", **labels) == 1
        assert gateway.metric("gateway_requests_total", backend="", code="joined", **labels) == 2
        tokens = gateway.metric("gateway_tokens_total", client="one", alias="j", backend="a", kind="prompt")
        first = await ask(gateway, **KEY)
        assert tokens == first.json()["usage"]["prompt_tokens"]


async def test_those_that_repeat_while_it_runs_wait_for_its_answer() -> None:
    sim = SimVllm("a")
    async with joining(sim) as gateway:
        sim.fault("hang_mid", after=2)
        asks = [asyncio.create_task(ask(gateway, x_request_id="same")) for _ in range(4)]
        await waiting(gateway, 4)
        sim.clear()
        answers = await asyncio.gather(*asks)
        assert [answer.status_code for answer in answers] == [200] * 4
        assert len({answer.content for answer in answers}) == 1
        assert sorted("x-gateway-joined" in answer.headers for answer in answers) == [False, True, True, True]
        assert asked(sim) == 1


async def test_when_the_first_fails_exactly_one_of_those_that_wait_goes_on() -> None:
    async with queue("a: 8", "j: {use: [a], join_retries: true}") as waiters:
        gateway, gate = waiters.gateway, waiters.gate
        body = chat("j", messages=[{"role": "user", "content": "x"}])
        asks = [asyncio.create_task(ask(gateway, body=body, **KEY)) for _ in range(4)]
        await waiting(gateway, 4)
        await waiters.until_inside("x")
        gate.end("x", with_=json_answer({"error": {"message": "no"}}, "400 Bad Request"))
        await gateway.until(lambda: len(gate.order) == 2 and "x" in gate.inside)
        assert len(gateway.requests()) == 3
        gate.end("x")
        statuses = sorted([answer.status_code for answer in await asyncio.gather(*asks)])
        assert (statuses, gate.order) == ([200, 200, 200, 400], ["x", "x"])


async def test_an_answer_that_failed_is_not_joined_later() -> None:
    sim = SimVllm("a")
    async with joining(sim) as gateway:
        sim.fault("status", status=400, body="vllm_bad_request", count=1)
        assert (await ask(gateway, **KEY)).status_code == 400
        again = await ask(gateway, **KEY)
        assert (again.status_code, "x-gateway-joined" in again.headers) == (200, False)


DIFFERENT: dict[str, tuple[str, Any, dict[str, str]]] = {
    "another client": (CHAT, None, {"authorization": "Bearer two-key"}),
    "another idempotency key": (CHAT, None, {"idempotency_key": "k2"}),
    "another body": (CHAT, chat("j", seed=7), {}),
    "another alias": (CHAT, chat("other"), {}),
    "an alias without it": (CHAT, chat("plain"), {}),
    "a stream": (CHAT, chat("j", stream=True), {}),
    "local only": (CHAT, None, {"x_gateway_local_only": "1"}),
    "another session": (CHAT, None, {"x_openwebui_chat_id": "c2"}),
    "no idempotency key, only its text as request id": (CHAT, None, {"idempotency_key": "", "x_request_id": "k1"}),
}


@pytest.mark.parametrize("name", DIFFERENT)
async def test_what_differs_is_not_joined(name: str) -> None:
    path, body, headers = DIFFERENT[name]
    sim = SimVllm("a")
    async with joining(sim) as gateway:
        await ask(gateway, **KEY)
        for count in (2, 3) if name in ("a stream", "an alias without it") else (2,):
            other = await ask(gateway, path, body, **{**KEY, **headers})
            assert (other.status_code, asked(sim)) == (200, count)
            assert "x-gateway-joined" not in other.headers


@pytest.mark.parametrize("headers", [{}, {"x_request_id": "not well formed"}, {"idempotency_key": ""}])
async def test_without_an_id_of_the_client_nothing_is_joined(headers: dict[str, str]) -> None:
    sim = SimVllm("a")
    async with joining(sim) as gateway:
        for _ in range(2):
            await ask(gateway, **headers)
        assert asked(sim) == 2
        assert len(gateway.gateway.services.joins.kept) == 0


async def test_callers_behind_a_proxy_are_not_one_caller_without_keys() -> None:
    sim = SimVllm("a")
    async with joining(sim, "") as gateway:
        for count, headers in ((1, {}), (1, {}), (2, {"x_forwarded_for": "10.0.0.1"}), (3, {"via": "1.1 nginx"})):
            await ask(gateway, **KEY, **headers)
            assert asked(sim) == count


async def test_without_keys_an_address_and_what_it_sends_as_key_are_a_caller() -> None:
    sim = SimVllm("a")
    async with joining(sim, "") as gateway:
        await ask(gateway, **KEY)
        await ask(gateway, **KEY, authorization="Bearer another")
        assert asked(sim) == 2
        other = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=gateway.url, transport=other) as client:
            fields = {**ONE, "content-type": "application/json", "idempotency-key": "k1"}
            answer = await client.post(CHAT, content=json.dumps(chat("j")), headers=fields)
        assert (answer.status_code, asked(sim)) == (200, 3)


async def test_streams_at_the_same_time_run_side_by_side() -> None:
    sim = SimVllm("a")
    async with joining(sim) as gateway:
        sim.fault("hang_mid", after=2)
        asks = [asyncio.create_task(ask(gateway, body=chat("j", stream=True), **KEY)) for _ in range(2)]
        await sim.wait_inflight(2)
        sim.clear()
        assert [answer.status_code for answer in await asyncio.gather(*asks)] == [200, 200]


async def test_a_repeat_while_the_first_runs_needs_no_tokens_of_the_limit() -> None:
    sim = SimVllm("a")
    async with joining(sim) as gateway:
        sim.fault("hang_mid", after=2)
        body = chat("j", max_tokens=1000)  # two of these are more than the limit
        asks = [asyncio.create_task(ask(gateway, body=body, authorization="Bearer few-key", **KEY)) for _ in range(2)]
        await waiting(gateway, 2)
        sim.clear()
        assert [answer.status_code for answer in await asyncio.gather(*asks)] == [200, 200]


async def test_a_client_that_leaves_and_comes_again_gets_the_answer_of_its_first_request() -> None:
    sim = SimVllm("a")
    async with joining(sim) as gateway:
        sim.fault("hang_mid", after=2)
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, chat("j"), "authorization: Bearer one-key", "idempotency-key: k1")
            await sim.wait_inflight(1)
            client.close()
        running = next(iter(gateway.gateway.services.joins.running.values()))
        await gateway.until(lambda: running._alone is not None)
        again = asyncio.create_task(ask(gateway, **KEY))
        await waiting(gateway, 2)
        assert running._alone is None
        sim.clear()
        assert (await again).headers["x-gateway-joined"] != (await again).headers["x-request-id"]
        await gateway.until(gateway.idle)
        assert (asked(sim), sim.aborted) == (1, 0)
        assert (
            gateway.metric("gateway_requests_total", alias="j", backend="a", endpoint="chat", code="client_gone") == 1
        )


async def test_a_gateway_that_stops_does_not_wait_for_a_request_without_a_client() -> None:
    sim = SimVllm("a")
    async with joining(sim) as gateway:
        sim.fault("hang_mid", after=2)
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, chat("j"), "authorization: Bearer one-key", "idempotency-key: k1")
            await sim.wait_inflight(1)
            client.close()
        running = next(iter(gateway.gateway.services.joins.running.values()))
        await gateway.until(lambda: running._alone is not None)
        gateway.gateway.begin_stop()
        await sim.wait_aborted(1)
        await gateway.until(gateway.idle)


async def test_an_edit_counts_for_the_next_repeat_and_leaves_nothing_behind() -> None:
    sim = SimVllm("a")
    async with joining(sim) as gateway:
        sim.fault("hang_mid", after=2)
        asks = [asyncio.create_task(ask(gateway, **KEY)) for _ in range(2)]
        await waiting(gateway, 2)
        was = gateway.gateway.snapshot
        aliases = {name: replace(alias, join_retries=False) for name, alias in was.aliases.items()}
        await gateway.gateway.put_in_force(replace(was, aliases=aliases))
        later = asyncio.create_task(ask(gateway, **KEY))
        await sim.wait_for(lambda: asked(sim) == 2)
        sim.clear()
        answers = [*await asyncio.gather(*asks), await later]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert ["x-gateway-joined" in answer.headers for answer in answers].count(True) == 1
        await gateway.until(gateway.idle)
        assert gateway.gateway.services.joins.running == {}
        await gateway.gateway.put_in_force(replace(was, clients={}))
        assert "x-gateway-joined" not in (await ask(gateway, **KEY)).headers


async def test_a_repeat_counts_against_rpm_and_not_against_tpm() -> None:
    sim = SimVllm("a")
    async with joining(sim) as gateway:
        body = chat("j", max_tokens=1000)
        answers = [await ask(gateway, body=body, authorization="Bearer few-key", **KEY) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert "rpm" in json.loads(answers[2].content)["error"]["message"]
