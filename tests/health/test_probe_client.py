"""How backends are asked by the control plane."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from unittest.mock import ANY

import pytest

from gateway.config.load import load_text
from gateway.config.snapshot import Backend
from gateway.domain.fleet import Fleet
from gateway.domain.upstream import OwnFailure
from gateway.health.probe_client import ProbeClient, ProbeFailure, ProbeResponse, target_of
from gateway.health.prober import Prober
from gateway.runtime.gateway import open_backend
from gateway.transport.h1 import H1Client
from simulator import SimVllm
from tests.hostile import FINE, body, hostile
from tests.support import PATIENCE
from tests.waiting import pace, turns


def backend_at(url: str) -> Backend:
    return load_text(f"backends: {{a: {{url: '{url}'}}}}", "routes.yaml", {}).snapshot.backends["a"]


async def test_probes_that_are_given_up_leave_room_for_others() -> None:
    random, sim, client = Random(1), SimVllm("a"), ProbeClient()
    async with sim.serve() as url:
        backend = backend_at(url)
        for _ in range(400):  # anywhere in their life
            asked = [asyncio.create_task(client.get(backend, path)) for path in ("/health", "/metrics")]
            await pace(random.random() * 0.004)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        answer = await client.get(backend, "/health")
        await client.close()
    assert not isinstance(answer, ProbeFailure), answer.reason
    assert answer.status == 200


@pytest.mark.parametrize("breaks", [1, 2])
async def test_a_probe_whose_connection_breaks_is_sent_once_more(breaks: int) -> None:
    asked = 0

    async def break_off(writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        if asked <= breaks:
            writer.transport.abort()
        else:
            await body(b"well")(writer)

    client = ProbeClient()
    async with hostile(health=break_off) as url:
        found = await client.get(backend_at(url), "/health")
        await client.close()
    assert asked == 2
    if breaks == 1:
        assert isinstance(found, ProbeResponse)
        assert found.body == b"well"
    else:
        assert found == ProbeFailure("/health: the backend closed the connection before the answer's head")


async def test_a_load_whose_connection_breaks_is_not_sent_again() -> None:
    """It may have been done."""
    asked = 0

    async def break_off(writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.transport.abort()

    client = ProbeClient()
    async with hostile(generate=break_off) as url:
        found = await client.post(backend_at(url), "/api/generate", {"model": "m"}, 5.0)
        await client.close()
    assert isinstance(found, ProbeFailure)
    assert asked == 1


async def test_of_a_response_that_is_too_large_the_status_is_told() -> None:
    client = ProbeClient()
    async with hostile(health=body(b"x" * 2000)) as url:
        assert await client.get(backend_at(url), "/health", 2000) == ProbeResponse(200, ANY, b"x" * 2000)
        assert await client.get(backend_at(url), "/health", 1999) == ProbeResponse(200, ANY, b"")
        await client.close()


async def test_where_nobody_listens_a_probe_is_refused() -> None:
    client = ProbeClient()
    async with hostile() as url:
        pass
    found = await client.get(backend_at(url), "/health")
    await client.close()
    assert isinstance(found, ProbeFailure)
    assert (found.refused, found.own) == (True, False)


@pytest.mark.parametrize("error", [OwnFailure("files", unsent=True), OSError(errno.EMFILE, "too many")], ids=repr)
async def test_a_probe_that_this_process_lacked_the_means_for_is_told_as_such(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(H1Client, "send", send)
    short: list[str] = []
    client = ProbeClient(short.append)
    found = await client.get(backend_at("http://127.0.0.1:9"), "/health")
    await client.close()
    assert isinstance(found, ProbeFailure)
    assert (found.own, found.refused, short) == (True, False, ["files"])


class Server:
    """Answers everything well. `made`, `open`: connections."""

    def __init__(self) -> None:
        self.made = self.open = 0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made, self.open = self.made + 1, self.open + 1
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                await body(FINE["/version"])(writer)
        writer.close()
        self.open -= 1

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.open != count:
                await turns()


async def test_a_connection_is_used_for_one_probe_after_the_other() -> None:
    client, server = ProbeClient(), Server()
    async with server.serve() as url:
        for _ in range(5):
            assert isinstance(await client.get(backend_at(url), "/version"), ProbeResponse)
        assert (server.made, server.open) == (1, 1)
        await client.close()
        await server.until(0)


async def test_connections_to_servers_that_were_edited_out_are_closed() -> None:
    kept, gone = Server(), Server()
    async with kept.serve() as first, gone.serve() as second:
        fleet = Fleet(open_backend)
        prober = Prober(fleet)
        line = "{name}: {{url: '{url}', health: {{every: 1h}}}}"
        both = [line.format(name="kept", url=first), line.format(name="gone", url=second)]
        for lines in (both, both[:1]):
            snapshot = load_text(f"backends: {{{', '.join(lines)}}}", "routes.yaml", {}).snapshot
            fleet.apply(snapshot)
            for done in prober.follow_fleet(snapshot):
                await done.wait()
            await kept.until(1)
            async with asyncio.timeout(2):  # at once: unused ones are closed after four seconds
                await gone.until(len(lines) - 1)
        await prober.close()
        await kept.until(0)


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/health", "/below/health"), ("models", "/below/v1/models"), ("/a b?c=é", "/below/a%20b?c=%C3%A9")],
)
def test_a_path_is_below_the_servers_root_or_its_api(path: str, asked: str) -> None:
    assert target_of(backend_at("http://x:1/below"), path) == asked
