"""Three gateways as processes in front of one fleet, with one Redis: their slots are those of one gateway, one of them
is killed, and Redis is killed or frozen under load."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.ports import free_ports
from simulator import SimVllm
from tests.apps.cluster.redis_server import RedisServer, running_redis
from tests.http.test_server_stop import PROGRAM, ROOT
from tests.limits import within
from tests.raw_client import chat
from tests.waiting import until, until_said

CHAT = "/v1/chat/completions"
PATIENCE = 60.0  # seconds until a wait is called hung; three processes start on a busy machine
SLOTS = 6


class Counting(SimVllm):
    """`most`: how many requests it had at a time."""

    most = 0

    def changed(self) -> None:
        self.most = max(self.most, self.inflight)
        super().changed()


@dataclass
class Process:
    """`gateway serve`; `log` is all that it wrote."""

    url: str
    process: asyncio.subprocess.Process
    log: Path
    client: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=None)
        self.client = httpx.AsyncClient(
            base_url=self.url, trust_env=False, timeout=PATIENCE, limits=limits, verify=False
        )

    async def status(self) -> dict[str, Any]:
        """What /status says; empty while it does not."""
        with suppress(httpx.TransportError):
            found: dict[str, Any] = (await self.client.get("/status")).json()
            return found
        return {}

    async def until(self, joined: bool, gateways: int = 3) -> None:
        """Has it joined so many gateways, or is it alone, with its backend ready?"""

        async def is_so() -> bool:
            assert self.process.returncode is None, self.log.read_text()
            told = await self.status()
            shared = told.get("shared") or {}
            as_wanted = (shared.get("joined"), shared.get("gateways")) == (joined, gateways)
            return as_wanted and told["backends"]["a"]["state"] in ("ready", "busy")

        await until_said(is_so, PATIENCE)

    async def ask(self, said: str = "5 words", **more: Any) -> httpx.Response:
        return await self.client.post(CHAT, json=chat("a", said, **more))


@asynccontextmanager
async def three(folder: Path, redis: str, backend: str) -> AsyncIterator[list[Process]]:
    """Three gateways that have joined."""
    async with AsyncExitStack() as stack:
        found = []
        for number in range(3):
            port = free_ports(1)
            routes, log = folder / f"{number}.yaml", folder / f"{number}.log"
            routes.write_text(
                f"server: {{listen: '127.0.0.1:{port}', data: '{folder}/{number}', shared: '{redis}'}}\n"
                f"defaults: {{health: {{canary: none}}}}\nbackends: {{a: {{url: '{backend}', slots: {SLOTS}}}}}\n"
            )
            with log.open("wb") as written:
                command = (*PROGRAM, "serve", "--config", str(routes))
                process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=written, stdout=written)
            found.append(Process(f"http://127.0.0.1:{port}", process, log))
            stack.push_async_callback(stop, found[-1])
        await asyncio.gather(*(gateway.until(joined=True) for gateway in found))
        yield found


async def stop(gateway: Process) -> None:
    await gateway.client.aclose()
    if gateway.process.returncode is None:
        gateway.process.kill()
        await gateway.process.wait()


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


class Load:
    """Clients that ask again and again, some of them with streams; `failed` are the answers that were not whole."""

    def __init__(self, gateways: list[Process], at_a_time: int) -> None:
        self.gateways = gateways
        self.answers = 0
        self.failed: list[str] = []
        self._over = False
        self._tasks = [asyncio.create_task(self._client(g, n)) for g in gateways for n in range(at_a_time)]

    async def _client(self, gateway: Process, number: int) -> None:
        stream = number % 2 == 0
        while not self._over:
            try:
                answer = await gateway.ask(stream=stream)
                if answer.status_code != 200 or (stream and not answer.text.endswith("data: [DONE]\n\n")):
                    self.failed.append(f"{answer.status_code} {answer.text[-300:]}")
            except httpx.HTTPError as error:
                self.failed.append(repr(error))
            self.answers += 1

    async def more(self, count: int) -> None:
        """Return when there have been so many more answers."""
        goal = self.answers + count
        await until(lambda: self.answers >= goal, PATIENCE)

    async def end(self) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)


async def test_a_gateway_that_is_killed_gives_its_slots_back_within_ten_seconds(
    redis: RedisServer, tmp_path: Path
) -> None:
    sim = Counting("a", slots=32)
    async with sim.serve() as backend, three(tmp_path, f"{redis.url}?socket_timeout=2", backend) as gateways:
        first, second, _ = gateways
        sim.fault("hang_mid", after=2, count=SLOTS)
        held = [asyncio.create_task(first.ask("9 words", stream=True)) for _ in range(SLOTS)]
        await sim.wait_inflight(SLOTS)
        waiting = [asyncio.create_task(second.ask()) for _ in range(3)]

        async def three_wait() -> bool:
            return bool((await second.status())["backends"]["a"]["queue"] >= 3)

        await until_said(three_wait, PATIENCE)
        assert len(sim.requests) == SLOTS
        killed = time.monotonic()
        first.process.send_signal(signal.SIGKILL)
        with within(10.0):
            answers = await asyncio.gather(*waiting)
        assert [answer.status_code for answer in answers] == [200] * 3
        assert time.monotonic() - killed > 3.0
        assert sim.most == SLOTS
        await asyncio.gather(*held, return_exceptions=True)
        await second.until(joined=True, gateways=2)


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_without_redis_no_request_fails_slots_are_kept_and_they_join_again(
    redis: RedisServer, tmp_path: Path, how: str
) -> None:
    sim = Counting("a", decode=500, slots=64)
    async with sim.serve() as backend, three(tmp_path, f"{redis.url}?socket_timeout=1", backend) as gateways:
        load = Load(gateways, at_a_time=6)
        await load.more(100)
        assert sim.most == SLOTS, "all are used, and no more"
        if how == "killed":
            redis.kill()
        else:
            redis.freeze()
        await asyncio.gather(*(gateway.until(joined=False) for gateway in gateways))
        await load.more(100)
        assert sim.most <= SLOTS, "what ran, and of each share what that left"
        sim.most = 0
        await load.more(30)
        assert sim.most <= SLOTS, "three shares"
        if how == "killed":
            redis.start()
        else:
            redis.thaw()
        await asyncio.gather(*(gateway.until(joined=True) for gateway in gateways))
        await load.more(200)
        await load.end()
        assert sim.most <= SLOTS
        assert load.failed == []
        for gateway in gateways:
            log = gateway.log.read_text()
            assert "is away" in log
            assert "with a share of the slots (1 of 3 gateways)" in log
            assert "Traceback" not in log, log
