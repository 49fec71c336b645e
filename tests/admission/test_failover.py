"""A backend that does not answer is left for the next one: what counts as that, what it costs, what is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.domain.health_state import State
from simulator import SimVllm
from tests.limits import within
from tests.scripted import SSE_HEAD, Turn, answer, chunked, json_answer, raw_post, scripted
from tests.support import RunningGateway, from_clients, running_gateway

pytestmark = pytest.mark.decided_both_ways

SILENCE = "first_byte: 300ms"
ASK: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@dataclass
class Chain:
    """Two simulated backends, `a` before `b`, under the alias `chat`."""

    a: SimVllm
    b: SimVllm
    gateway: RunningGateway

    def untouched(self) -> None:
        """The first backend is as healthy as before."""
        health = self.gateway.gateway.fleet["a"].health
        assert (health.state, health.fails) == (State.READY, 0)

    async def ask(self, stream: bool, **more: Any) -> Any:
        return await raw_post(self.gateway.url, {**ASK, "stream": stream, **more})


@asynccontextmanager
async def chain(use: str = "[a, b]", timeouts: str = SILENCE) -> AsyncIterator[Chain]:
    a, b = SimVllm(name="a", served=["model-a"]), SimVllm(name="b", served=["model-b"])
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(sim.serve(port=0)) for sim in (a, b)]
        routes = f"""
defaults: {{queue: {{max_wait: 100ms}}}}
backends:
  a: {{url: "{urls[0]}", timeouts: {{{timeouts}}}}}
  b: {{url: "{urls[1]}"}}
aliases:
  chat: {{use: {use}}}
"""
        gateway = await stack.enter_async_context(running_gateway(routes))
        await gateway.until_ready("a", "b")
        yield Chain(a, b, gateway)


# name -> (fault, its options, only in a stream)
FAILURES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "refused": ("refuse", {}),
    "closed before a byte": ("die_before", {}),
    "reset before a byte": ("die_before", {"reset": True}),
    "closed early": ("die_mid", {"after": 0}),
    "reset early": ("die_mid", {"after": 0, "reset": True}),
    "silent": ("hang_before", {}),
    "silent after its head": ("hang_before_content", {}),
    "an engine that hangs": ("hang_engine", {}),
    "500": ("status", {"status": 500, "body": "vllm_engine_dead"}),
    "502 in HTML": ("status", {"body": "html_502"}),
    "503": ("status", {"status": 503, "body": "starting"}),
    "a 200 that is not JSON": ("status", {"body": "not_json"}),
    "a 200 without an answer": ("status", {"status": 200, "body": {"hello": "world"}}),
    "a redirect": ("status", {"status": 307, "body": "", "headers": {"location": "/elsewhere"}}),
    "an error event": ("error_event", {"after": 0}),
    "no finish_reason": ("end_without_finish", {"after": 0}),
    "abort": ("abort", {"after": 0}),
    "error as finish_reason": ("error_finish", {"after": 0}),
}


@both_ways
@pytest.mark.parametrize("name", FAILURES)
async def test_a_failing_backend_is_left_for_the_next(name: str, stream: bool) -> None:
    fault, options = FAILURES[name]
    async with chain() as c:
        c.a.fault(fault, **options)
        reply = await c.ask(stream)
        assert (reply.status, reply.ended) == (200, True)
        assert b"This is model-b" in reply.body if not stream else reply.text.startswith("This is model-b")
        assert reply.headers["x-gateway-backend"] == "b"
        assert reply.headers["x-gateway-attempts"] == "2"
        assert reply.headers["x-gateway-fallback"] == "failed"
        health = c.gateway.gateway.fleet["a"].health
        assert (health.state, health.fails) == (State.SUSPECT, 1)
        assert c.gateway.metric("gateway_attempts_total", backend="a", outcome="failed") == 1
        assert c.gateway.metric("gateway_failovers_total", alias="chat", reason="failed") == 1
        c.a.clear()


@both_ways
@pytest.mark.parametrize("name", ["reset before a byte", "500", "a 200 that is not JSON", "abort"])
async def test_when_the_last_fails_the_client_gets_a_502(name: str, stream: bool) -> None:
    fault, options = FAILURES[name]
    async with chain() as c:
        c.a.fault(fault, **options)
        c.b.fault(fault, **options)
        reply = await c.ask(stream)
        assert reply.status == 502
        assert reply.json["error"]["code"] == "upstream_error"
        assert "a " in reply.json["error"]["message"]
        assert "; b " in reply.json["error"]["message"]
        assert reply.headers["x-gateway-attempts"] == "2"


@both_ways
async def test_when_everybody_has_just_gone_the_client_is_told_to_wait(stream: bool) -> None:
    """From the first request on: an agent has three attempts, and spends them on 502s in seven seconds."""
    async with chain() as c:
        for sim in (c.a, c.b):
            sim.fault("refuse")
        for attempts in ("2", "2", "2", None):
            reply = await c.ask(stream)
            assert (reply.status, reply.json["error"]["code"]) == (429, "backend_warming")
            assert int(reply.headers["retry-after"]) >= 1
            assert reply.headers.get("x-gateway-attempts") == attempts
        assert reply.json["error"]["message"].startswith("No healthy backend for alias 'chat': a ")


@both_ways
async def test_when_the_last_stays_silent_the_client_gets_a_504(stream: bool) -> None:
    async with chain(use="[a]") as c:
        c.a.fault("hang_before")
        reply = await c.ask(stream)
        assert (reply.status, reply.json["error"]["code"]) == (504, "upstream_timeout")
        await c.a.wait_aborted(1)


@both_ways
async def test_a_silent_backend_is_left_at_its_budget_and_its_request_closed(stream: bool) -> None:
    async with chain() as c:
        c.a.fault("hang_before")
        began = time.monotonic()
        with within(2.0):
            reply = await c.ask(stream)
        assert time.monotonic() - began >= 0.3
        assert reply.headers["x-gateway-backend"] == "b"
        await c.a.wait_aborted(1)


async def test_a_backend_that_keeps_failing_is_not_asked_any_more() -> None:
    async with chain() as c:
        c.a.fault("status", status=500)
        for _ in range(5):
            assert (await c.ask(stream=False)).headers["x-gateway-backend"] == "b"
        assert len(from_clients(c.a.requests)) <= 3
        await c.gateway.until(lambda: c.gateway.state("a") is State.DOWN)


async def test_a_success_clears_the_failures_before_it() -> None:
    async with chain() as c:
        for _ in range(4):
            c.a.fault("status", status=500, count=1)
            assert (await c.ask(stream=False)).headers["x-gateway-backend"] == "b"
            assert (await c.ask(stream=False)).headers["x-gateway-backend"] == "a"
            c.untouched()


async def test_the_members_of_a_step_are_tried_before_the_next_step() -> None:
    async with chain(use="[[a, b]]") as c:
        for sim in (c.a, c.b):
            sim.fault("status", status=500, count=1)
        reply = await c.ask(stream=False)
        assert reply.status == 500, "both answer others, so the request is to blame"
        assert (len(from_clients(c.a.requests)), len(from_clients(c.b.requests))) == (1, 1)


async def test_every_attempt_has_its_own_id_upstream() -> None:
    async with chain() as c:
        c.a.fault("status", status=500)
        reply = await raw_post(c.gateway.url, ASK, headers=["x-request-id: mine"])
        assert reply.headers["x-request-id"] == "mine"
        assert [sim.requests[0].headers["x-request-id"] for sim in (c.a, c.b)] == ["mine", "mine-2"]


# -- 429 --------------------------------------------------------------------------------------------------------------


@both_ways
async def test_a_429_is_a_pause_and_no_failure(stream: bool) -> None:
    async with chain() as c:
        c.a.fault("status", status=429, headers={"retry-after": "30"}, count=1)
        reply = await c.ask(stream)
        assert (reply.headers["x-gateway-backend"], reply.headers["x-gateway-routed"]) == ("b", "busy")
        assert "x-gateway-fallback" not in reply.headers
        c.untouched()
        state = c.gateway.gateway.fleet["a"]
        assert 25 < state.cooldown_until - time.monotonic() <= 30
        assert (await c.ask(stream)).headers["x-gateway-backend"] == "b"
        assert len(c.a.requests) == 1
        state.cooldown_until = time.monotonic()  # the pause is over
        assert (await c.ask(stream)).headers["x-gateway-backend"] == "a"


@both_ways
async def test_when_all_ask_for_a_pause_the_client_is_asked_for_the_shortest(stream: bool) -> None:
    async with chain() as c:
        c.a.fault("status", status=429, headers={"retry-after": "300"})
        c.b.fault("status", status=429, headers={"retry-after": "30"})
        for _ in range(2):  # met just now, then known from before
            reply = await c.ask(stream)
            assert (reply.status, reply.json["error"]["code"]) == (429, "rate_limit_exceeded")
            assert 28 <= int(reply.headers["retry-after"]) <= 30
        assert (len(c.a.requests), len(c.b.requests)) == (1, 1)
        c.untouched()


async def test_a_pause_of_any_length_is_told_as_ten_minutes_at_most() -> None:
    async with chain(use="[a]") as c:
        c.a.fault("status", status=429, headers={"retry-after": "86400"})
        assert int((await c.ask(stream=False)).headers["retry-after"]) <= 600


@both_ways
async def test_vllms_full_queue_is_neutral(stream: bool) -> None:
    async with chain() as c:
        c.a.fault("status", body="vllm_busy", headers={"retry-after": "30"})
        reply = await c.ask(stream)
        assert (reply.headers["x-gateway-backend"], reply.headers["x-gateway-routed"]) == ("b", "busy")
        c.untouched()


# -- credentials and names --------------------------------------------------------------------------------------------

WRONG: Mapping[str, tuple[str, dict[str, Any]]] = {
    "401": ("status", {"status": 401, "body": "unauthorized"}),
    "403": ("status", {"status": 403, "body": {"error": {"message": "no"}}}),
    "404 of the model": ("wrong_model", {}),
}


@both_ways
@pytest.mark.parametrize("name", WRONG)
async def test_a_backend_that_refuses_our_key_or_name_is_misconfigured(name: str, stream: bool) -> None:
    fault, options = WRONG[name]
    async with chain() as c:
        c.a.fault(fault, **options, path="/v1/chat/completions")
        reply = await c.ask(stream)
        assert (reply.status, reply.headers["x-gateway-fallback"]) == (200, "misconfigured")
        assert c.gateway.state("a") is State.MISCONFIGURED
        await c.ask(stream)
        assert len(from_clients(c.a.requests)) == 1


@both_ways
@pytest.mark.parametrize("name", WRONG)
async def test_our_wrong_key_or_name_is_never_told_as_the_clients(name: str, stream: bool) -> None:
    fault, options = WRONG[name]
    async with chain(use="[a]") as c:
        c.a.fault(fault, **options, path="/v1/chat/completions")
        reply = await c.ask(stream)
        assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_error")


# -- the client's own mistakes ----------------------------------------------------------------------------------------


@both_ways
async def test_the_clients_mistake_is_passed_on_and_counts_for_nobody(stream: bool) -> None:
    async with chain() as c:
        reply = await c.ask(stream, temperature=-1)
        assert reply.status == 400
        assert reply.json == {
            "error": {
                "message": "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
                "type": "invalid_request_error",
                "param": "temperature",
                "code": None,
            }
        }
        assert c.b.requests == []
        c.untouched()
        assert c.gateway.metric("gateway_attempts_total", backend="a", outcome="client_error") == 1


@pytest.mark.parametrize("status", [402, 409, 422, 418])
async def test_any_other_4xx_keeps_its_status(status: int) -> None:
    async with chain() as c:
        c.a.fault("status", status=status, body={"error": {"message": "no", "code": "odd"}})
        reply = await c.ask(stream=False)
        assert (reply.status, reply.json["error"]["code"], reply.json["error"]["message"]) == (status, "odd", "no")
        assert c.b.requests == []
        c.untouched()


# -- stale connections ------------------------------------------------------------------------------------------------

CHUNK = b'data: {"id":"x","model":"m","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
WHOLE = {"id": "x", "model": "m", "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}


async def good(turn: Turn) -> None:
    if turn.json.get("stream"):
        await turn.stream(CHUNK, b"data: [DONE]\n\n")
    else:
        await turn.send(json_answer(WHOLE))


async def close(turn: Turn) -> None:
    turn.close()


async def reset(turn: Turn) -> None:
    turn.reset()


@both_ways
@pytest.mark.parametrize("end", [close, reset])
async def test_a_stale_connection_is_replaced_once_and_not_counted(end: Any, stream: bool) -> None:
    async with (
        scripted(good, end, good) as backend,
        running_gateway(f"backends: {{chat: {{url: '{backend.url}'}}}}") as gateway,
    ):
        await gateway.until_ready("chat")
        for _ in range(2):
            reply = await raw_post(gateway.url, {**ASK, "stream": stream})
            assert (reply.status, reply.headers["x-gateway-attempts"]) == (200, "1")
        first, stale, fresh = (turn.connection for turn in backend.turns)
        assert first == stale != fresh
        assert gateway.gateway.fleet["chat"].health.fails == 0
        assert gateway.metric("gateway_attempts_total", backend="chat", outcome="failed") == 0


async def test_the_second_try_is_not_made_on_another_stale_connection() -> None:
    """After a restart of the backend every pooled connection is dead."""
    both = asyncio.Event()

    async def first_then_dead(turn: Turn) -> None:
        if len(backend.turns) <= 2:
            if len(backend.turns) == 2:
                both.set()
            await both.wait()  # so that two connections are opened, and pooled
            await good(turn)
        elif turn.connection in {t.connection for t in backend.turns[:2]}:
            turn.close()
        else:
            await good(turn)

    async with (
        scripted(first_then_dead) as backend,
        running_gateway(f"backends: {{chat: {{url: '{backend.url}'}}}}") as gateway,
    ):
        await gateway.until_ready("chat")
        await asyncio.gather(*(raw_post(gateway.url, ASK) for _ in range(2)))
        assert (await raw_post(gateway.url, ASK)).status == 200
        assert len(backend.turns) == 4


async def test_a_connection_that_was_not_reused_is_not_tried_again() -> None:
    async with (
        scripted(close) as backend,
        running_gateway(f"backends: {{chat: {{url: '{backend.url}'}}}}") as gateway,
    ):
        await gateway.until_ready("chat")
        assert (await raw_post(gateway.url, ASK)).status == 502
        assert [turn.headers["x-request-id"].startswith("probe-") for turn in backend.turns] == [False, True]


async def test_a_reused_connection_that_dies_after_a_byte_is_a_failure() -> None:
    async def half(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(b"data: {"))
        turn.close()

    async with (
        scripted(good, half, good) as backend,
        running_gateway(f"backends: {{chat: {{url: '{backend.url}'}}}}") as gateway,
    ):
        await gateway.until_ready("chat")
        assert (await raw_post(gateway.url, {**ASK, "stream": True})).status == 200
        assert (await raw_post(gateway.url, {**ASK, "stream": True})).status == 502
        assert gateway.metric("gateway_attempts_total", backend="chat", outcome="failed") == 1
        assert gateway.gateway.fleet["chat"].health.fails == 0, "a harmless request was answered"


async def test_an_answer_that_is_larger_than_the_limit_is_a_failure() -> None:
    async def flood(turn: Turn) -> None:
        await turn.send(answer(b" " * 100_000))

    async with (
        scripted(flood) as backend,
        running_gateway(f"server: {{max_body: 64KiB}}\nbackends: {{chat: {{url: '{backend.url}'}}}}") as gateway,
    ):
        await gateway.until_ready("chat")
        assert (await raw_post(gateway.url, ASK)).status == 502
