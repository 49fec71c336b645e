"""`gateway serve` as a process: it ends as it is told to, and is replaced without dropping a stream."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from bench.ports import free_ports
from gateway.cli import serve
from gateway.cli.serve import warnings_of
from gateway.config.load import load_text
from simulator import SimVllm
from tests.demo_process import GATEWAY, PATIENCE
from tests.support import read, write

ASK = {"model": "chat", "messages": [{"role": "user", "content": "Say it in 20 words."}]}


class Serving:
    """One `gateway serve`; `said` is what it has written so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = ""

    async def until_said(self, text: str) -> None:
        assert self.process.stderr is not None
        while text not in self.said:
            line = await self.process.stderr.readline()
            assert line, f"it ended and had said: {self.said}"
            self.said += line.decode()

    async def ended(self) -> int:
        """Its exit code, when it has said everything."""
        assert self.process.stderr is not None
        self.said += (await self.process.stderr.read()).decode()
        return await self.process.wait()


@asynccontextmanager
async def serving(routes: Path, port: int, *options: str) -> AsyncIterator[Serving]:
    """Started, and its one backend seen; killed at the end if it still runs."""
    command = [str(GATEWAY), "serve", "--config", str(routes), "--host", "127.0.0.1", "--port", str(port), *options]
    process = await asyncio.create_subprocess_exec(*command, cwd=routes.parent, stderr=asyncio.subprocess.PIPE)
    gateway = Serving(process)
    try:
        async with asyncio.timeout(PATIENCE):
            await gateway.until_said("chat: unknown -> ready")
        yield gateway
    finally:
        if process.returncode is None:
            process.kill()
            await gateway.ended()


@pytest.fixture
async def sim() -> AsyncIterator[SimVllm]:
    backend = SimVllm(name="chat", served=["some/model"], context=32768, tool_parser="hermes")
    async with backend.serve(port=0):
        yield backend


@pytest.fixture
def routes(tmp_path: Path, sim: SimVllm) -> Path:
    file = tmp_path / "routes.yaml"
    file.write_text(f'defaults: {{health: {{canary: none}}}}\nbackends: {{chat: {{url: "{sim.url}"}}}}')
    return file


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_ends_cleanly_when_it_is_told_to(routes: Path, number: signal.Signals) -> None:
    async with serving(routes, free_ports(1)) as gateway:
        gateway.process.send_signal(number)
        async with asyncio.timeout(PATIENCE):
            assert await gateway.ended() == 0
    assert "Traceback" not in gateway.said
    assert "Aborted" not in gateway.said


async def test_a_second_one_on_the_same_port_is_an_error_unless_it_takes_over(routes: Path) -> None:
    port = free_ports(1)
    async with serving(routes, port):
        command = [str(GATEWAY), "serve", "--config", str(routes), "--host", "127.0.0.1", "--port", str(port)]
        second = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, said = await asyncio.wait_for(second.communicate(), PATIENCE)
        assert second.returncode == 1
        assert f"Cannot listen on 127.0.0.1:{port}" in said.decode()


async def test_further_addresses_are_listened_at(routes: Path) -> None:
    port = free_ports(3)
    write(routes, f"server: {{also_listen: ['127.0.0.1:{port + 1}']}}\n" + read(routes))
    async with serving(routes, port):
        async with httpx.AsyncClient(trust_env=False) as client:
            for at in (port, port + 1):
                assert (await client.get(f"http://127.0.0.1:{at}/api/version")).status_code == 200
        command = [str(GATEWAY), "serve", "--config", str(routes), "--host", "127.0.0.1", "--port", str(port + 2)]
        second = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, said = await asyncio.wait_for(second.communicate(), PATIENCE)
        assert second.returncode == 1
        assert f"Cannot listen on 127.0.0.1:{port + 1}" in said.decode()


async def test_a_new_one_takes_over_and_the_old_one_finishes_its_stream(routes: Path, sim: SimVllm) -> None:
    port = free_ports(1)
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    async with (
        serving(routes, port) as old,
        httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client,
    ):
        sim.fault("hang_mid", after=5, count=1)
        async with client.stream("POST", url, json={**ASK, "stream": True}) as stream:
            lines = stream.aiter_lines()
            first = await anext(lines)
            async with serving(routes, port, "--takeover"):
                old.process.send_signal(signal.SIGTERM)
                await answered_in_a_row(url, 10)
                assert old.process.returncode is None
                sim.clear()
                rest = [line async for line in lines if line]
                async with asyncio.timeout(PATIENCE):
                    assert await old.ended() == 0
                await answered_in_a_row(url, 3)
    assert first.startswith("data: ")
    assert rest[-1] == "data: [DONE]"
    assert not any("error" in line for line in rest)


async def answered_in_a_row(url: str, count: int) -> None:
    """Each on a connection of its own. One that the old gateway's queue still held when it closed is reset and starts
    the row anew."""
    row = 0
    async with asyncio.timeout(PATIENCE):
        while row < count:
            async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
                try:
                    reply = await client.post(url, json=ASK)
                except httpx.TransportError:
                    row = 0
                    continue
            assert reply.status_code == 200, reply.text
            row += 1


@pytest.fixture
def with_absent(routes: Path, sim: SimVllm) -> Path:
    """`chat` is there, `gone` and the parked `job` are not."""
    nobody = f"http://127.0.0.1:{free_ports(1)}"
    more = f'gone: {{url: "{nobody}"}}, job: {{url: "{nobody}", run: on_demand}}'
    routes.write_text(f'backends: {{chat: {{url: "{sim.url}"}}, {more}}}\naliases: {{main: [chat], lost: [gone]}}\n')
    return routes


@pytest.mark.parametrize(
    ("listens", "host", "warned"),
    [
        ("0.0.0.0", None, True),
        ("0.0.0.0", "127.0.0.1", False),
        ("127.0.0.1", "0.0.0.0", True),
        ("127.0.0.1", None, False),
    ],
)
def test_who_can_reach_it_is_told_of_the_address_that_counts(listens: str, host: str | None, warned: bool) -> None:
    loaded = load_text(
        f"server: {{listen: '{listens}:4000'}}\nbackends: {{a: {{url: 'http://10.0.0.1:1'}}}}", "r.yaml", {}
    )
    told = [text for text in warnings_of(loaded, host, 4000) if "without `clients`" in text]
    assert len(told) == warned
    assert all("listening on 0.0.0.0" in text for text in told)


async def test_it_says_who_is_there_and_who_is_not(with_absent: Path) -> None:
    async with serving(with_absent, free_ports(1)) as gateway:
        async with asyncio.timeout(PATIENCE):
            await gateway.until_said("nobody can serve lost now")
    assert "first look: ready: chat; parked: job" in gateway.said
    assert "gone is warming: " in gateway.said


class Built(Exception):
    """The gateway was built, and is not run."""


VALUES = [(None, "repeated"), ("", "repeated"), ("0", "repeated"), ("1", "never")]


@pytest.mark.parametrize(("value", "expected"), VALUES)
def test_deciding_ahead_is_turned_off_by_a_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None, expected: str
) -> None:
    built: list[str] = []

    def build(_snapshot: object, decides_ahead: str) -> None:
        built.append(decides_ahead)
        raise Built

    monkeypatch.setattr("gateway.http.app.App", build)
    monkeypatch.delenv("GATEWAY_DECIDE_ALWAYS", raising=False)
    if value is not None:
        monkeypatch.setenv("GATEWAY_DECIDE_ALWAYS", value)
    loaded = load_text("backends: {a: {url: 'http://127.0.0.1:1'}}", "routes.yaml", {})
    with socket.socket() as sock, pytest.raises(Built):
        serve.serve(tmp_path / "routes.yaml", loaded, loaded.snapshot, [sock])
    assert built == [expected]


async def test_a_restart_with_a_broken_file_serves_its_last_good_version_and_says_so(tmp_path: Path) -> None:
    routes, port = tmp_path / "routes.yaml", free_ports(1)
    async with SimVllm("chat").serve() as url, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        good = f"server: {{listen: '127.0.0.1:{port}', data: kept}}\nbackends: {{chat: {{url: '{url}'}}}}\n"
        write(routes, good)
        async with serving(routes, port) as first:
            async with asyncio.timeout(PATIENCE):
                while not (tmp_path / "kept" / "last-good.yaml").exists():
                    await asyncio.sleep(0.02)
            assert "config" not in (await client.get("/ready")).json()
            first.process.send_signal(signal.SIGTERM)
            await first.ended()
        write(routes, good.replace("backends: {chat", "backends: {chat: {}, chat"))
        strict = await asyncio.create_subprocess_exec(
            str(GATEWAY), "serve", "--strict", "--port", str(port), cwd=tmp_path, stderr=asyncio.subprocess.PIPE
        )
        assert b"duplicate key" in (await strict.communicate())[1]
        assert strict.returncode == 1
        async with serving(routes, port) as second:
            assert "HAS A MISTAKE: its last good version is served" in second.said
            assert (await client.post("/v1/chat/completions", json=ASK)).status_code == 200
            assert "last good version" in (await client.get("/ready")).json()["config"]
            status = (await client.get("/status")).json()["config"]
            assert "duplicate key" in status["error"]
            for command in (["top", "--once"], ["explain", "chat"], ["fleet", "status"], ["requests"], ["usage"]):
                asked = await asyncio.create_subprocess_exec(
                    str(GATEWAY), *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
                )
                said, told = await asked.communicate()
                assert asked.returncode == 0, (command, said, told)
                assert b"routes.yaml:2" in told
                assert b"asking by the last good version" in told
            write(routes, good.replace("chat:", "chat: # mended\n  "))
            await second.until_said("was read and is in force")
            assert (await client.get("/status")).json()["config"]["error"] is None
