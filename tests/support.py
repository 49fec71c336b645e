"""What behaviour tests share: a gateway on a real socket in the test's own loop, in front of simulated backends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from gateway.config.load import load, load_text
from gateway.config.snapshot import Server as ServerSettings
from gateway.config.snapshot import Snapshot
from gateway.domain.health_state import State
from gateway.http.app import App
from gateway.http.server import HttpServer, listen, make_server
from gateway.proxy.handler import RequestHandler
from gateway.proxy.services import DecidesAhead
from gateway.runtime.gateway import Gateway
from simulator.base import Record
from tests import waiting
from tests.waiting import PATIENCE as PATIENCE

DATA = ServerSettings().data  # what routes.yaml says when it says nothing

# Which requests the gateway of a test decides ahead, where the test does not say it (conftest.py). Already the first
# with its head: most tests send each request once.
DECIDES_AHEAD: DecidesAhead = "first"


@dataclass
class RunningGateway:
    """`url` is the root (http://127.0.0.1:PORT); `client` an httpx client on it; `gateway` the living object."""

    url: str
    client: httpx.AsyncClient
    app: App
    server: HttpServer

    @property
    def gateway(self) -> Gateway:
        return self.app.gateway

    def state(self, backend: str) -> State:
        return self.gateway.fleet[backend].health.state

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that has no event of its own; fails when it never comes."""
        await waiting.until(condition)

    async def until_ready(self, *backends: str) -> None:
        await self.until(lambda: all(self.state(name) is State.READY for name in backends))

    def metric(self, name: str, **labels: str) -> float:
        """The sample's value, 0 when it does not exist."""
        return self.gateway.metrics.registry.get_sample_value(name, labels) or 0.0

    def requests(self) -> list[RequestHandler]:
        """Those under way."""
        return [request for request in self.gateway.active if isinstance(request, RequestHandler)]

    def idle(self) -> bool:
        """Nothing under way: every slot given back, every request settled."""
        return not self.gateway.active and all(s.inflight == 0 for s in self.gateway.fleet.states.values())


class PromptServer(HttpServer):
    """Stops when it is told to, and not at its next tick, nor a tenth of a second after its last connection: thousands
    of tests would wait for that."""

    _ticking: asyncio.Task[None] | None = None

    async def main_loop(self) -> None:
        self._ticking = asyncio.create_task(super().main_loop())
        await asyncio.wait([self._ticking])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await waiting.turns(3)  # closed connections are gone then
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        self.listener.stop(asyncio.get_running_loop(), self._app.gateway.snapshot.server.shutdown)
        for server in self.servers:
            server.close()
        for sock in sockets or ():
            sock.close()
        await self.lifespan.shutdown()

    def stop(self) -> None:
        self.should_exit = True
        if self._ticking is not None:
            self._ticking.cancel()


def without_canaries(snapshot: Snapshot) -> Snapshot:
    """Tests count the requests that reach a backend: the gateway's own come only where a test asks for them."""
    quiet = {n: replace(b, health=replace(b.health, canary=None)) for n, b in snapshot.backends.items()}
    return replace(snapshot, backends=quiet)


def from_clients(requests: Sequence[Record]) -> list[Record]:
    """Of what reached a simulated backend: without the gateway's own harmless ones."""
    return [one for one in requests if not one.headers.get("x-request-id", "").startswith("probe-")]


def read(file: Path) -> str:
    return file.read_text()


def write(file: Path, text: str) -> None:
    """Write a small file in place."""
    file.write_text(text)


async def _without_canaries(snapshot: Snapshot) -> Snapshot:
    return without_canaries(snapshot)


@asynccontextmanager
async def running_gateway(
    routes: str,
    environ: dict[str, str] | None = None,
    file: Path | None = None,
    decides_ahead: DecidesAhead | None = None,
) -> AsyncIterator[RunningGateway]:
    """A gateway that serves the routes.yaml text `routes` on a free port; `canary: none` unless it says something of
    canaries. With `file` it is written there, and followed as it is edited. `decides_ahead`: which requests are decided
    ahead; None = as `--decide` says (conftest.py). At the end it must be idle."""
    if file is not None:
        write(file, routes)
    loaded = load_text(routes, "routes.yaml", environ or {}) if file is None else load(file)
    quiet = "canary:" not in routes
    snapshot = without_canaries(loaded.snapshot) if quiet else loaded.snapshot
    # A file whose writing was cancelled may still be written by its thread while the folder is removed.
    folder = TemporaryDirectory(prefix="gateway-test-", ignore_cleanup_errors=True)
    if snapshot.server.data == DATA:
        snapshot = replace(snapshot, server=replace(snapshot.server, data=folder.name))
    app = App(snapshot, decides_ahead or DECIDES_AHEAD)
    if file is not None:
        app.gateway.follow(file, loaded, _without_canaries if quiet else None)
    sock = listen("127.0.0.1", 0)
    server = PromptServer(make_server(app).config, app)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False, verify=False) as client:
            running = RunningGateway(url, client, app, server)
            await running.until(lambda: server.started)
            yield running
            await running.until(running.idle)
    finally:
        server.stop()
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # a test's own sockets may still be open
        await task
        folder.cleanup()
