"""Discovery of servers for `gateway init`: ports, hosts, and servers that hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gateway.apps.importing import discovery as scanning
from gateway.apps.importing.discovery import targets
from gateway.config.load import load
from simulator import SimVllm
from tests.apps.importing.test_init_command import found, qwen, run
from tests.support import PATIENCE
from tests.waiting import pace


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@asynccontextmanager
async def other_server(reply: bytes) -> AsyncIterator[str]:
    """HOST:PORT of a server that says this to whoever connects; nothing = it hangs."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        if not reply:
            await done.wait()
        writer.close()

    done = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        done.set()
        server.close()


async def test_ports_of_a_host_are_looked_through_and_others_are_told(tmp_path: Path) -> None:
    page = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<html>"
    locked = SimVllm(served=["x"], api_key="k")
    async with other_server(page) as other, found(qwen(), locked) as hosts:
        ports = sorted(host.rpartition(":")[2] for host in (*hosts, other))
        done = await run("127.0.0.1", "--ports", ",".join(ports), "--no-probe")
    assert done.code == 0, done.err
    assert "Scanning 3 ports of 127.0.0.1 ..." in done.err
    assert f"http://{other}  answers, but is no model server" in done.err
    assert f"http://{hosts[1]}  wants a key" in done.err
    assert len(load(tmp_path / "routes.yaml", {}).snapshot.backends) == 1


@asynccontextmanager
async def dripping_server() -> AsyncIterator[str]:
    """HOST:PORT of a server whose answer comes byte by byte and never ends."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
            while not done.is_set():
                writer.write(b" ")
                await writer.drain()
                await pace(0.05)
        writer.close()

    done = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        done.set()
        server.close()


async def test_a_server_that_hangs_or_drips_does_not_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "READ", 1.0)
    async with other_server(b"") as hung, dripping_server() as drips, found(qwen()) as hosts:
        async with asyncio.timeout(2 * PATIENCE):
            done = await run(hung, drips, *hosts, "--no-probe")
    assert done.code == 0, done.err
    assert f"  http://{hung}" not in done.err
    assert f"  http://{drips}" not in done.err


def test_what_a_host_may_look_like() -> None:
    assert targets(["spark1", "spark2:9"], [1, 2]) == ["http://spark1:1", "http://spark1:2", "http://spark2:9"]
    assert targets(["http://h:1/v1/", "h:1"], [5]) == ["http://h:1"]
    assert targets(["https://h.example", "[::1]"], [5]) == ["https://h.example:443", "http://[::1]:5"]
    with pytest.raises(ValueError, match="is no host"):
        targets(["a b"], [1])
