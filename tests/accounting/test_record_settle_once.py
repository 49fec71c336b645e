"""Every request is settled once: its outcome, its attempts, its tokens and its times, under labels that are bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from simulator import SimVllm
from tests.raw_client import chat, raw_client
from tests.support import RunningGateway, running_gateway

CHAT = "/v1/chat/completions"


@asynccontextmanager
async def chain(*sims: SimVllm) -> AsyncIterator[RunningGateway]:
    """A gateway with the alias `chain`: these backends, in order."""
    async with sims[0].serve() as one, sims[-1].serve() if len(sims) > 1 else sims[0].serve() as two:
        both = {sims[0].name: one, sims[-1].name: two}
        backends = ", ".join(f"{name}: {{url: '{url}'}}" for name, url in both.items())
        routes = f"backends: {{{backends}}}\naliases: {{chain: {{use: [{', '.join(both)}], also: ['any-*']}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready(*both)
            yield gateway


async def ask(gateway: RunningGateway, model: str = "chain", **body: Any) -> httpx.Response | None:
    """None = the stream was cut."""
    try:
        return await gateway.client.post(CHAT, json=chat(model, **body))
    except httpx.RemoteProtocolError:
        return None


def samples(gateway: RunningGateway, name: str) -> dict[tuple[str, ...], float]:
    """Label values -> value, without the zeros."""
    found = {}
    for family in gateway.gateway.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == name and sample.value:
                found[tuple(sample.labels.values())] = sample.value
    return found


async def settled(gateway: RunningGateway) -> dict[tuple[str, ...], float]:
    """gateway_requests_total as (alias, backend, endpoint, code) -> count, once nothing is under way."""
    await gateway.until(gateway.idle)
    requests = samples(gateway, "gateway_requests_total")
    assert gateway.metric("gateway_request_seconds_count") == sum(requests.values())
    return requests


def first_tokens(gateway: RunningGateway) -> dict[tuple[str, ...], float]:
    return samples(gateway, "gateway_time_to_first_token_seconds_count")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_settled_once_with_its_tokens(stream: bool) -> None:
    sim = SimVllm("a")
    async with chain(sim, SimVllm("b")) as gateway:
        answer = await ask(gateway, said="20 words")
        assert answer is not None
        usage = answer.json()["usage"]
        for _ in range(2):
            await ask(gateway, said="20 words", stream=stream)
        assert await settled(gateway) == {("chain", "a", "chat", "200"): 3}
        assert samples(gateway, "gateway_attempts_total") == {("a", "ok"): 3}
        assert samples(gateway, "gateway_failovers_total") == {}
        assert first_tokens(gateway) == {("chain", "a"): 3}
        assert samples(gateway, "gateway_tokens_total") == {
            ("open", "chain", "a", "prompt"): 3 * usage["prompt_tokens"],
            ("open", "chain", "a", "completion"): 3 * usage["completion_tokens"],
        }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failover_is_one_request_and_two_attempts(stream: bool) -> None:
    first, second = SimVllm("a"), SimVllm("b")
    async with chain(first, second) as gateway:
        first.fault("status", status=500, count=1)
        await ask(gateway, stream=stream)
        assert await settled(gateway) == {("chain", "b", "chat", "200"): 1}
        assert samples(gateway, "gateway_attempts_total") == {("a", "failed"): 1, ("b", "ok"): 1}
        assert samples(gateway, "gateway_failovers_total") == {("chain", "failed"): 1}
        assert first_tokens(gateway) == {("chain", "b"): 1}
        assert {labels[2] for labels in samples(gateway, "gateway_tokens_total")} == {"b"}


async def test_a_stream_that_breaks_is_no_success_and_what_came_is_counted() -> None:
    sim = SimVllm("a")
    async with chain(sim, SimVllm("b")) as gateway:
        sim.fault("die_mid", after=3)
        assert await ask(gateway, stream=True) is None
        requests = await settled(gateway)
        assert {labels[3]: count for labels, count in requests.items()} == {"stream_interrupted": 1}
        assert samples(gateway, "gateway_attempts_total") == {("a", "interrupted"): 1}
        assert samples(gateway, "gateway_tokens_total") == {("open", "chain", "a", "completion"): 3}


async def test_a_request_that_nobody_could_serve_is_counted_by_its_code() -> None:
    first, second = SimVllm("a"), SimVllm("b")
    async with chain(first, second) as gateway:
        for sim in (first, second):
            sim.fault("status", status=500, count=1)
        await ask(gateway)
        assert {labels[3]: count for labels, count in (await settled(gateway)).items()} == {"upstream_error": 1}
        assert samples(gateway, "gateway_attempts_total") == {("a", "failed"): 1, ("b", "failed"): 1}
        assert first_tokens(gateway) == {}


async def test_a_mistake_of_the_client_is_counted_by_its_status() -> None:
    sim = SimVllm("a")
    async with chain(sim, SimVllm("b")) as gateway:
        sim.fault("status", status=400, count=1)
        await ask(gateway)
        assert {labels[3]: count for labels, count in (await settled(gateway)).items()} == {"400": 1}
        assert samples(gateway, "gateway_attempts_total") == {("a", "client_error"): 1}


async def test_a_client_that_left_is_counted_once() -> None:
    sim = SimVllm("a")
    async with chain(sim, SimVllm("b")) as gateway:
        sim.fault("hang_mid", after=3)
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, chat("chain", stream=True))
            await client.until(b'"content"')
            client.close()
            await sim.wait_aborted()
        assert {labels[3]: count for labels, count in (await settled(gateway)).items()} == {"client_gone": 1}
        assert samples(gateway, "gateway_tokens_total") == {("open", "chain", "a", "completion"): 3}


async def test_labels_are_never_a_clients_own_words() -> None:
    """A million model names must not be a million series."""
    async with chain(SimVllm("a"), SimVllm("b")) as gateway:
        for number in range(30):
            headers = {"x-request-id": f"evil-id-{number}", "user-agent": f"evil-agent-{number}"}
            for model in (f"evil-{number}", f"any-evil-{number}"):
                await gateway.client.post(CHAT, json=chat(model, stream=number % 2 == 0), headers=headers)
            await gateway.client.post(CHAT, content=b'{"model": ["evil"]}')
            await gateway.client.get(f"/evil-{number}")
        assert await settled(gateway) == {
            ("chain", "a", "chat", "200"): 30,
            ("", "", "chat", "model_not_found"): 30,
            ("", "", "chat", "invalid_request_body"): 30,
        }
        assert "evil" not in (await gateway.client.get("/metrics")).text
