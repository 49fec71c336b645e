"""`gateway demo`: a simulated fleet of routes.yaml and the gateway in front of it, in one process."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from gateway.apps.control.memory.model_catalog import models_of, shipped_models
from gateway.apps.control.memory.plan import plan
from gateway.apps.demo.sim import speedup_option
from gateway.cli.options import HERE, config_option, examples, is_there, load_or_exit, port_option
from gateway.cli.serve import announce, set_up_logs
from gateway.config.load import LoadedFile
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Alerts, Alias, Mode, Snapshot
from gateway.domain.engine_traits import traits_of
from gateway.http.app import App
from gateway.http.server import listen, make_server
from gateway.runtime.process import tune

if TYPE_CHECKING:
    import socket

    from simulator.fleet import SimFleet

NONE: Mapping[str, str] = MappingProxyType({})


@examples(
    "gateway demo",
    "gateway demo --port 4100 --speedup 5",
    "gateway demo --config fleet.yaml",
)
@click.command()
@config_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@port_option("Port to listen on; 0 = a free one.", 4000)
@speedup_option
@click.pass_context
def command(context: click.Context, config: Path, host: str, port: int, speedup: float) -> None:
    """Run a simulated fleet and the gateway in front of it.

    Without a routes.yaml here, the one that comes with the gateway is used. Nothing outside of this machine is
    contacted: clouds, alerts and traces of the file are left out. The file is watched as by `gateway serve`. The
    simulated backends are controlled over HTTP (docs/simulator.md).
    """
    if context.get_parameter_source("config") is ParameterSource.DEFAULT and not is_there(HERE):
        config = shipped_routes()
    loaded = load_or_exit(config)
    sock = _listen(host, port)
    with TemporaryDirectory(prefix="gateway-demo-") as data:
        _run(config, loaded, sock, data, speedup)


def shipped_routes() -> Path:
    """The routes.yaml that comes with the gateway: at the root of a checkout, or the copy in a wheel."""
    packed = Path(__file__).parents[2] / "routes.yaml"
    return packed if packed.exists() else packed.parents[1] / "routes.yaml"


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as error:
        message = f"Cannot listen on {host}:{port}: {error.strerror or error}. Choose another one: --port 4100"
        click.echo(message, err=True)
        sys.exit(1)


def _run(config: Path, loaded: LoadedFile, sock: socket.socket, data: str, speedup: float) -> None:
    """Serve both on one loop until a signal. The fleet is started before and stopped after the gateway in runs of the
    loop of their own, so that a Ctrl-C does not cancel the clean-up."""
    import uvloop

    from simulator.fleet import start_fleet

    host, port = sock.getsockname()[:2]
    log = set_up_logs(loaded.snapshot.server.log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        holdings = memory_held(loaded.snapshot)
        start = start_fleet(loaded.snapshot, speedup=speedup, control_port=_control_port(port), holdings=holdings)
        fleet = runner.run(start)

        async def adapt(edited: Snapshot) -> Snapshot:
            await fleet.follow(edited, await asyncio.to_thread(memory_held, edited))
            return with_start_commands(simulated(edited, fleet, fleet.exporters), fleet.control_url)

        try:
            snapshot = simulated(loaded.snapshot, fleet, fleet.exporters)
            snapshot = with_start_commands(snapshot, fleet.control_url)
            server = replace(snapshot.server, host=host, port=port, data=data)
            snapshot = replace(snapshot, server=server)
            announce(snapshot, warnings=[])  # `gateway check` prints the warnings
            _greet(snapshot, fleet)
            tune()
            app = App(snapshot)
            app.gateway.write_log(log)
            app.gateway.follow(config, loaded, adapt)
            runner.run(make_server(app).serve(sockets=[sock]))
        except KeyboardInterrupt:
            pass  # Ctrl-C, raised again after the gateway has stopped
        finally:
            runner.run(fleet.stop())


def _control_port(port: int) -> int:
    """The port after the gateway's, which is easy to remember; 0 (a free one) where that is in use."""
    try:
        listen("127.0.0.1", port + 1).close()
    except (OSError, OverflowError):
        return 0
    return port + 1


def simulated(snapshot: Snapshot, urls: dict[str, str], exporters: Mapping[str, str] = NONE) -> Snapshot:
    """The same fleet at the simulated `urls` (backend → URL), with the exporters of its nodes at `exporters` (node →
    URL). Backends without a URL (clouds) are left out, and so are aliases that have no other. Alerts, traces,
    `server.shared` and the nodes' `ssh` are removed, so that the demo does not reach the real receivers, gateways and
    machines."""
    backends = {name: replace(b, url=urls[name]) for name, b in snapshot.backends.items() if name in urls}
    cut = (_without(alias, urls) for alias in snapshot.aliases.values())
    return replace(
        snapshot,
        backends=backends,
        nodes={name: replace(node, exporter=exporters.get(name), ssh=None) for name, node in snapshot.nodes.items()},
        aliases={alias.name: alias for alias in cut if alias.steps},
        server=replace(snapshot.server, shared=None),
        alerts=Alerts(),
        traces=None,
    )


def with_start_commands(snapshot: Snapshot, control_url: str) -> Snapshot:
    """The simulated fleet, whose backends are started and stopped at the simulator's control port."""
    backends = {
        name: replace(
            backend, start=sim_command("start", name, control_url), stop=sim_command("stop", name, control_url)
        )
        for name, backend in snapshot.backends.items()
    }
    return replace(snapshot, backends=backends)


def sim_command(order: str, backend: str, control_url: str) -> str:
    """`gateway sim start|stop BACKEND --control URL`, with the interpreter that runs the demo."""
    return shlex.join((sys.executable, "-m", "gateway", "sim", order, "--control", control_url, "--", backend))


def memory_held(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """Bytes that each backend holds on each of its nodes once it runs, by the memory plan; only where it knows."""
    try:
        catalog = models_of(snapshot)
    except ConfigError:  # `gateway check` reports it
        catalog = shipped_models()
    everything = Mode("", tuple(name for name, backend in snapshot.backends.items() if not backend.cloud))
    nodes = plan(replace(snapshot, modes={"": everything}), "", catalog).nodes
    held: dict[str, dict[str, int]] = {}
    for node in nodes.values():
        for name, demand in node.demands.items():
            if demand.held is not None:
                held.setdefault(name, {})[node.name] = round(demand.held * 2**30)
    return held


def _without(alias: Alias, kept: dict[str, str]) -> Alias:
    """The alias with only the backends in `kept`."""
    steps = (tuple(name for name in step if name in kept) for step in alias.steps)
    return replace(
        alias,
        steps=tuple(step for step in steps if step),
        ask_all=tuple(name for name in alias.ask_all if name in kept),
    )


def _greet(snapshot: Snapshot, fleet: SimFleet) -> None:
    """Print a request to try, and one that breaks a backend."""
    host = snapshot.server.host
    shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{snapshot.server.port}"
    backends, aliases = snapshot.backends, snapshot.aliases.values()
    chat = [a for a in aliases if a.steps and any(traits_of(backends[n]).chats for n in a.steps[0])]
    click.echo(f"simulated fleet, steered at {fleet.control_url}/_sim", err=True)
    if not chat:
        return
    alias = chat[0]
    body = f'{{"model": "{alias.name}", "messages": [{{"role": "user", "content": "What is 12*17?"}}]}}'
    key = " -H 'authorization: Bearer KEY'" if snapshot.clients else ""
    click.echo(
        f"\nAsk:        curl {url}/v1/chat/completions{key} -H 'content-type: application/json' -d '{body}'\n"
        f"Break it:   curl -X POST {fleet.control_url}/_sim/{alias.steps[0][0]}/kill      "
        f"(then ask again with curl -i; .../revive brings it back)\n"
        "Ctrl-C ends it.",
        err=True,
    )
