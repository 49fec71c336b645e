"""Requests that wait for a slot, seen from outside: who is inside, in which order, and what the others are told."""

from __future__ import annotations

import json
import time

import pytest

import gateway.proxy.reply as gateway_reply
from tests.queueing import CHAT, KEYS, NAMES, queue
from tests.raw_client import chat, raw_client

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


async def test_sequences_of_others_on_the_backend_take_our_slots() -> None:
    async with queue() as q:
        q.gateway.gateway.fleet["a"].foreign = 1
        await q.ask("r0", "r1")
        assert (q.gate.order, q.depth()) == (["r0"], 1.0)
        q.gateway.gateway.fleet["a"].foreign = 0  # as the next look at its metrics finds
        await q.until_inside("r1")


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
        held = scheduler.try_acquire(state, 1, now := time.monotonic())
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


async def test_a_request_in_the_queue_is_told_to_ask_again_when_the_gateway_stops() -> None:
    async with queue("a: 1") as q:
        await q.ask("r0", "r1")
        q.gateway.gateway.active.interrupt_all()
        reply = await q.reply("r1")
        assert (reply.status, reply.json["error"]["code"]) == (503, "no_backend_available")
        assert q.depth() == 0.0
