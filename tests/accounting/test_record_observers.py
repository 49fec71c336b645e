"""Observers get the record of each request once, when it has ended, with all that it came to."""

from __future__ import annotations

import pytest

from gateway.accounting.record import RequestRecord, Settler
from simulator import SimVllm
from tests.raw_client import chat, raw_client
from tests.support import RunningGateway, running_gateway

CHAT = "/v1/chat/completions"


class Observer:
    """Keeps what it saw of each record: the record itself gives up its bytes afterwards."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.seen: list[RequestRecord] = []
        self.attempts: list[list[tuple[str, bool]]] = []
        gateway.gateway.services.observers.append(self)

    def __call__(self, record: RequestRecord) -> None:
        self.seen.append(record)
        self.attempts.append([(attempt.state.name, attempt.answered) for attempt in record.attempts])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failover_is_one_record_with_both_attempts(stream: bool) -> None:
    first, second = SimVllm("a"), SimVllm("b")
    async with first.serve() as one, second.serve() as two:
        routes = f"backends: {{a: {{url: '{one}'}}, b: {{url: '{two}'}}}}\naliases: {{chain: [a, b]}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            first.fault("status", status=500, count=1)
            observer = Observer(gateway)
            await gateway.client.post(CHAT, json=chat("chain", stream=stream))
            await gateway.until(gateway.idle)
    (record,) = observer.seen
    assert observer.attempts == [[("a", False), ("b", True)]]
    assert [(tried.backend, tried.kind) for tried in record.tried] == [("a", "failed")]
    assert (record.alias, record.outcome, record.client_label, record.committed) == ("chain", "200", "open", stream)
    assert record.request is not None
    assert record.request.stream is stream
    assert record.queued == 0.0
    assert record.seconds > 0


async def test_the_record_of_a_refused_request_says_how_far_it_came() -> None:
    async with SimVllm("a").serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        observer = Observer(gateway)
        await gateway.client.post(CHAT, content=b"no json")
        await gateway.client.post(CHAT, json=chat("nobody"))
        await gateway.until(gateway.idle)
    unread, unknown = observer.seen
    assert (unread.outcome, unread.request, unread.alias, unread.queued) == ("invalid_request_body", None, "", None)
    assert (unknown.outcome, unknown.alias, unknown.queued) == ("model_not_found", "", None)
    assert unknown.request is not None
    assert unknown.request.model == "nobody"
    assert observer.attempts == [[], []]


async def test_a_client_that_leaves_is_observed_once() -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        observer = Observer(gateway)
        sim.fault("hang_mid", after=3)
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, chat("a", stream=True))
            await client.until(b'"content"')
            client.close()
            await sim.wait_aborted()
        await gateway.until(gateway.idle)
    assert [record.outcome for record in observer.seen] == ["client_gone"]
    assert observer.attempts == [[("a", False)]]


async def test_an_observer_that_fails_costs_neither_the_answer_nor_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError

    async with SimVllm("a").serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        gateway.gateway.services.observers.append(broken)
        observer = Observer(gateway)
        assert (await gateway.client.post(CHAT, json=chat("a"))).status_code == 200
        await gateway.until(gateway.idle)
        assert gateway.metric("gateway_internal_failures_total", part="settle") == 1
        monkeypatch.setattr(Settler, "settle", broken)
        assert (await gateway.client.post(CHAT, json=chat("a"))).status_code == 200
        await gateway.until(gateway.idle)
        assert gateway.metric("gateway_internal_failures_total", part="settle") == 3
    assert [record.outcome for record in observer.seen] == ["200", "200"], "also where counting failed"
