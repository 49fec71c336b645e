"""Stopping, as a real process: streams end whole where they can, are told where they cannot, and nobody is refused
while one gateway takes over from another."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.ports import free_ports
from simulator import SimVllm
from tests.raw_client import RawClient, chat, raw_client
from tests.waiting import until, until_said

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0  # seconds until a wait is called hung; a process takes a while to start on a busy machine
PROGRAM = (sys.executable, "-c", "from gateway.cli.main import cli; cli()")
CHAT = "/v1/chat/completions"


@dataclass
class Process:
    """`gateway serve`; `log` is all that it wrote."""

    url: str
    process: asyncio.subprocess.Process
    log: Path

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def signal_loop(self, number: int) -> None:
        """A signal for the thread of the event loop: of a stopped process, any thread may take it, and the loop goes on
        meanwhile."""
        if ctypes.CDLL(None).tgkill(self.process.pid, self.process.pid, number):
            raise ProcessLookupError(self.process.pid)

    async def exit_code(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()

    async def refuses(self) -> None:
        """Return when new connections are refused."""

        async def is_refused() -> bool:
            try:
                async with raw_client(self.url):
                    return False
            except ConnectionRefusedError:
                return True
            except ConnectionError:  # reset: it was just being closed
                return False

        await until_said(is_refused, PATIENCE)

    async def offers(self, model: str) -> None:
        """Return when an answer shows this model."""

        async def is_offered() -> bool:
            assert self.process.returncode is None, self.log.read_text()
            with suppress(httpx.TransportError):
                async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
                    entry = (await client.get(f"{self.url}/v1/models/{model}")).json()
                    return bool(entry.get("x_gateway", {}).get("states") == {"a": "ready"})
            return False

        await until_said(is_offered, PATIENCE)


@asynccontextmanager
async def serving(
    folder: Path, backend: str, *options: str, shutdown: str = "60s", name: str = "one", port: int = 0
) -> AsyncIterator[Process]:
    """A process that serves the one backend under the alias `name`."""
    port = port or free_ports(1)
    routes, log = folder / f"{name}.yaml", folder / f"{name}.log"
    routes.write_text(
        f"server: {{listen: '127.0.0.1:{port}', shutdown: {shutdown}, data: '{folder}/state'}}\n"
        "defaults: {health: {canary: none}}\n"
        f"backends: {{a: {{url: '{backend}'}}}}\naliases: {{{name}: [a]}}\n"
    )
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *PROGRAM, "serve", "--config", str(routes), *options, cwd=ROOT, stderr=written, stdout=written
        )
    started = Process(f"http://127.0.0.1:{port}", process, log)
    try:
        await started.offers(name)
        yield started
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def stream(gateway: Process, sim: SimVllm, model: str = "one") -> AsyncIterator[RawClient]:
    """A stream that has said something and goes on when `sim.clear()` is called."""
    sim.fault("hang_mid", after=3, count=1)
    async with raw_client(gateway.url) as client:
        await client.post(CHAT, chat(model, "40 words", stream=True))
        await client.until(b'"content"')
        yield client


async def test_on_sigterm_streams_end_whole_and_nothing_new_is_taken(tmp_path: Path) -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, serving(tmp_path, url) as gateway:
        async with raw_client(gateway.url) as kept, stream(gateway, sim) as running:
            await kept.get("/ready")
            assert (await kept.answer())[0] == 200
            # Stopped, so that it meets the signal and the question at the same moment.
            gateway.signal(signal.SIGSTOP)
            gateway.signal_loop(signal.SIGTERM)
            await kept.get("/ready")
            gateway.signal(signal.SIGCONT)
            assert (await kept.answer())[0] == 503
            await gateway.refuses()
            assert sim.inflight == 1
            sim.clear()
            assert (await running.rest()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert b'"finish_reason":"stop"' in running.seen
        assert await gateway.exit_code() == 0


async def test_what_outlasts_shutdown_is_told_and_cut(tmp_path: Path) -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, serving(tmp_path, url, shutdown="500ms") as gateway:
        async with stream(gateway, sim) as running, raw_client(gateway.url) as waiting:
            sim.fault("hang_before", count=1)
            await waiting.post(CHAT, chat("one"))
            await sim.wait_inflight(2)
            began = asyncio.get_running_loop().time()
            gateway.signal(signal.SIGTERM)
            rest = await running.rest()
            assert asyncio.get_running_loop().time() - began >= 0.4, "it had its time"
            assert b'"code":"stream_interrupted"' in rest
            assert b"upstream connect error: backend reset" in rest
            assert b"[DONE]" not in running.seen
            assert not running.seen.endswith(b"0\r\n\r\n")
            status, body = await waiting.answer()
            assert (status, b"no_backend_available" in body) == (503, True)
        await sim.wait_inflight(0)
        assert await gateway.exit_code() == 0


async def test_a_second_sigterm_ends_it_at_once(tmp_path: Path) -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, serving(tmp_path, url, shutdown="60s") as gateway:
        async with stream(gateway, sim) as running:
            gateway.signal(signal.SIGTERM)
            await gateway.refuses()
            assert gateway.process.returncode is None
            gateway.signal(signal.SIGTERM)
            assert b'"code":"stream_interrupted"' in await running.rest()
        async with asyncio.timeout(5):
            assert await gateway.exit_code() == 0
        await sim.wait_inflight(0)


async def test_a_second_sigterm_loses_no_usage(tmp_path: Path) -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, serving(tmp_path, url, shutdown="60s") as gateway:
        async with stream(gateway, sim) as running:
            gateway.signal(signal.SIGTERM)
            await gateway.refuses()
            gateway.signal(signal.SIGTERM)
            await running.rest()
        assert await gateway.exit_code() == 0
    with closing(sqlite3.connect(tmp_path / "state" / "usage.db")) as ledger:
        assert ledger.execute("SELECT alias, outcome, requests FROM usage").fetchall() == [
            ("one", "stream_interrupted", 1)
        ]
    assert '"level":"error"' not in gateway.log.read_text()


async def test_what_clients_leave_undone_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """A silent connection, half a head, half a body, and answers that nobody reads."""
    sim = SimVllm("a")
    half = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n{"
    async with sim.serve() as url, serving(tmp_path, url, shutdown="1s") as gateway, AsyncExitStack() as stack:
        for sent in (b"", half[:20], half, half.replace(b"chat/completions", b"messages/count_tokens")):
            client = await stack.enter_async_context(raw_client(gateway.url))
            await client.send(sent)
        unread = await stack.enter_async_context(raw_client(gateway.url, receive_buffer=4096))
        await unread.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 900)
        async with raw_client(gateway.url) as other:
            await other.get("/health")
            await other.answer()
        began = asyncio.get_running_loop().time()
        gateway.signal(signal.SIGTERM)
        assert await gateway.exit_code() == 0
        assert asyncio.get_running_loop().time() - began < 6


async def test_takeover_loses_no_stream_and_no_request(tmp_path: Path) -> None:
    sim = SimVllm("a", slots=64)
    async with sim.serve() as url, serving(tmp_path, url) as old:
        port = int(old.url.rsplit(":", 1)[1])
        async with stream(old, sim) as running, serving(tmp_path, url, "--takeover", name="two", port=port):
            stop, answers = asyncio.Event(), list[int | str]()
            asking = [asyncio.create_task(ask_until(stop, old.url, answers)) for _ in range(4)]
            old.signal(signal.SIGTERM)
            await until(lambda: len(answers) > 200, PATIENCE)  # it is asked while it is stopping
            await gone(old, running, sim)
            stop.set()
            await asyncio.gather(*asking)
        assert set(answers) == {200}


async def gone(old: Process, running: RawClient, sim: SimVllm) -> None:
    """Let its last stream end whole, and wait until the process has."""
    sim.clear()
    assert (await running.rest()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert await old.exit_code() == 0


async def ask_until(stop: asyncio.Event, url: str, answers: list[int | str]) -> None:
    """Notes the status of request after request, each on a new connection; of one that got no answer, why."""
    while not stop.is_set():
        try:
            async with raw_client(url) as client:
                await client.get("/health")
                answers.append((await client.answer())[0])
        except (OSError, EOFError) as error:
            answers.append(repr(error))


async def test_a_taken_port_is_told_plainly(tmp_path: Path) -> None:
    """Also one whose owner would share it: two gateways side by side must be meant."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        routes = tmp_path / "routes.yaml"
        routes.write_text("backends: {a: {url: 'http://127.0.0.1:9'}}\n")
        process = await asyncio.create_subprocess_exec(
            *(*PROGRAM, "serve", "--config", str(routes), "--host", "127.0.0.1", "--port", str(port)),
            cwd=ROOT,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE):
            _, said = await process.communicate()
    assert process.returncode == 1
    assert f"Cannot listen on 127.0.0.1:{port}: Address already in use".encode() in said
    assert b"Traceback" not in said
