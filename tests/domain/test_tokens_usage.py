"""What a backend reports of tokens is bounded where it enters: nothing that others read, spend or are limited by can be
spoilt by it, and what was spent is known after a restart."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from gateway.accounting.accounts import today
from gateway.accounting.budgets import Account, Budgets
from gateway.accounting.ledger_file import sums_since
from gateway.accounting.prices import Rates
from gateway.apps.dialects.anthropic.answer import usage_of
from gateway.apps.tracing.spans import usage_attributes
from gateway.domain.tokens import COUNT_MOST, NO_TOKENS, Tokens, count_of, is_beyond_belief, read_usage
from gateway.inspection.heuristics import empty_kind, swallowed
from tests.scripted import ScriptedBackend, Turn, answer, chunked, raw_post, scripted
from tests.support import RunningGateway, running_gateway

DETAILS = ("prompt_tokens_details", "completion_tokens_details")
NAMES = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens", *DETAILS)
numbers = st.sampled_from([0, 1, 7, -1, COUNT_MOST, COUNT_MOST + 1, 2**31, 2**53, 2**63, 2**64, 10**400, -(10**400)])
odd = st.recursive(
    st.none() | st.booleans() | numbers | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
usages = odd | st.dictionaries(st.sampled_from(NAMES), odd, max_size=5)


@given(usages)
def test_a_usage_object_is_read_as_bounded_counts_whatever_it_is(usage: Any) -> None:
    used = read_usage(usage)
    assert all(type(count) is int and 0 <= count <= COUNT_MOST for count in astuple(used))
    assert isfinite(Rates(1.0, 2.0, 0.5).usd(used))
    is_beyond_belief(usage)
    empty_kind(usage)
    swallowed(5, usage)
    json.dumps(usage_attributes(usage if isinstance(usage, dict) else {}))
    told = usage_of(usage)
    assert all(type(count) is int and 0 <= count <= COUNT_MOST for count in told.values())


@pytest.mark.parametrize(
    "value", [True, False, 1.0, 5.5, "5", None, [], {}, -1, COUNT_MOST + 1, float("nan"), float("inf")]
)
def test_what_is_no_count_counts_as_nothing(value: Any) -> None:
    assert count_of(value) == 0
    assert read_usage({"prompt_tokens": value, "prompt_tokens_details": {"cached_tokens": value}}) == NO_TOKENS


def test_counts_are_read() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 4}}
    assert read_usage({"prompt_tokens": 7, "completion_tokens": COUNT_MOST, **details}) == Tokens(7, COUNT_MOST, 3, 4)


@given(st.lists(st.floats(), max_size=6))
def test_no_amount_spoils_a_budget(amounts: list[float]) -> None:
    budgets = Budgets()
    for usd in amounts:
        budgets.add("cloud", "x", usd, 5)
    spent = sum(usd for _, account, usd in budgets.totals() if account == Account("backend", "cloud"))
    assert spent >= 0.0
    assert spent == pytest.approx(sum(usd for usd in amounts if isfinite(usd) and usd > 0.0))


# -- through the gateway ----------------------------------------------------------------------------------------------

ODD: list[Any] = [
    {"prompt_tokens": 2**63, "completion_tokens": 5},
    {"prompt_tokens": 5, "completion_tokens": 2**63},
    {"prompt_tokens": 10**400, "completion_tokens": 10**400, "total_tokens": 10**400},
    {"prompt_tokens": 5, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2**70}},
    {"prompt_tokens": 5, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 10**400}},
    {"prompt_tokens": -(2**63), "completion_tokens": -1},
    {"prompt_tokens": 1.5, "completion_tokens": 1e300},
    {"prompt_tokens": "7", "completion_tokens": "x"},
    {"prompt_tokens": None, "completion_tokens": True},
    {"prompt_tokens": {"a": 1}, "completion_tokens": [1], "prompt_tokens_details": 5},
    {"prompt_tokens_details": {"cached_tokens": {}}, "completion_tokens_details": []},
    {},
    [],
    5,
    "x",
]
PRICE = "price: {input: 1.0, output: 10.0}"  # USD per million
KEY = "authorization: Bearer the-key-of-x"


def says(usage: Any, *, text: str = "hello") -> Any:
    """A script: an answer with this usage, as it was asked for."""

    async def play(turn: Turn) -> None:
        head = {"id": "x", "created": 2, "model": "served/model"}
        if turn.json.get("stream"):
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
            end = {"index": 0, "delta": {}, "finish_reason": "stop"}
            chunks = [
                {**head, "choices": [choice]},
                {**head, "choices": [end]},
                {**head, "choices": [], "usage": usage},
            ]
            events = [b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks]
            await turn.stream(*events, b"data: [DONE]\n\n")
        else:
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            await turn.send(answer(json.dumps({**head, "choices": [choice], "usage": usage}).encode()))

    return play


@asynccontextmanager
async def priced(backend: ScriptedBackend, data: Path, more: str = "") -> AsyncIterator[RunningGateway]:
    routes = f"""
server: {{data: '{data}'}}
backends:
  a: {{url: '{backend.url}', engine: openai, cloud: true, model: served/model, budget: 5 USD/day, {PRICE}}}
aliases: {{chain: [a]}}
clients:
  x: {{key: the-key-of-x, tpm: 1000000, admin: true{more}}}
"""
    async with running_gateway(routes) as gateway:
        gateway.client.headers["authorization"] = "Bearer the-key-of-x"
        yield gateway


async def ask(gateway: RunningGateway, path: str = "/v1/chat/completions", **more: Any) -> int:
    body = {"model": "chain", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10, **more}
    return (await raw_post(gateway.url, body, path, [KEY])).status


def spent(gateway: RunningGateway) -> float:
    budgets = gateway.gateway.accounts.budgets
    return sum(usd for day, account, usd in budgets.totals() if account == Account("backend", "a") and day == today())


@pytest.mark.parametrize("usage", ODD, ids=lambda usage: str(usage)[:60])
async def test_odd_usage_spoils_nothing_for_others_and_is_no_new_budget(tmp_path: Path, usage: Any) -> None:
    good = {"prompt_tokens": 0, "completion_tokens": 100_000}  # 1 USD
    async with scripted(says(good)) as backend:
        async with priced(backend, tmp_path) as gateway:
            assert await ask(gateway) == 200
            backend.play(says(usage))
            for path in ("/v1/chat/completions", "/v1/messages"):
                for stream in (False, True):
                    assert await ask(gateway, path, stream=stream) == 200
            backend.play(says(good))
            assert await ask(gateway) == 200, "neither its budget nor the client's limit is used up"
            for page in ("/metrics", "/status", "/status/history", "/status/usage"):
                assert (await gateway.client.get(page)).status_code == 200, page
            known = spent(gateway)
            assert 2.0 <= known < 2.1
            assert gateway.metric("gateway_internal_failures_total", part="ledger") == 0.0
            assert gateway.gateway._lost()["ledger"] == 0
            tokens = [count.value for _, count in gateway.gateway.metrics.tokens.items()]
            assert all(0 <= count <= 10 * COUNT_MOST for count in tokens)
        async with priced(backend, tmp_path) as gateway:
            assert spent(gateway) == pytest.approx(known)
    (sums,) = sums_since(tmp_path / "usage.db", 0.0)
    assert sums.requests == 6
    assert sums.completion >= 200_000


async def test_a_count_that_cannot_be_is_counted_as_the_estimate(tmp_path: Path) -> None:
    script = says({"prompt_tokens": 2**63, "completion_tokens": 2})
    async with scripted(script) as backend, priced(backend, tmp_path) as gateway:
        assert await ask(gateway, max_tokens=1000) == 200
        assert 0.01 <= spent(gateway) < 0.02, "1,000 tokens of answer at 10 USD per million"
        assert gateway.metric("gateway_violations_total", backend="a", kind="usage") == 1.0


async def test_a_chunk_of_usage_in_the_middle_of_a_stream_is_bounded(tmp_path: Path) -> None:
    """Continuous usage statistics, each of them absurd."""

    async def play(turn: Turn) -> None:
        lines = []
        for count in (2**63, 10**400, "x", -5):
            choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": None}
            lines.append({"id": "x", "model": "m", "choices": [choice], "usage": {"completion_tokens": count}})
        lines.append({"id": "x", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        events = [b"data: " + json.dumps(line).encode() + b"\n\n" for line in lines]
        await turn.send(head + chunked(*events, b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with scripted(play) as backend, priced(backend, tmp_path) as gateway:
        for path in ("/v1/chat/completions", "/v1/messages"):
            assert await ask(gateway, path, stream=True) == 200
        assert (await gateway.client.get("/metrics")).status_code == 200
        assert sum(gateway.gateway.failed_parts().values()) == 0
