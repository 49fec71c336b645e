"""`GET /status` and `GET /events`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.apps.page import status
from gateway.config.snapshot import Launch
from gateway.domain.events import Event
from gateway.domain.health_state import State
from gateway.launch.command import ServeCommand
from simulator import SimVllm
from tests.support import PATIENCE, RunningGateway, running_gateway

FAST = "defaults: {health: {every: 50ms, fail_after: 2, recover_after: 2}, queue: {max_wait: 0s}}\n"
PROMPT = "my-secret-prompt"


@asynccontextmanager
async def two(more: str = "", declared: str = "") -> AsyncIterator[tuple[RunningGateway, SimVllm, SimVllm]]:
    """Backends a and b, and the alias w that falls from one to the other."""
    a, b = SimVllm("a", served=["Qwen3-4B-Instruct-2507"], context=8192), SimVllm("b")
    async with a.serve() as first, b.serve() as second:
        routes = (
            f"{FAST}backends: {{a: {{url: '{first}'{declared}}}, b: {{url: '{second}'}}}}\naliases: {{w: [a, b]}}\n"
        )
        async with running_gateway(routes + more) as gateway:
            await gateway.until_ready("a", "b")
            yield gateway, a, b


async def asked(gateway: RunningGateway, **headers: str) -> dict[str, Any]:
    answer = await gateway.client.get("/status", headers=headers)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


class Reader:
    """One reader of /events."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self.lines = lines

    async def line(self) -> str:
        async with asyncio.timeout(PATIENCE):
            return await anext(self.lines)

    async def event(self) -> tuple[str, dict[str, Any]]:
        while not (line := await self.line()).startswith("event: "):
            pass
        data = await self.line()
        assert data.startswith("data: ")
        return line.removeprefix("event: "), json.loads(data.removeprefix("data: "))


@asynccontextmanager
async def reading(gateway: RunningGateway, **headers: str) -> AsyncIterator[Reader]:
    async with gateway.client.stream("GET", "/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        reader = Reader(answer.aiter_lines())
        assert (await reader.line()).startswith(":")
        yield reader


def listeners(gateway: RunningGateway) -> int:
    return len(gateway.gateway.on_event)


# -- /status ----------------------------------------------------------------------------------------------------------


async def test_the_flags_of_an_engine_are_told_and_read_again_after_a_restart() -> None:
    started = {"gpu-memory-utilization": 0.55, "kv-cache-dtype": "fp8"}
    sim = SimVllm("a", context=8192, slots=4, prefix_cache=True, spec_tokens=2, flags=started)
    async with sim.serve() as url, running_gateway(f"{FAST}backends: {{a: {{url: '{url}'}}}}\n") as gateway:
        await gateway.until_ready("a")
        state = gateway.gateway.fleet["a"]
        state.define(replace(state.backend, launch=Launch(parsed=ServeCommand(flags=started))))
        told = (await asked(gateway))["backends"]["a"]
        assert told["flags"].items() >= {
            **started, "enable-prefix-caching": True, "block-size": 128, "spec-tokens": 2,
            "kv-cache-size-tokens": 4 * 8192, "kv-cache-max-concurrency": 4.0,
        }.items()  # fmt: skip
        assert told["drift"] == []
        await gateway.until(lambda: state.progress.last is not None)
        assert (await asked(gateway))["backends"]["a"]["flags"]["sleep-level"] == 0
        await sim.kill()
        await gateway.until(lambda: state.health.state is State.DOWN)
        sim.flags = {"gpu-memory-utilization": 0.8}
        await sim.revive()
        await gateway.until_ready("a")
        assert (await asked(gateway))["backends"]["a"]["drift"] == [
            "gpu-memory-utilization: 0.55 is declared, it runs with 0.8",
            "kv-cache-dtype: fp8 is declared, it runs with auto",
        ]


async def test_an_engine_that_reports_no_flags_has_none() -> None:
    plain = SimVllm("a", generic=True)
    async with plain.serve() as url:
        routes = f"{FAST}backends: {{a: {{engine: openai, cloud: false, url: '{url}'}}}}\n"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            assert (await asked(gateway))["backends"]["a"]["flags"] == {}


async def test_status_tells_of_each_backend_and_alias() -> None:
    async with two(declared=", context: 4096, slots: 3, tool_parser: hermes") as (gateway, _, _):
        began = time.time()
        told = await asked(gateway)
        a = told["backends"]["a"]
        assert a["state"] == "ready"
        assert a["reason"]
        assert began - PATIENCE < a["since"] <= told["now"]
        assert (a["slots"], a["slots_assumed"], a["inflight"], a["queue"]) == (3, False, 0, 0)
        assert told["backends"]["b"]["slots_assumed"]
        assert (a["model"], a["window"]) == ("Qwen3-4B-Instruct-2507", 4096)
        assert a["version"]
        assert a["drift"] == ["context: 4096 is declared, it serves 8192"]
        assert a["learned"] == {"lacks": {}, "prefill_rate": None, "decode_rate": None, "pause_until": None}
        assert told["aliases"]["w"] == {
            "steps": [["a"], ["b"]], "course": "home", "on_fallback": False, "since": None, "serving": ["a"], "step": 1,
            "why": "", "implicit": False, "usd": None, "now": {"ttft_p50": None, "ttft_p95": None},
        }  # fmt: skip
        assert {(e["backend"], e["before"], e["after"]) for e in told["events"]} == {
            ("a", "unknown", "ready"), ("b", "unknown", "ready")
        }  # fmt: skip


async def test_what_was_learned_and_seen_is_shown() -> None:
    async with two() as (gateway, _, _):
        state = gateway.gateway.fleet["a"]
        state.facts.learn_lack("tools", time.monotonic())
        state.evidence.cool_down(60.0, time.monotonic())
        await gateway.client.post("/admin/backends/a/probe", params={"now": True}, headers={"host": "localhost"})
        state.facts.learn_lack("images", time.monotonic())
        a = (await asked(gateway))["backends"]["a"]
        assert a["observed"]["plain"]["result"] == "yes"
        assert a["learned"]["lacks"]["images"] == pytest.approx(time.time() + 3600.0, abs=PATIENCE)
        assert a["learned"]["pause_until"] == pytest.approx(time.time() + 60.0, abs=PATIENCE)


async def test_an_alias_tells_who_serves_it_and_since_when_it_is_on_a_fallback() -> None:
    async with two() as (gateway, a, b):
        began = time.time()
        await a.kill()
        await gateway.until(lambda: gateway.state("a") is State.DOWN)
        w = (await asked(gateway))["aliases"]["w"]
        assert (w["course"], w["on_fallback"], w["serving"], w["step"]) == ("fallback", True, ["b"], 2)
        assert w["why"].startswith("a is down (")
        assert began <= w["since"] <= time.time()
        await b.kill()
        await gateway.until(lambda: gateway.state("b") is State.DOWN)
        nothing = (await asked(gateway))["aliases"]["w"]
        assert (nothing["course"], nothing["on_fallback"], nothing["serving"]) == ("nothing", False, [])
        assert nothing["since"] == w["since"]
        await a.revive()
        await gateway.until_ready("a")
        assert (await asked(gateway))["aliases"]["w"]["since"] is None


async def test_requests_under_way_are_counted() -> None:
    async with two() as (gateway, a, _):
        a.fault("hang_before")
        ask = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=body()))
        await a.wait_inflight(1)
        assert (await asked(gateway))["backends"]["a"]["inflight"] == 1
        ask.cancel()
        await asyncio.gather(ask, return_exceptions=True)


async def test_only_the_latest_events_are_shown() -> None:
    async with two() as (gateway, _, _):
        for number in range(300):
            gateway.gateway.emit(Event(float(number), "drift", "a", str(number)))
        events = (await asked(gateway))["events"]
        assert [event["reason"] for event in events] == [str(n) for n in range(200, 300)]
        assert events[0] == {"at": 200.0, "kind": "drift", "backend": "a", "reason": "200"}


def body() -> dict[str, Any]:
    return {"model": "w", "messages": [{"role": "user", "content": PROMPT}]}


# -- secrets and keys -------------------------------------------------------------------------------------------------

SECRETS = """
clients: {ops: {key: very-secret-1, admin: true}, hermes: {key: very-secret-2, aliases: [b]}}
alerts: {webhook: "http://127.0.0.1:1/very-secret-3", telegram: {token: very-secret-4, chat: "1"}}
"""


@pytest.mark.parametrize("path", ["/status", "/events"])
async def test_with_clients_a_key_is_needed_any_clients(path: str) -> None:
    async with two(SECRETS) as (gateway, _, _):
        for headers in ({}, {"x-api-key": "wrong"}):
            answer = await gateway.client.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        await asked(gateway, authorization="Bearer very-secret-2")
        async with reading(gateway, **{"x-api-key": "very-secret-2"}):
            pass


@pytest.mark.parametrize(("client", "admin"), [("very-secret-1", True), ("very-secret-2", False)])
async def test_no_secret_is_shown_and_what_a_backend_repeated_to_admins_alone(client: str, admin: bool) -> None:
    async with two(SECRETS, ", api_key: very-secret-5") as (gateway, a, _):
        key = {"x-api-key": client}
        async with reading(gateway, **key) as reader:
            a.fault("status", status=500, body=f'{{"error": "cannot answer {PROMPT} for very-secret-5"}}')
            for _ in range(3):
                reply = await gateway.client.post(
                    "/v1/chat/completions", json=body(), headers={"x-api-key": "very-secret-1"}
                )
                assert reply.status_code == 200
            events = [await reader.event(), await reader.event()]
        told = json.dumps([await asked(gateway, **key), events])
        assert "answered 500" in told
        assert PROMPT in gateway.gateway.events[-1].reason, "the backend has repeated it"
        assert (PROMPT in told) == admin
        assert "very-secret" not in told


# -- /events ----------------------------------------------------------------------------------------------------------


async def test_events_are_told_as_they_happen() -> None:
    async with two() as (gateway, a, _), reading(gateway) as reader:
        await a.kill()
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["after"] != "down":
            kind, event = await reader.event()
            assert (kind, event["kind"], event["backend"]) == ("state", "state", "a")
            seen.append(event)
        assert [event["before"] for event in seen] == ["ready", "suspect"]
        assert seen[-1]["reason"]
        gateway.gateway.emit(Event(1.5, "drift", "a", "context: ..."))
        assert await reader.event() == (
            "drift", {"at": 1.5, "kind": "drift", "backend": "a", "reason": "context: ..."}
        )  # fmt: skip


async def test_two_readers_hear_the_same() -> None:
    async with two() as (gateway, _, _), reading(gateway) as one, reading(gateway) as other:
        gateway.gateway.emit(Event(1.0, "drift", "a", "x"))
        assert await one.event() == await other.event()


async def test_a_comment_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "HEARTBEAT", 0.05)
    monkeypatch.setattr(status, "LOOK", 0.02)
    async with two() as (gateway, _, _), reading(gateway) as reader:
        while not (line := await reader.line()):
            pass
        assert line.startswith(":")


async def test_a_reader_that_leaves_is_forgotten() -> None:
    async with two() as (gateway, _, _):
        before = listeners(gateway)
        async with reading(gateway):
            assert listeners(gateway) == before + 1
        await gateway.until(lambda: listeners(gateway) == before)


async def test_a_reader_that_does_not_read_is_cut_off_and_costs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "STALLED", 0.3)
    monkeypatch.setattr(status, "LOOK", 0.02)
    async with two() as (gateway, _, _):
        before = listeners(gateway)
        port = int(gateway.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        connections = gateway.server.server_state.connections
        writer.write(b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n")
        await gateway.until(lambda: listeners(gateway) == before + 1)
        assert len(connections) == 1
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport both reads and writes

        def flood() -> bool:
            for _ in range(100):
                gateway.gateway.emit(Event(1.0, "drift", "a", "x" * 250))
            return listeners(gateway) == before

        await gateway.until(flood)
        await gateway.until(lambda: not connections)
        writer.close()


async def test_the_stream_ends_when_the_gateway_stops() -> None:
    async with two() as (gateway, _, _), reading(gateway) as reader:
        gateway.gateway.begin_stop()
        async with asyncio.timeout(PATIENCE):
            assert [line async for line in reader.lines if line] == []


async def test_other_methods_are_refused() -> None:
    async with two() as (gateway, _, _):
        answers: list[httpx.Response] = [await gateway.client.post(path) for path in ("/status", "/events")]
        assert [answer.status_code for answer in answers] == [405, 405]
