"""Thousands of mixed requests, a tenth of them hostile, at a gateway in a process of its own: its memory and its open
files are the same after the last third as after the first. `FLAT_REQUESTS=24000` is a longer look."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from bench.ports import free_ports
from simulator import SimVllm
from simulator.audio import SimAudio
from tests.chaos_answers import Asked, check, read_answer
from tests.chaos_doors import BACKEND, knock, run_batch
from tests.chaos_hostile import hostile_backend, misbehave
from tests.raw_client import RawClient, raw_client
from tests.trimming_serve import SAID
from tests.waiting import until_said

REQUESTS = int(os.environ.get("FLAT_REQUESTS", "3000"))
AT_ONCE = 12
GROWTH = 4 * 1024 * 1024  # bytes that a third may add: holes between what lives, and tables that fill up
HERE = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
ROUTES = (
    """
server: {{data: state}}
defaults: {{health: {{every: 500ms}}, timeouts: {{first_byte: 5s, idle: 5s}}}}
backends:
  v1: {{url: "{v1}", slots: 16, tool_parser: hermes}}
  v2: {{url: "{v2}", slots: 16, tool_parser: hermes}}
  bad: {{url: "{bad}", slots: 16, model: small, context: 65536, tool_parser: hermes}}
"""
    + BACKEND
    + """
aliases:
  main: [[v1, v2]]
  chain: [v1, v2]
  turns: {{use: [[v1, v2]], balance: round_robin}}
  risky: [bad, v1]
  local: [v2, v1]
"""
)


@dataclass
class Process:
    """A running `gateway serve`."""

    pid: int
    url: str
    folder: Path

    async def memory(self) -> int:
        """Resident bytes, without what is free."""
        said = self.folder / SAID
        before = said.read_text() if said.exists() else ""
        os.kill(self.pid, signal.SIGUSR2)

        async def is_said() -> bool:
            return said.exists() and said.read_text()[len(before) :].endswith("\n")

        await until_said(is_said)
        return int(said.read_text().split()[-1])

    @property
    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


@asynccontextmanager
async def serving(folder: Path, routes: str) -> AsyncIterator[Process]:
    (folder / "routes.yaml").write_text(routes)
    port = free_ports(1)
    command = ["-m", "tests.trimming_serve", "serve", "--host", "127.0.0.1", "--port", str(port)]
    log = (folder / "log").open("wb")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=folder, env=HERE, stdout=log, stderr=log
    )
    running = Process(process.pid, f"http://127.0.0.1:{port}", folder)
    try:
        await until_said(lambda: answers(running.url))
        yield running
    finally:
        process.terminate()
        await process.wait()
        log.close()


async def answers(url: str) -> bool:
    try:
        async with raw_client(url) as client:
            await client.get("/ready")
            return (await client.answer())[0] == 200
    except OSError:
        return False


async def ask(url: str, random: Random) -> None:
    """One request of any manner."""
    if random.random() < 0.2:
        await knock(url, random)
        return
    async with asyncio.timeout(30), raw_client(url) as client:
        if random.random() < 0.1:
            await misbehave(client, random)
        elif random.random() < 0.1:
            asked = Asked(random).sent
            await client.send(asked if random.random() < 0.5 else asked[: random.randrange(len(asked))])
            RawClient.close(client)
        else:
            request = Asked(random)
            await client.send(request.sent)
            check(request, await read_answer(client))


async def ask_many(url: str, seed: int, count: int) -> None:
    numbers = iter(range(count))

    async def one_after_another() -> None:
        for number in numbers:
            await ask(url, Random(f"{seed} {number}"))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_another())
        for number in range(max(2, count // 200)):
            await run_batch(url, Random(f"{seed} batch {number}"))


@pytest.mark.timeout(max(300.0, REQUESTS / 20))
async def test_memory_and_files_stay_flat_under_mixed_and_hostile_requests(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        sims = {name: SimVllm(name, slots=16, decode=5000) for name in ("v1", "v2")}
        urls = {name: await stack.enter_async_context(sim.serve()) for name, sim in sims.items()}
        urls["ears"] = await stack.enter_async_context(SimAudio("ears", ["transcriptions", "speech"]).serve())
        urls["bad"] = await stack.enter_async_context(hostile_backend(Random("flat")))
        gateway = await stack.enter_async_context(serving(tmp_path, ROUTES.format(**urls)))
        memory: list[int] = []
        files: list[int] = []
        for third in range(3):
            await ask_many(gateway.url, third, REQUESTS // 3)

            async def settled() -> bool:
                return gateway.files <= (files[0] if files else gateway.files)

            await until_said(settled)
            memory.append(await gateway.memory())
            files.append(gateway.files)
        print(f"{REQUESTS} requests: memory {[m // 1024 // 1024 for m in memory]} MiB, files {files}")
        assert memory[2] - memory[1] < GROWTH, memory
        assert memory[2] - memory[0] < 2 * GROWTH, memory
        assert "Traceback" not in (tmp_path / "log").read_text()
