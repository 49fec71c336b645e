"""Batches of several gateways: their files and lines are in Redis, and each gateway works on all of them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch

from gateway.apps.batches.records import BatchRecord, FileRecord
from gateway.apps.batches.redis_files import KEYS as KEYS_OF_BATCHES
from gateway.apps.batches.redis_store import RedisBatchStore
from gateway.apps.batches.runner import now
from gateway.config.snapshot import Secret
from simulator import SimVllm
from tests.apps.batches.filed import CHAT, ended, jsonl, line, results
from tests.apps.cluster.joined import gateways
from tests.apps.cluster.redis_server import RedisServer, running_redis
from tests.gateway_process import gateway_process
from tests.support import RunningGateway, from_clients
from tests.waiting import until, until_said

SOON = 15.0  # seconds for two answers, although each of many lines waits for Redis, which is asked for 2 s at a time
KEYS = 'clients: {one: {key: "sk-one-0123456789"}, two: {key: "sk-two-0123456789"}}'


def asked(sim: SimVllm) -> list[str]:
    """What the clients' requests said that reached the backend."""
    return [r.json["messages"][0]["content"] for r in from_clients(sim.requests) if r.path == CHAT]


def routes_of(url: str, slots: int, more: str = "") -> str:
    return f'backends: {{a: {{url: "{url}", slots: {slots}}}}}\naliases: {{chat: [a]}}\n{more}'


def sdk(url: str, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


@asynccontextmanager
async def several(
    redis: RedisServer, sim: SimVllm, *, count: int = 2, slots: int = 4, more: str = "", key: str = "none"
) -> AsyncIterator[tuple[list[RunningGateway], list[openai.AsyncOpenAI]]]:
    """So many gateways, and a client of each."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(sim.serve())
        found = await stack.enter_async_context(gateways(redis, routes_of(url, slots, more), count))
        yield found, [await stack.enter_async_context(sdk(gateway.url, key)) for gateway in found]
        sim.clear()


async def begin(client: openai.AsyncOpenAI, content: bytes) -> Batch:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")


def done_by(gateway: RunningGateway) -> float:
    return sum(gateway.metric("gateway_batch_lines_total", result=kind) for kind in ("completed", "failed"))


async def test_gateways_work_on_one_batch_side_by_side(redis: RedisServer) -> None:
    sim = SimVllm("a", served=["m"], decode=15.0)
    async with several(redis, sim) as (both, (first, second)):
        names = [f"r{n}" for n in range(60)]
        batch = await begin(first, jsonl([line(name, f"{name}: 3 words please") for name in names]))
        done = await ended(second, batch.id)
        assert done.status == "completed"
        assert all(done_by(gateway) > 5 for gateway in both)
        assert done.request_counts is not None
        assert (done.request_counts.total, done.request_counts.completed) == (60, 60)
        output, errors = await results(second, done)
        assert (list(output), errors) == (names, {})
        assert Counter(asked(sim)) == Counter({f"{name}: 3 words please": 1 for name in names})
        assert [one.id async for one in second.batches.list()] == [batch.id]
        assert (await second.files.delete(batch.input_file_id)).deleted
        with pytest.raises(openai.NotFoundError):
            await first.files.retrieve(batch.input_file_id)
        with redis.client() as looking:
            left = {key.decode() for key in looking.scan_iter("spark-gateway:batches:*")}
        assert not [key for key in left if key.split(":")[2] in ("lines", "rows", "names", "held", "returned")]


async def test_the_lines_of_a_gateway_that_was_killed_are_taken_over(redis: RedisServer, tmp_path: Path) -> None:
    """`kill -9` of the one that has begun the batch, in its middle."""
    sim = SimVllm("a", served=["m"], decode=40.0)
    names = [f"r{n}" for n in range(80)]
    async with sim.serve() as url, AsyncExitStack() as stack:
        routes = f"server: {{shared: '{redis.url}?socket_timeout=2'}}\n{routes_of(url, 4)}"
        folders = [tmp_path / name for name in ("one", "two")]
        for folder in folders:
            folder.mkdir()
        killed, other = [await stack.enter_async_context(gateway_process(folder, routes)) for folder in folders]
        client = await stack.enter_async_context(sdk(other.url))
        async with sdk(killed.url) as victim:
            batch = await begin(victim, jsonl([line(name, f"{name}: 2 words please") for name in names]))
        await until(lambda: len(asked(sim)) > 20)
        os.kill(killed.pid, signal.SIGKILL)
        done = await ended(client, batch.id)
        assert done.status == "completed"
        output, errors = await results(client, done)
        assert (list(output), errors) == (names, {})
        assert len(asked(sim)) - len(names) <= 4 + 1  # those that were under way, and one whose answer had just come
        ours = [await other.metric(f'gateway_batch_lines_total{{result="{kind}"}}') for kind in ("completed", "failed")]
        assert 0 < sum(ours) <= 80


async def test_a_cancel_is_seen_by_all(redis: RedisServer) -> None:
    async with several(redis, SimVllm("a", served=["m"], decode=50.0)) as (both, (first, second)):
        batch = await begin(first, jsonl([line(f"r{n}", "5 words please") for n in range(200)]))
        await until(lambda: all(done_by(gateway) > 1 for gateway in both))
        assert (await second.batches.cancel(batch.id)).status in ("cancelling", "finalizing", "cancelled")
        done = await ended(first, batch.id)
        assert done.status == "cancelled"
        output, _ = await results(first, done)
        assert done.request_counts is not None
        assert 4 <= len(output) == done.request_counts.completed < 200
        for gateway in both:
            await gateway.until(gateway.idle)
            await gateway.until(lambda g=gateway: not g.gateway.apps.batches._runs)  # type: ignore[misc]  # binds it
            assert gateway.gateway.memory.used == 0
        with pytest.raises(openai.BadRequestError):
            await second.batches.cancel(batch.id)


async def test_what_is_left_expires(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.apps.batches.batches.WINDOWS", {"24h": 3})
    sim = SimVllm("a", served=["m"])
    async with several(redis, sim, slots=2) as (_, (first, second)):
        sim.fault("hang_before")
        names = [f"r{n}" for n in range(300)]
        done = await ended(second, (await begin(first, jsonl([line(name) for name in names]))).id)
        assert done.status == "expired"
        output, errors = await results(first, done)
        assert (output, list(errors)) == ({}, names)
        assert {row["error"]["code"] for row in errors.values()} == {"batch_expired"}
        assert done.request_counts is not None
        assert done.request_counts.failed == 300


async def test_a_batch_whose_client_no_gateway_knows_expires(redis: RedisServer) -> None:
    store = RedisBatchStore(Secret(redis.url))
    writer = store.new_file("file-in")
    writer.write(content := jsonl([line("r0"), line("r1")]))
    writer.finish()
    at = now()
    store.add_file(FileRecord("file-in", "gone", "batch", "in.jsonl", len(content), at))
    store.save(BatchRecord("batch_x", "gone", CHAT, "file-in", "24h", "validating", at - 2, at - 1))
    sim = SimVllm("a", served=["m"])
    async with several(redis, sim):

        def status() -> str:
            found = store.batch("batch_x")
            return found.status if found is not None else ""

        await until(lambda: status() == "expired")
        assert (asked(sim), store.unfinished()) == ([], [])
    store.close()


async def test_a_key_sees_its_own_and_has_one_quota_at_all_gateways(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.apps.batches.batches.FILES_MOST", 3)
    sim = SimVllm("a", served=["m"])
    async with several(redis, sim, more=KEYS, key="sk-one-0123456789") as (both, (first, second)):
        done = await ended(second, (await begin(first, jsonl([line("r")]))).id)
        strangers = [client.with_options(api_key="sk-two-0123456789") for client in (first, second)]
        for stranger in strangers:
            assert [one.id async for one in stranger.files.list()] == []
            assert [one.id async for one in stranger.batches.list()] == []
            with pytest.raises(openai.NotFoundError):
                await stranger.batches.retrieve(done.id)
            with pytest.raises(openai.NotFoundError):
                await stranger.files.content(str(done.output_file_id))
        for gateway in both:
            await until_said(lambda g=gateway: shown(g, "sk-one-0123456789"))  # type: ignore[misc]  # binds it
            assert await shown(gateway, "sk-one-0123456789") == [done.id]
            assert await shown(gateway, "sk-two-0123456789") == []
        await second.files.create(file=("more", b"x"), purpose="batch")
        with pytest.raises(openai.RateLimitError):
            await first.files.create(file=("one too many", b"x"), purpose="batch")
        await strangers[0].files.create(file=("of another", b"x"), purpose="batch")


async def shown(gateway: RunningGateway, key: str) -> list[str]:
    """The batches of `/status`."""
    answer = await gateway.client.get("/status", headers={"authorization": f"Bearer {key}"})
    return [one["id"] for one in answer.json()["batches"]]


async def goes_on_without_a_loss(redis: RedisServer, away: Any, back: Any) -> None:
    sim = SimVllm("a", served=["m"], slots=60, decode=10.0)
    async with several(redis, sim, slots=60) as (both, (first, second)):
        names = [f"r{n}" for n in range(200)]
        batch = await begin(first, jsonl([line(name, f"{name}: 4 words please") for name in names]))
        await until(lambda: len(asked(sim)) > 40)
        away()
        await until(lambda: sim.inflight == 0)  # all answers wait now
        form: Any = {"files": {"file": ("f", b"x")}, "data": {"purpose": "batch"}}
        async with asyncio.timeout(SOON):
            answers = [await gateway.client.post("/v1/files", **form) for gateway in both]
        assert {refusal(answer) for answer in answers} == {(503, "resources_exhausted")}
        assert all("Redis is away" in answer.text for answer in answers)
        back()
        for gateway in both:
            await until_said(lambda g=gateway: serves_files(g))  # type: ignore[misc]  # binds it
        done = await ended(second, batch.id)
        assert done.status == "completed"
        output, errors = await results(second, done)
        assert (list(output), errors) == (names, {})
        assert (await first.files.create(file=("f", b"x"), purpose="batch")).bytes == 1


async def serves_files(gateway: RunningGateway) -> bool:
    return (await gateway.client.get("/v1/files")).status_code == 200


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_while_redis_is_silent_batches_pause_and_uploads_are_refused(own_redis: RedisServer) -> None:
    await goes_on_without_a_loss(own_redis, own_redis.freeze, own_redis.thaw)


async def test_batches_outlive_a_restart_of_a_redis_with_a_disk(tmp_path: Path) -> None:
    options = "--appendonly", "yes", "--appendfsync", "always", "--dir", str(tmp_path)
    with running_redis(*options) as redis:
        await goes_on_without_a_loss(redis, redis.kill, redis.start)


async def test_a_gateway_stops_while_answers_wait_for_redis(own_redis: RedisServer) -> None:
    sim = SimVllm("a", served=["m"], decode=20.0)
    async with several(own_redis, sim) as ((one, _), (first, _)):
        await begin(first, jsonl([line(f"r{n}") for n in range(50)]))
        await until(lambda: len(asked(sim)) > 8)
        own_redis.freeze()
        await until(lambda: sim.inflight == 0)
        async with asyncio.timeout(SOON):
            await one.gateway.apps.batches.close()
        own_redis.thaw()


async def test_a_batch_that_redis_has_lost_is_given_up(own_redis: RedisServer) -> None:
    sim = SimVllm("a", served=["m"], decode=50.0)
    async with several(own_redis, sim) as (both, (first, second)):
        batch = await begin(first, jsonl([line(f"r{n}") for n in range(100)]))
        await until(lambda: len(asked(sim)) > 4)
        own_redis.kill()
        own_redis.start()

        async def forgotten() -> bool:
            answer = await both[1].client.get(f"/v1/batches/{batch.id}")
            return answer.status_code == 404

        await until_said(forgotten)
        for gateway in both:
            await gateway.until(lambda g=gateway: not g.gateway.apps.batches._runs)  # type: ignore[misc]  # binds it
        assert (await ended(second, (await begin(first, jsonl([line("r")]))).id)).status == "completed"


async def test_a_redis_that_is_full_refuses_files_and_serves_requests(redis_process: RedisServer) -> None:
    with running_redis("--maxmemory", "12mb") as redis:
        async with several(redis, SimVllm("a", served=["m"]), count=1) as ((gateway,), (client,)):
            with pytest.raises(openai.InternalServerError) as refused:
                await client.files.create(file=("f", bytes(20_000_000)), purpose="batch")
            assert refused.value.status_code == 503
            assert "no room" in str(refused.value)
            with redis.client() as looking:
                assert list(looking.scan_iter("spark-gateway:batches:file:*")) == []
            body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
            assert (await gateway.client.post(CHAT, json=body)).status_code == 200


@pytest.mark.parametrize("seed", range(2))
async def test_each_custom_id_gets_exactly_one_row(redis: RedisServer, tmp_path: Path, seed: int) -> None:
    """Three gateways, odd lines, failing backends, one gateway that stops and one that is killed, at any time."""
    chance = random.Random(seed)
    sim = SimVllm("a", served=["m"], decode=150.0)
    kinds = [chance.choice(("good", "good", "good", "bad model", "bad url")) for _ in range(120)]
    lines = [odd_line(f"r{n}", kind) for n, kind in enumerate(kinds)]
    async with sim.serve() as url, AsyncExitStack() as stack:
        routes = f"server: {{shared: '{redis.url}?socket_timeout=2', shutdown: 1s}}\n{routes_of(url, 5)}"
        processes = []
        for name in "abc":
            (tmp_path / name).mkdir()
            processes.append(await stack.enter_async_context(gateway_process(tmp_path / name, routes)))
        chance.shuffle(processes)
        client = await stack.enter_async_context(sdk(processes[0].url))
        sim.fault("status", status=503, count=chance.randrange(6))
        batch = await begin(client, jsonl(lines))
        good = kinds.count("good")
        for process, how in zip(processes[1:], chance.sample([signal.SIGKILL, signal.SIGTERM], 2), strict=True):
            share = chance.uniform(0.1, 0.7)
            await until(lambda share=share: len(asked(sim)) >= share * good, 30)  # type: ignore[misc]  # binds it
            os.kill(process.pid, how)
        done = await ended(client, batch.id)
        output, errors = await results(client, done)
    assert list(output) == [f"r{n}" for n, kind in enumerate(kinds) if kind == "good"]
    assert list(errors) == [f"r{n}" for n, kind in enumerate(kinds) if kind != "good"]
    assert done.request_counts is not None
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (120, good, 120 - good)


def odd_line(name: str, kind: str) -> dict[str, Any]:
    if kind == "bad url":
        return {**line(name), "url": "/v1/embeddings"}
    return line(name, f"{name}: 2 words please", model="chat" if kind == "good" else "nobody")


async def test_several_clients_at_several_gateways_at_once(redis: RedisServer) -> None:
    async with several(redis, SimVllm("a", served=["m"]), count=3, slots=8) as (_, clients):
        contents = [jsonl([line(f"{n}-{i}") for i in range(10)]) for n in range(9)]
        batches = await asyncio.gather(*(begin(clients[n % 3], content) for n, content in enumerate(contents)))
        done = await asyncio.gather(*(ended(clients[(n + 1) % 3], one.id) for n, one in enumerate(batches)))
        assert {one.status for one in done} == {"completed"}
        for n, one in enumerate(done):
            output, _ = await results(clients[(n + 2) % 3], one)
            assert list(output) == [f"{n}-{i}" for i in range(10)]


async def test_a_large_file_comes_back_whole_at_another_gateway(redis: RedisServer) -> None:
    content = random.Random(7).randbytes(5_300_000)
    async with several(redis, SimVllm("a", served=["m"])) as (_, (first, second)):
        file = await first.files.create(file=("large", content), purpose="batch")
        empty = await first.files.create(file=("empty", b""), purpose="batch")
        assert (file.bytes, empty.bytes) == (len(content), 0)
        assert (await second.files.content(file.id)).content == content
        assert (await second.files.content(empty.id)).content == b""
        answer = await second.files.with_raw_response.content(file.id)
        assert answer.headers["content-length"] == str(len(content))
        assert [one.id async for one in second.files.list(limit=1)] == [empty.id, file.id]


async def test_a_redis_that_refuses_what_batches_need_is_reported_once_and_a_stop_ends_well(
    redis: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    unfinished = RedisBatchStore.unfinished

    def counted(store: RedisBatchStore) -> list[BatchRecord]:
        nonlocal asked
        asked += 1
        return unfinished(store)

    monkeypatch.setattr(RedisBatchStore, "unfinished", counted)
    with redis.client() as there:
        for key in ("unfinished", "files:open"):
            there.set(KEYS_OF_BATCHES + key, "of somebody else")
    async with several(redis, SimVllm("a"), count=1) as (_, (client,)):
        await until(lambda: asked > 4)
        with pytest.raises(openai.InternalServerError, match="Redis refuses what files and batches need"):
            await client.files.list()
    reports = [r for r in caplog.records if r.levelname == "ERROR"]
    assert [r.getMessage() for r in reports] == ["using Redis (`server.shared`) failed inside the gateway"]
