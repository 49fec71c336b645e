"""There are as many connections as the process has files for, with room for backends; nobody's keep others out."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from gateway.config.problems import ConfigError
from gateway.http.listener import Limits, address_of, limits_for
from gateway.runtime.process import file_limit, raise_file_limit
from simulator import SimVllm
from tests.http.test_server_stop import serving
from tests.listening import CHAT, HEALTH, later, limit, listening, statuses
from tests.memory_transport import MemoryTransport, Wireless, wireless
from tests.raw_client import chat, raw_client
from tests.waiting import pace, turns

CLOSED = "gateway_connections_closed_total"
FEW = Limits(connections=8, fresh=0.0)


def closed(of: Wireless, reason: str) -> float:
    return of.app.gateway.metrics.registry.get_sample_value(CLOSED, {"reason": reason}) or 0.0


async def answered(transport: MemoryTransport) -> list[int]:
    """The statuses that came back, once there is one."""
    async with asyncio.timeout(5):
        while not transport.written:
            await turns()
    return statuses(bytes(transport.written))


async def test_a_new_connection_takes_the_place_of_one_that_does_nothing(tmp_path: Path) -> None:
    async with wireless(str(tmp_path), FEW) as gateway:
        silent = [gateway.connect("127.0.0.1") for _ in range(8)]
        assert not any(transport.closed for transport in silent)
        new = gateway.connect("127.0.0.1")
        assert [transport.closed for transport in silent] == [True] + [False] * 7, "the longest silent one"
        new.receive(HEALTH)
        assert await answered(new) == [200]
        assert len(gateway.listener.connections) == 8
        assert closed(gateway, "room") == 1


async def test_idle_ones_go_before_those_that_have_just_come(tmp_path: Path) -> None:
    async with wireless(str(tmp_path), FEW) as gateway:
        silent = [gateway.connect("127.0.0.1") for _ in range(7)]
        idle = gateway.connect("127.0.0.1")
        idle.receive(HEALTH)
        await answered(idle)
        await turns()
        gateway.connect("127.0.0.1")
        assert idle.closed
        assert not any(transport.closed for transport in silent)


async def test_one_that_still_reads_its_answer_stays(tmp_path: Path) -> None:
    async with wireless(str(tmp_path), FEW) as gateway:
        reading = [gateway.connect("127.0.0.1", unread=True) for _ in range(8)]
        for transport in reading:
            transport.receive(HEALTH)
            await answered(transport)
        refused = gateway.connect("127.0.0.1")
        assert statuses(bytes(refused.written)) == [503]
        assert not any(transport.closed for transport in reading)


async def test_where_every_connection_works_a_new_one_is_told_so(tmp_path: Path) -> None:
    async with wireless(str(tmp_path), FEW) as gateway:
        busy = [gateway.connect("127.0.0.1") for _ in range(8)]
        for transport in busy:
            transport.receive(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 4000\r\n\r\n".encode())
        new = gateway.connect("127.0.0.1")
        assert statuses(bytes(new.written)) == [503]
        assert b'"too_many_connections"' in new.written
        assert b"retry-after: 1\r\n" in new.written
        assert b"connection: close\r\n" in new.written
        new.receive(HEALTH)
        assert statuses(bytes(new.written)) == [503]
        gateway.listener.check_deadlines(asyncio.get_running_loop().time() + 1.1)
        assert new.closed
        assert not any(transport.closed for transport in busy)
        assert closed(gateway, "refused") == 1


async def test_of_many_refused_ones_few_are_kept(tmp_path: Path) -> None:
    async with wireless(str(tmp_path), FEW) as gateway:
        for _ in range(8):
            gateway.connect("127.0.0.1").receive(
                b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 4000\r\n\r\n" + b"x" * 99
            )
        refused = [gateway.connect("127.0.0.1") for _ in range(200)]
        assert sum(not transport.closed for transport in refused) <= 40
        await turns()
        assert len(gateway.state.connections) <= 48


async def test_a_body_that_hardly_comes_makes_room(tmp_path: Path) -> None:
    async with wireless(str(tmp_path), FEW) as gateway:
        slow = [gateway.connect("127.0.0.1") for _ in range(8)]
        for transport in slow:
            transport.receive(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 4000\r\n\r\n".encode())
        for transport in slow:
            gateway.listener.bodies[transport.protocol] -= 2  # seconds
        new = gateway.connect("127.0.0.1")
        new.receive(HEALTH)
        assert await answered(new) == [200]
        assert [transport.closed for transport in slow] == [True] + [False] * 7


async def test_one_address_has_half_of_them_at_most(tmp_path: Path) -> None:
    async with wireless(str(tmp_path), FEW, "proxies: [10.9.0.0/16]") as gateway:
        busy = [gateway.connect("192.168.1.5") for _ in range(4)]
        for transport in busy:
            transport.receive(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 4000\r\n\r\n")
            transport.written.clear()
        more = gateway.connect("192.168.1.5")
        assert statuses(bytes(more.written)) == [503]
        assert closed(gateway, "refused_address") == 1
        other = gateway.connect("192.168.1.6")
        other.receive(HEALTH)
        assert await answered(other) == [200]
        busy[0].close()
        await turns()
        again = gateway.connect("192.168.1.5")
        assert not again.written


async def test_of_one_address_an_idle_one_makes_room_for_its_own(tmp_path: Path) -> None:
    async with wireless(str(tmp_path), FEW) as gateway:
        other = gateway.connect("192.168.1.6")
        silent = [gateway.connect("192.168.1.5") for _ in range(4)]
        assert not gateway.connect("192.168.1.5").written
        assert [transport.closed for transport in silent] == [True, False, False, False]
        assert not other.closed


async def test_proxies_and_this_machine_may_have_all(tmp_path: Path) -> None:
    async with wireless(str(tmp_path), FEW, "proxies: [10.9.0.0/16, 'fd00::1']") as gateway:
        for peer in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.9.3.4", "::ffff:10.9.3.4", "fd00::1"):
            transports = [gateway.connect(peer) for _ in range(8)]
            assert not any(transport.written for transport in transports), peer


def test_what_counts_as_one_address() -> None:
    proxies = (ip_network("10.9.0.0/16"),)
    assert address_of("192.168.1.5", proxies) == "192.168.1.5"
    assert address_of("::ffff:192.168.1.5", proxies) == "192.168.1.5"
    assert address_of("2001:db8::1", proxies) == address_of("2001:db8::ffff:2", proxies) == "2001:db8::/64"
    assert address_of("2001:db8:0:1::1", proxies) != address_of("2001:db8::1", proxies)
    assert address_of("fe80::1%eth0", proxies) == "fe80::/64"
    for counted_nowhere in ("127.0.0.1", "127.8.8.8", "::1", "10.9.1.1", None, "local"):
        assert address_of(counted_nowhere, proxies) is None


@pytest.mark.parametrize(("files", "connections"), [(64, 8), (256, 96), (1024, 480), (20_000, 9968), (10**6, 10_000)])
def test_each_connection_has_a_file_for_its_backend(files: int, connections: int) -> None:
    limits = limits_for(files)
    assert limits.connections == connections
    assert limits.per_address == connections // 2


@contextmanager
def soft_limit(files: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_of_files_is_raised_as_far_as_it_may_be() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with soft_limit(500):
        assert file_limit() == 500
        raise_file_limit()
        assert file_limit() == (2**20 if hard == resource.RLIM_INFINITY else min(hard, 2**20))


@pytest.mark.parametrize(
    "proxies", ["[10.0.0.5/8]", "[nginx]", "10.0.0.1", "[300.0.0.1]", "[10.0.0.0/33]", "[10.0.0.1:80]", "[1]"]
)
def test_a_mistake_in_proxies_is_told(proxies: str) -> None:
    from gateway.config.load import load_text

    with pytest.raises(ConfigError) as told:
        load_text(f"server: {{proxies: {proxies}}}\nbackends: {{a: {{url: 'http://127.0.0.1:9'}}}}", environ={})
    assert "server.proxies" in str(told.value)


async def test_open_connections_are_a_metric() -> None:
    async with listening() as (gateway, _), raw_client(gateway.url), raw_client(gateway.url):
        await gateway.until(lambda: gateway.metric("gateway_connections") >= 2)


async def test_health_and_chats_are_answered_beside_more_silent_connections_than_there_is_room_for() -> None:
    async with listening() as (gateway, _), AsyncExitStack() as stack:
        limit(gateway, connections=20, fresh=0.0)
        for _ in range(60):
            await stack.enter_async_context(raw_client(gateway.url))
        for _ in range(10):
            async with raw_client(gateway.url) as client:
                await client.send(HEALTH)
                assert (await client.answer())[0] == 200
                await client.post(CHAT, chat("chat"))
                assert (await client.answer())[0] == 200
        assert len(gateway.server.listener.connections) <= 21
        later(gateway, 10.1)


async def test_a_process_without_files_left_does_not_spin(tmp_path: Path) -> None:
    sim = SimVllm("a")
    async with sim.serve() as url, serving(tmp_path, url) as gateway, AsyncExitStack() as stack:
        pid = gateway.process.pid
        files = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (files, 1024))
        for _ in range(30):
            await stack.enter_async_context(raw_client(gateway.url))
        before, began = cpu_of(pid), time.monotonic()
        await pace(0.5)  # nothing happens meanwhile: that is what is measured
        assert cpu_of(pid) - before < 0.5 * (time.monotonic() - began)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, 1024))
        await stack.aclose()
        async with raw_client(gateway.url) as client:
            await client.send(HEALTH)
            assert (await client.answer())[0] == 200


def cpu_of(pid: int) -> float:
    """Seconds of CPU that it has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_a_burst_of_connections_is_answered_not_dropped(tmp_path: Path) -> None:
    """Their heads come a moment later: those that were taken in keep their places, the others read why not."""
    async with wireless(str(tmp_path), Limits(connections=8)) as listener:
        burst = [listener.connect("127.0.0.1") for _ in range(12)]
        for transport in burst[:8]:
            assert not transport.is_closing()
            assert not transport.written
        for transport in burst[8:]:
            assert b"503 Service Unavailable" in transport.written


@pytest.mark.parametrize("path", [CHAT, "/admin/explain"])
async def test_a_client_that_resets_while_it_is_refused_leaves_nothing_behind(tmp_path: Path, path: str) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with wireless(str(tmp_path), FEW) as gateway:
        client = gateway.connect("127.0.0.1")
        client.was_reset = True
        client.receive(f"POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n".encode())
        async with asyncio.timeout(5):
            while not client.closed:
                await turns()
        await turns()
        assert not gateway.listener.connections
        assert not gateway.listener.closing
    del client, gateway  # a task whose exception nobody took says so when it is collected
    gc.collect()
    assert failures == []


async def test_a_refused_connection_that_was_reset_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with wireless(str(tmp_path), FEW) as gateway:
        for _ in range(8):
            gateway.connect("127.0.0.1").receive(
                f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 4000\r\n\r\n".encode()
            )
        monkeypatch.setattr(MemoryTransport, "was_reset", True)
        refused = gateway.connect("127.0.0.1")
        assert refused.closed
        await turns()
        assert len(gateway.listener.connections) == 8
        assert not gateway.listener.closing
