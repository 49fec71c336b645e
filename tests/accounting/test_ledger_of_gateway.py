"""The ledger of a running gateway: each request once, waste included, and requests never suffer from it."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.ports import free_ports
from gateway.accounting.ledger_file import NAME
from simulator import SimVllm
from tests.demo_process import GATEWAY, PATIENCE, gateway_ready
from tests.raw_client import chat, raw_client
from tests.support import RunningGateway, running_gateway
from tests.waiting import until

CHAT = "/v1/chat/completions"
KEY = "the-key-of-hermes"


@asynccontextmanager
async def kept(folder: Path, *sims: SimVllm) -> AsyncIterator[RunningGateway]:
    """The alias `chain` over these, for the client `hermes`."""
    async with AsyncExitStack() as stack:
        lines = [f"server: {{data: '{folder}'}}", "backends:"]
        for sim in sims:
            url = await stack.enter_async_context(sim.serve())
            lines.append(f"  {sim.name}: {{url: '{url}', api_key: the-key-of-{sim.name}}}")
        lines += [f"aliases: {{chain: [{', '.join(sim.name for sim in sims)}]}}"]
        lines += [f"clients: {{hermes: {{key: {KEY}, rpm: 1000, tpm: 1000000, admin: true}}}}"]
        gateway = await stack.enter_async_context(running_gateway("\n".join(lines)))
        gateway.client.headers["authorization"] = f"Bearer {KEY}"
        await gateway.until_ready(*(sim.name for sim in sims))
        yield gateway


def lines(folder: Path, columns: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / NAME)) as connection:
        return connection.execute(f"SELECT {columns} FROM usage ORDER BY at, rowid").fetchall()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_one_line_with_its_tokens(tmp_path: Path, stream: bool) -> None:
    async with kept(tmp_path, SimVllm("a", api_key="the-key-of-a")) as gateway:
        usage = (await gateway.client.post(CHAT, json=chat("chain", "20 words"))).json()["usage"]
        before = time.time()
        await gateway.client.post(CHAT, json=chat("chain", "20 words", stream=stream))
        await gateway.until(gateway.idle)
    tokens = (usage["prompt_tokens"], usage["completion_tokens"], 0, 0)
    expected = ("hermes", "chain", "a", "chat", "200", 1, *tokens, 0.0, 0)
    columns = (
        "client, alias, backend, endpoint, outcome, requests, prompt, completion, cached, reasoning, usd, unpriced"
    )
    assert lines(tmp_path, columns) == [expected, expected]
    ((_, _), (at, seconds)) = lines(tmp_path, "at, seconds")
    assert before <= at <= time.time()
    assert 0.0 < seconds < PATIENCE


async def test_an_answer_that_was_not_used_counts_for_who_gave_it(tmp_path: Path) -> None:
    one, two = SimVllm("a", api_key="the-key-of-a"), SimVllm("b", api_key="the-key-of-b")
    async with kept(tmp_path, one, two) as gateway:
        one.fault("empty_turn", count=1)
        answer = await gateway.client.post(CHAT, json=chat("chain", "20 words"))
        assert answer.headers["x-gateway-backend"] == "b"
    wasted, used = lines(tmp_path, "backend, outcome, requests, prompt > 0")
    assert (wasted, used) == (("a", "unused", 0, 1), ("b", "200", 1, 1))


async def test_an_empty_answer_that_is_delivered_after_all_counts_once(tmp_path: Path) -> None:
    one, two = SimVllm("a", api_key="the-key-of-a"), SimVllm("b", api_key="the-key-of-b")
    async with kept(tmp_path, one, two) as gateway:
        two.fault("status", status=500)
        said = {**chat("chain", "hello"), "vllm_xargs": {"script": ""}}
        assert (await gateway.client.post(CHAT, json=said)).status_code == 200
        await gateway.until(gateway.idle)
    assert lines(tmp_path, "backend, outcome, requests") == [("a", "200", 1)]


async def test_a_request_that_was_not_answered_is_a_row_of_the_ledger_too(tmp_path: Path) -> None:
    sim = SimVllm("a", api_key="the-key-of-a")
    async with kept(tmp_path, sim) as gateway:
        sim.fault("status", status=500, count=1)
        await gateway.client.post(CHAT, json=chat("chain"))
        sim.fault("hang_mid", after=3, count=1)
        async with raw_client(gateway.url) as client:
            await client.post(CHAT, chat("chain", stream=True), f"authorization: Bearer {KEY}")
            await client.until(b'"content"')
        await gateway.until(gateway.idle)
    assert lines(tmp_path, "backend, outcome, requests, prompt") == [
        ("a", "upstream_error", 1, 0),
        ("a", "client_gone", 1, 0),
    ]


async def test_a_request_without_a_key_leaves_no_row_in_the_ledger(tmp_path: Path) -> None:
    """Else anybody could fill the disk."""
    async with kept(tmp_path, SimVllm("a", api_key="the-key-of-a")) as gateway:
        for _ in range(3):
            wrong = await gateway.client.post(CHAT, json=chat("chain"), headers={"authorization": "Bearer wrong-key"})
            assert wrong.status_code == 401
        await gateway.client.post(CHAT, json=chat("nobody"))
        await gateway.client.post(CHAT, json=chat("chain"))
    assert lines(tmp_path, "outcome") == [("200",)]


async def test_no_key_stands_in_the_ledger_the_log_or_the_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sim = SimVllm("a", api_key="the-key-of-a")
    async with kept(tmp_path, sim) as gateway:
        sim.fault("status", status=500, count=1)
        for headers in ({}, {"authorization": "Bearer the-key-of-nobody"}, {"x-api-key": "the-key-of-nobody"}):
            for stream in (False, True):
                await gateway.client.post(CHAT, json=chat("chain", stream=stream), headers=headers)
        shown = [(await gateway.client.get(path)).text for path in ("/metrics", "/v1/models", "/ready")]
    shown += [record.getMessage() for record in caplog.records if record.name.startswith(("gateway", "uvicorn"))]
    shown.append((tmp_path / NAME).read_bytes().decode("latin-1"))
    assert any("hermes" in text for text in shown)
    assert not [text for text in shown if "the-key-of" in text]


# -- as a process -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def process(
    folder: Path, sim: SimVllm, *, file_limit: int | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """`gateway serve` for this backend, ready; `file_limit`: bytes that a file of its may have."""
    port = free_ports(1)
    async with sim.serve() as url:
        routes = folder / "routes.yaml"
        routes.write_text(
            f"server: {{data: '{folder}/state', log: none}}\n"
            f"backends: {{a: {{url: '{url}', health: {{canary: none}}}}}}\n"
        )
        command = [str(GATEWAY), "serve", "--config", str(routes), "--host", "127.0.0.1", "--port", str(port)]
        with (folder / "log").open("wb") as log:
            started = await asyncio.create_subprocess_exec(*command, stderr=log)
        if file_limit is not None:
            resource.prlimit(started.pid, resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
        try:
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, trust_env=False
            ) as client:
                await gateway_ready(client)
                yield started, client
        finally:
            if started.returncode is None:
                started.kill()
                await started.wait()


async def test_a_killed_gateway_loses_a_second_at_most(tmp_path: Path) -> None:
    async with process(tmp_path, SimVllm("a")) as (gateway, client):
        ended = []
        began = time.monotonic()
        while time.monotonic() < began + 2.5:
            assert (await client.post(CHAT, json=chat("a"))).status_code == 200
            ended.append(time.time())
        killed = time.time()
        gateway.kill()
        await gateway.wait()
    there = len(lines(tmp_path / "state", "at"))
    assert sum(at < killed - 1.0 for at in ended) <= there <= len(ended)
    assert there > 0


async def test_a_gateway_that_is_stopped_loses_nothing(tmp_path: Path) -> None:
    async with process(tmp_path, SimVllm("a")) as (gateway, client):
        for _ in range(5):
            await client.post(CHAT, json=chat("a"))
        gateway.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(gateway.wait(), PATIENCE) == 0
    assert lines(tmp_path / "state", "outcome") == [("200",)] * 5


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux'")
async def test_a_full_disk_is_said_once_and_no_request_fails(tmp_path: Path) -> None:
    """As good as full: no file of this process may grow beyond some bytes, until that is lifted."""
    async with process(tmp_path, SimVllm("a"), file_limit=16384) as (gateway, client):
        count = 0
        async with asyncio.timeout(PATIENCE):
            while "usage.db cannot be written" not in (tmp_path / "log").read_text():
                assert (await client.post(CHAT, json=chat("a"))).status_code == 200
                count += 1
        for _ in range(20):
            assert (await client.post(CHAT, json=chat("a"))).status_code == 200
        resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await until(lambda: "usage.db is written again; entries lost: 0" in (tmp_path / "log").read_text(), PATIENCE)
    assert (tmp_path / "log").read_text().count("usage.db cannot be written") == 1  # requests.db may say it too
    assert len(lines(tmp_path / "state", "at")) == count + 20
