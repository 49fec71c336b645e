"""Lookups of host names: one that is never answered keeps no other waiting."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.transport.event_loop import Loop
from simulator import SimVllm
from tests.gateway_process import gateway_process
from tests.waiting import PATIENCE, until_said

DEAD = [f"far-{number}.lan" for number in range(20)]


class Names:
    """A resolver that answers for far names when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told = threading.Event()
        self.known = {"spark": ["127.0.0.1"], "twice": ["127.0.0.2", "127.0.0.1"]}
        self._real = socket.getaddrinfo

    def getaddrinfo(self, host: str, *args: Any) -> list[Any]:
        self.asked.append(host)
        if host in DEAD:
            self.told.wait(PATIENCE)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [found for address in self.known.get(host, [host]) for found in self._real(address, *args)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    found = Names()
    monkeypatch.setattr("gateway.transport.event_loop.socket.getaddrinfo", found.getaddrinfo)
    yield found
    found.told.set()


def run(work: Callable[[Loop], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=Loop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Loop)
        runner.run(asyncio.wait_for(work(loop), PATIENCE))


def test_names_that_are_never_answered_keep_no_other_waiting(names: Names) -> None:
    async def work(loop: Loop) -> None:
        waiting = [asyncio.ensure_future(loop.getaddrinfo(name, 443)) for name in DEAD * 3]
        found = await loop.getaddrinfo("spark", 8000, type=socket.SOCK_STREAM)
        assert [address for *_, address in found] == [("127.0.0.1", 8000)]
        assert not any(task.done() for task in waiting)
        assert sorted(names.asked) == sorted([*DEAD, "spark"])
        assert sum(thread.name == "lookup" for thread in threading.enumerate()) <= len(DEAD)
        waiting.pop().cancel()
        names.told.set()
        failures = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(failure) for failure in failures} == {socket.gaierror}
        assert loop._lookups == {}

    run(work)


def test_a_lookup_that_nobody_waits_for_any_more_is_not_begun_again(names: Names) -> None:
    async def work(loop: Loop) -> None:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await loop.getaddrinfo(DEAD[0], 443)
        assert names.asked == [DEAD[0]]

    run(work)
    names.told.set()  # the loop is closed: nothing happens


def test_an_address_needs_no_lookup(names: Names) -> None:
    async def work(loop: Loop) -> None:
        for address in ("127.0.0.1", "::1"):
            assert (await loop.getaddrinfo(address, 80))[0][4][0] == address
        assert names.asked == []

    run(work)


def test_a_name_is_connected_to_at_the_first_of_its_addresses_that_answers(names: Names) -> None:
    async def work(loop: Loop) -> None:
        sock = socket.create_server(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        server = await loop.create_server(asyncio.Protocol, sock=sock)
        for name in ("spark", "twice"):
            transport, _ = await loop.create_connection(asyncio.Protocol, name, port)
            assert transport.get_extra_info("peername") == ("127.0.0.1", port)
            transport.close()
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(asyncio.Protocol, "spark", port)
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await loop.create_connection(asyncio.Protocol, "twice", port)

    run(work)


def own_names() -> bool:
    """May this process give another one its own files of names?"""
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and subprocess.run([unshare, "-m", "true"], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(os.name != "posix" or not own_names(), reason="needs `unshare -m`, which root may do")
async def test_backends_whose_name_server_is_silent_keep_no_other_backend_waiting(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.9.8.7", 53))
        (tmp_path / "resolv.conf").write_text("nameserver 127.9.8.7\noptions timeout:30\n")
        (tmp_path / "hosts").write_text("127.0.0.1 localhost spark-1\n")
        async with SimVllm("a", served=["m"]).serve() as url:
            port = url.rpartition(":")[2]
            far = "".join(f"  far-{n}: {{url: 'http://{name}:8000/v1'}}\n" for n, name in enumerate(DEAD))
            routes = f"backends:\n{far}  a: {{url: 'http://spark-1:{port}'}}\n"
            names = [tmp_path / "resolv.conf", tmp_path / "hosts"]
            async with gateway_process(tmp_path, routes, names=names) as gateway:

                async def is_served() -> bool:
                    body = {"model": "a", "messages": [{"role": "user", "content": "2 words please"}]}
                    return (await gateway.client.post("/v1/chat/completions", json=body)).status_code == 200

                await until_said(is_served, within=PATIENCE)
