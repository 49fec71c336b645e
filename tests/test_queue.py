"""Requests that wait for a slot, seen from outside: who is inside, in which order, and what the others are told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

import gateway.reply as gateway_reply
from gateway.health.state import State
from gateway.sim import SimVllm
from tests.raw_client import chat, raw_client
from tests.scripted import RawReply, ScriptedBackend, Turn, json_answer, raw_post
from tests.scripted import answer as http_answer
from tests.support import PATIENCE, RunningGateway, running_gateway

CHAT = "/v1/chat/completions"
KEYS = """
clients:
  hog: {key: hog-key}
  other: {key: other-key}
  nightly: {key: nightly-key, priority: batch}
  narrow: {key: narrow-key, max_inflight: 1}
"""


@dataclass
class Gate:
    """A backend that answers a request when the test says so. `order` are the requests as they came, by what they say;
    `inside` those that have no answer yet; `most` how many there were at a time."""

    backend: ScriptedBackend = field(default_factory=lambda: ScriptedBackend(()))
    order: list[str] = field(default_factory=list)
    inside: dict[str, asyncio.Future[bytes]] = field(default_factory=dict)
    most: int = 0

    async def hold(self, turn: Turn) -> None:
        name = turn.json["messages"][0]["content"]
        self.order.append(name)
        self.inside[name] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.inside))
        said = self.inside[name]
        lost = asyncio.create_task(turn.until_lost())
        lost.add_done_callback(lambda _: said.cancel())
        await asyncio.wait([said])
        del self.inside[name]
        lost.cancel()
        if not said.cancelled():
            stream = turn.json.get("stream", False)
            await turn.send(said.result() if said.result() else whole(stream))
            turn.close()  # its reader was read

    def end(self, *names: str, with_: bytes = b"") -> None:
        for name in names:
            self.inside[name].set_result(with_)


def whole(stream: bool) -> bytes:
    choice = {"index": 0, "finish_reason": "stop"}
    if not stream:
        return json_answer({"model": "m", "choices": [{**choice, "message": {"role": "assistant", "content": "said"}}]})
    chunk = {"id": "c", "created": 1, "model": "m", "choices": [{**choice, "delta": {"content": "said"}}]}
    return http_answer(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n", "200 OK", "text/event-stream")


@dataclass
class Queue:
    """A gateway before gates. Requests are tasks, named by what they say."""

    gateway: RunningGateway
    gates: dict[str, Gate]
    tasks: dict[str, asyncio.Task[RawReply]] = field(default_factory=dict)

    @property
    def gate(self) -> Gate:
        return self.gates["a"]

    def depth(self, backend: str = "a") -> float:
        return self.gateway.metric("gateway_queue_depth", backend=backend)

    async def ask(self, *names: str, model: str = "pool", key: str = "", stream: bool = False) -> None:
        """Send requests, one after the other; each is inside or waits before the next is sent."""
        for name in names:
            headers = [f"authorization: Bearer {key}"] if key else []
            body = chat(model, name, stream=stream)
            self.tasks[name] = asyncio.create_task(raw_post(self.gateway.url, body, CHAT, headers))
            await self.gateway.until(lambda n=name: self.is_placed(n))  # type: ignore[misc]  # default binds the name

    def is_placed(self, name: str) -> bool:
        """Does it wait, or has it been asked of a backend, or been answered?"""
        if self.tasks[name].done() or any(name in gate.order for gate in self.gates.values()):
            return True
        said = json.dumps(name).encode()
        waiters = self.gateway.gateway.admission.scheduler.waiters
        return any(
            r.entrance is not None and r.entrance.waiter in waiters and said in bytes(r.request.fields["messages"])
            for r in self.gateway.gateway.active
        )

    async def reply(self, name: str) -> RawReply:
        async with asyncio.timeout(PATIENCE):
            return await self.tasks[name]

    async def until_inside(self, name: str, gate: str = "a") -> None:
        await self.gateway.until(lambda: name in self.gates[gate].inside)

    async def finish(self) -> None:
        """Answer everything."""
        while not all(task.done() for task in self.tasks.values()):
            for gate in self.gates.values():
                gate.end(*(name for name, said in gate.inside.items() if not said.done()))
            await asyncio.sleep(0.005)


@asynccontextmanager
async def queue(
    slots: str = "a: 2", aliases: str = "pool: [a]", more: str = "", keys: str = ""
) -> AsyncIterator[Queue]:
    """`slots`: a gate for each name, with so many slots (`a: 2, b: 1`); `more`: further settings of each."""
    async with AsyncExitStack() as stack:
        gates: dict[str, Gate] = {}
        lines = ["backends:"]
        for name, count in (pair.split(": ") for pair in slots.split(", ")):
            gate = gates[name] = Gate()
            gate.backend.scripts = (gate.hold,)
            await stack.enter_async_context(gate.backend.serve())
            cloud = ", engine: openai, cloud: true, model: served/model" if name == "cloud" else f", slots: {count}"
            lines.append(f"  {name}: {{url: '{gate.backend.url}'{cloud}{more}}}")
        routes = "\n".join([*lines, "aliases:", f"  {aliases}", keys])
        running = await stack.enter_async_context(running_gateway(routes))
        await running.until_ready(*(name for name in gates if name != "cloud"))
        found = Queue(running, gates)
        try:
            yield found
        finally:
            await found.finish()


NAMES = [f"r{number}" for number in range(10)]


# -- who is inside, and in which order --------------------------------------------------------------------------------


async def test_of_ten_requests_two_are_inside_and_the_others_come_in_the_order_they_came() -> None:
    async with queue() as q:
        await q.ask(*NAMES)
        assert (sorted(q.gate.inside), q.depth()) == (["r0", "r1"], 8.0)
        for number, name in enumerate(NAMES):
            await q.until_inside(name)
            q.gate.end(name)
            await q.reply(name)
            assert q.gate.most == 2, number
        assert (q.gate.order, q.depth()) == (NAMES, 0.0)
        waits = [int((await q.reply(name)).headers["x-gateway-queue-ms"]) for name in NAMES]
        assert waits[:2] == [0, 0]
        assert all(wait > 0 for wait in waits[2:])
        assert q.gateway.metric("gateway_queue_seconds_count") == 10
        assert q.gateway.metric("gateway_queue_seconds_sum") == pytest.approx(sum(waits) / 1000, abs=0.02)


async def test_a_client_with_many_requests_delays_another_by_one_turn() -> None:
    async with queue("a: 1", keys=KEYS) as q:
        await q.ask(*NAMES, key="hog-key")
        await q.ask("single", key="other-key")
        for turn in ("r0", "r1", "single"):
            await q.until_inside(turn)
            q.gate.end(turn)
            await q.reply(turn)
        assert q.gate.order[:3] == ["r0", "r1", "single"]


async def test_people_go_before_batches() -> None:
    async with queue("a: 1", "pool: [a]\n  slow: {use: [a], priority: batch}", keys=KEYS) as q:
        await q.ask("inside", key="hog-key")
        await q.ask("by-alias", model="slow", key="hog-key")
        await q.ask("by-client", key="nightly-key")
        await q.ask("person", key="other-key")
        for name in ("inside", "person"):
            await q.until_inside(name)
            q.gate.end(name)
            await q.reply(name)
        await q.gateway.until(lambda: len(q.gate.order) == 3)
        assert q.gate.order[1] == "person"


async def test_a_client_at_its_max_inflight_waits_though_slots_are_free() -> None:
    async with queue("a: 4", keys=KEYS) as q:
        await q.ask("n1", "n2", key="narrow-key")
        await q.ask("o1", key="other-key")
        assert (sorted(q.gate.inside), q.depth()) == (["n1", "o1"], 1.0)
        q.gate.end("n1")
        await q.until_inside("n2")


async def test_of_two_side_by_side_the_one_that_is_free_first_serves() -> None:
    async with queue("a: 1, b: 1", "pool: {use: [[a, b]], balance: round_robin}") as q:
        await q.ask("r0", "r1", "r2")
        first = next(name for name, gate in q.gates.items() if "r1" in gate.inside)
        q.gates[first].end("r1")
        await q.until_inside("r2", first)
        assert "x-gateway-routed" not in (await q.reply("r1")).headers


async def test_what_others_run_on_the_backend_takes_our_slots() -> None:
    async with queue() as q:
        q.gateway.gateway.fleet["a"].foreign = 1
        await q.ask("r0", "r1")
        assert (q.gate.order, q.depth()) == (["r0"], 1.0)
        q.gateway.gateway.fleet["a"].foreign = 0  # as the next look at its metrics finds
        await q.until_inside("r1")


# -- later steps ------------------------------------------------------------------------------------------------------


async def test_on_busy_next_spills_to_the_next_local_step_that_has_room() -> None:
    async with queue("a: 1, b: 1", "pool: {use: [a, b], on_busy: next}") as q:
        await q.ask("r0", "r1", "r2")
        assert (q.gates["a"].order, q.gates["b"].order, q.depth("a"), q.depth("b")) == (["r0"], ["r1"], 1.0, 1.0)
        q.gates["b"].end("r1")
        await q.until_inside("r2", "b")
        q.gates["b"].end("r2")
        for name in ("r1", "r2"):
            headers = (await q.reply(name)).headers
            assert (headers["x-gateway-backend"], headers["x-gateway-routed"]) == ("b", "busy")


async def test_a_busy_step_is_waited_for_by_default_whatever_room_the_next_has() -> None:
    async with queue("a: 1, b: 1, cloud: 0", "pool: {use: [a, b, cloud], cloud_when: [down, busy]}") as q:
        await q.ask("r0", "r1")
        assert (q.depth("a"), q.gates["b"].order, q.gates["cloud"].order) == (1.0, [], []), "b is not busy"


async def test_a_cloud_is_entered_when_everything_local_is_busy_and_the_alias_says_so() -> None:
    async with queue("a: 1, cloud: 0", "pool: {use: [a, cloud], cloud_when: [busy]}") as q:
        await q.ask("r0", "r1", "r2")
        assert (q.gates["a"].order, q.gates["cloud"].order) == (["r0"], ["r1", "r2"]), "clouds have no slots"
        q.gates["cloud"].end("r1")
        headers = (await q.reply("r1")).headers
        assert (headers["x-gateway-backend"], headers["x-gateway-routed"]) == ("cloud", "busy")


async def test_a_cloud_is_not_entered_for_want_of_a_slot_otherwise() -> None:
    async with queue("a: 1, cloud: 0", "pool: [a, cloud]") as q:
        await q.ask("r0", "r1")
        assert (q.depth("a"), q.gates["cloud"].order) == (1.0, [])


# -- too much ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_at_its_deadline_a_request_is_told_when_to_ask_again(stream: bool) -> None:
    async with queue("a: 1", more=", queue: {max_wait: 300ms}") as q:
        await q.ask("r0", "r1", stream=stream)
        reply = await q.reply("r1")
        assert (reply.status, reply.json["error"]["code"]) == (429, "queue_timeout")
        assert 1 <= int(reply.headers["retry-after"]) <= 600
        assert (q.gate.order, q.depth()) == (["r0"], 0.0)


async def test_retry_after_is_how_long_a_slot_takes_to_come_free() -> None:
    async with queue("a: 2", more=", queue: {max_wait: 300ms}") as q:
        state = q.gateway.gateway.fleet["a"]
        scheduler = q.gateway.gateway.admission.scheduler
        held = scheduler.at_once(state, 1, now := time.monotonic())
        assert held is not None
        scheduler.release(held, now + 90.0)  # so long a request takes there
        await q.ask("r1", "r2", "r3")
        reply = await q.reply("r3")
        assert (reply.json["error"]["code"], reply.headers["retry-after"]) == ("queue_full", "45")
        assert "45 s" in reply.json["error"]["message"]


async def test_when_the_queue_is_full_a_request_is_refused_at_once() -> None:
    async with queue("a: 1", more=", queue: {length: 2}") as q:
        await q.ask("r0", "r1", "r2", "r3")
        reply = await q.reply("r3")
        assert (reply.status, reply.json["error"]["code"]) == (429, "queue_full")
        assert "retry-after" in reply.headers
        assert q.depth() == 2.0


# -- leaving, streams, time -------------------------------------------------------------------------------------------


async def test_a_client_that_leaves_while_it_waits_is_taken_out() -> None:
    async with queue("a: 1") as q:
        await q.ask("r0")
        async with raw_client(q.gateway.url) as leaver:
            await leaver.post(CHAT, chat("pool", "leaver"))
            await q.gateway.until(lambda: q.depth() == 1.0)
            await q.ask("r1")
            leaver.close()
            await q.gateway.until(lambda: q.depth() == 1.0)
        q.gate.end("r0")
        await q.until_inside("r1")
        assert q.gate.order == ["r0", "r1"]


async def test_a_stream_that_waits_gets_its_status_and_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_reply, "HEARTBEAT", 0.05)
    async with queue("a: 1", more=", timeouts: {hold: 100ms}") as q:
        await q.ask("r0")
        async with raw_client(q.gateway.url) as client:
            await client.post(CHAT, chat("pool", "waits", stream=True))
            head = await client.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert b"x-gateway-committed: early" in head
            for _ in range(3):
                beat = await client.until(b"\n\n")
                assert b'"delta":{}' in beat
            assert q.depth() == 1.0, "still waiting"
            q.gate.end("r0")
            await q.until_inside("waits")
            q.gate.end("waits")
            comment = await client.until(b"queue-ms=")
            assert b": x-gateway backend=a; attempts=1;" in comment
            assert int((await client.until(b"\n\n")).strip()) >= 100
            assert b"said" in await client.until(b"data: [DONE]\n\n")


async def test_a_stream_that_waited_too_long_is_told_inside_the_stream() -> None:
    async with queue("a: 1", more=", timeouts: {hold: 50ms}, queue: {max_wait: 400ms}") as q:
        await q.ask("r0", "r1", stream=True)
        reply = await q.reply("r1")
        assert (reply.status, reply.headers["x-gateway-committed"], reply.ended) == (200, "early", False)
        assert json.loads(reply.events[-1].removeprefix(b"data: "))["error"]["code"] == "queue_timeout"


async def test_waiting_is_no_silence_of_the_backend_and_no_part_of_its_total_time() -> None:
    async with queue("a: 1", more=", timeouts: {first_byte: 400ms, total: 500ms}") as q:
        q.gateway.gateway.fleet["a"].foreign = 1
        q.gateway.gateway.fleet["a"].inflight = 1  # taken by somebody who takes his time
        await q.ask("r0")
        began = time.monotonic()
        await q.gateway.until(lambda: time.monotonic() > began + 0.6)
        q.gateway.gateway.fleet["a"].inflight = 0
        await q.until_inside("r0")
        q.gate.end("r0")
        assert (await q.reply("r0")).status == 200


async def test_who_waits_when_the_gateway_stops_is_told_to_ask_again() -> None:
    async with queue("a: 1") as q:
        await q.ask("r0", "r1")
        q.gateway.gateway.interrupt_all()
        reply = await q.reply("r1")
        assert (reply.status, reply.json["error"]["code"]) == (503, "no_backend_available")
        assert q.depth() == 0.0


# -- backends that go and come ----------------------------------------------------------------------------------------


async def test_when_a_backend_goes_those_who_wait_for_it_move_on_and_keep_their_order() -> None:
    async with queue("a: 1, b: 1", "pool: [a, b]") as q:
        await q.ask("r0", "r1", "r2", "r3")
        assert q.depth("a") == 3.0
        q.gateway.gateway.fleet["a"].misconfigured("its key was taken away")
        await q.until_inside("r1", "b")
        assert (q.depth("a"), q.depth("b")) == (0.0, 2.0)
        for name in ("r1", "r2", "r3"):
            await q.until_inside(name, "b")
            q.gates["b"].end(name)
            assert (await q.reply(name)).headers["x-gateway-fallback"] == "misconfigured"


async def test_who_waits_for_a_fallback_goes_back_to_the_first_step_when_it_returns() -> None:
    async with queue("a: 1, b: 1", "pool: [a, b]") as q:
        state = q.gateway.gateway.fleet["a"]
        state.health.state = State.MISCONFIGURED
        await q.ask("r0", "r1")
        assert (q.gates["b"].order, q.depth("b")) == (["r0"], 1.0)
        state.health.state = State.READY
        await q.until_inside("r1", "a")
        q.gates["a"].end("r1")
        headers = (await q.reply("r1")).headers
        assert (headers["x-gateway-backend"], headers.get("x-gateway-fallback")) == ("a", None)


async def test_a_killed_backend_loses_nobody_who_waits_for_it() -> None:
    a, b = SimVllm("a", slots=2, decode=20), SimVllm("b", slots=2)
    async with a.serve() as one, b.serve() as two:
        health = "health: {every: 50ms, fail_after: 1}"
        routes = (
            f"backends: {{a: {{url: '{one}', slots: 2, {health}}}, b: {{url: '{two}', slots: 2}}}}\n"
            "aliases: {pool: [a, b]}"
        )
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            body = chat("pool", "20 words")
            asked = [asyncio.create_task(gateway.client.post(CHAT, json=body)) for _ in range(8)]
            await gateway.until(lambda: gateway.metric("gateway_queue_depth", backend="a") == 6.0)
            await a.kill()
            answers = await asyncio.gather(*asked)
            assert [(r.status_code, r.headers["x-gateway-backend"]) for r in answers] == [(200, "b")] * 8
            assert b.engine.slots == 2


async def test_a_backend_that_is_starting_is_waited_for() -> None:
    sim = SimVllm("a")
    await sim.start(running=False)
    try:
        routes = f"backends: {{a: {{url: '{sim.url}', health: {{every: 50ms, fail_after: 1}}}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until(lambda: gateway.state("a") in (State.WARMING, State.DOWN))
            asked = asyncio.create_task(gateway.client.post(CHAT, json=chat("a")))
            await gateway.until(lambda: gateway.metric("gateway_queue_depth", backend="a") == 1.0)
            await sim.revive()
            answer = await asked
            assert (answer.status_code, int(answer.headers["x-gateway-queue-ms"]) > 0) == (200, True)
    finally:
        await sim.stop()


async def test_a_backend_that_has_just_gone_is_not_waited_for() -> None:
    sim = SimVllm("a")
    async with sim.serve() as url:
        routes = f"backends: {{a: {{url: '{url}', health: {{every: 50ms, fail_after: 1}}}}}}"
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a")
            await sim.kill()
            first = await gateway.client.post(CHAT, json=chat("a"))  # finds nobody there
            await gateway.until(lambda: gateway.state("a") is State.DOWN)
            second = await gateway.client.post(CHAT, json=chat("a"))
            for answer in (first, second):
                assert (answer.status_code, answer.json()["error"]["code"]) == (429, "backend_warming")
                assert int(answer.headers["retry-after"]) >= 1
            assert gateway.metric("gateway_queue_seconds_sum") < 1.0


async def test_while_one_request_is_on_trial_the_others_wait_for_how_it_ends() -> None:
    async with queue("a: 4", more=", health: {every: 60s}") as q:
        health = q.gateway.gateway.fleet["a"].health
        health.state, health.half_open, health.from_requests = State.SUSPECT, True, True
        await q.ask("trial", "r1", "r2")
        assert (q.gate.order, q.depth()) == (["trial"], 2.0)
        q.gate.end("trial")
        await q.until_inside("r1")
        await q.until_inside("r2")
        assert q.gateway.state("a") is State.READY


async def test_a_backend_that_is_expected_too_late_is_not_waited_for() -> None:
    routes = "backends: {a: {url: 'http://127.0.0.1:9', queue: {max_wait: 2s}, health: {every: 50ms, fail_after: 1}}}"
    async with running_gateway(routes) as gateway:
        await gateway.until(lambda: gateway.state("a") in (State.WARMING, State.DOWN))
        gateway.gateway.fleet["a"].health.since -= 100.0  # away for long: it may take as long again
        answer = await gateway.client.post(CHAT, json=chat("a"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "backend_warming")
        assert gateway.metric("gateway_queue_seconds_count") == 0


async def test_a_pause_that_ends_in_time_is_waited_for() -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, running_gateway(f"backends: {{a: {{url: '{url}'}}}}") as gateway:
        await gateway.until_ready("a")
        sim.fault("status", status=429, headers={"retry-after": "1"}, count=1)
        answer = await gateway.client.post(CHAT, json=chat("a"))
        assert (answer.status_code, answer.headers["x-gateway-attempts"]) == (200, "2")
        assert int(answer.headers["x-gateway-queue-ms"]) >= 900


async def test_a_request_that_failed_is_first_in_the_line_of_the_next_backend() -> None:
    async with queue("a: 1, b: 1", "pool: [a, b]\n  direct: [b]") as q:
        await q.ask("r0")
        await q.ask("d0", "d1", model="direct")
        q.gates["a"].end("r0", with_=http_answer(b"{}", "500 Internal Server Error"))
        await q.gateway.until(lambda: q.depth("b") == 2.0)
        q.gates["b"].end("d0")
        await q.until_inside("r0", "b")
        q.gates["b"].end("r0")
        headers = (await q.reply("r0")).headers
        assert (headers["x-gateway-backend"], headers["x-gateway-attempts"]) == ("b", "2")
