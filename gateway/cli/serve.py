"""`gateway serve`: the gateway in front of the fleet of routes.yaml."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.options import config_option, examples, load_or_exit, load_or_last_good, port_option

if TYPE_CHECKING:
    import socket

    from gateway.config.load import LoadedFile
    from gateway.config.problems import ConfigError
    from gateway.config.snapshot import Alias, LogForm, Snapshot
    from gateway.domain.backend import BackendState
    from gateway.http.app import App
    from gateway.observe.log import LogWriter
    from gateway.runtime.gateway import Gateway

log = logging.getLogger("gateway")

PATIENCE = 10.0  # seconds to wait for the first probes; then the report is made without the missing ones
LOOK = 0.1  # seconds between two checks whether all probes are done
DECIDE_ALWAYS = "GATEWAY_DECIDE_ALWAYS"  # 1 = each request is decided anew, whatever was decided for one like it


@examples(
    "gateway serve",
    "gateway serve --config fleet.yaml --port 4100",
    "gateway serve --takeover   # then: kill -TERM the old one",
)
@click.command()
@config_option
@click.option("--host", help="Address to listen on; default from `server.listen`.")
@port_option("Port to listen on; default from `server.listen`.")
@click.option("--strict", is_flag=True, help="End where the file has a mistake; else its last good version is served.")
@click.option("--takeover", is_flag=True, help="Listen beside a running gateway, to replace it.")
def command(config: Path, host: str | None, port: int | None, strict: bool, takeover: bool) -> None:
    """Run the gateway.

    It prints where it listens, what it serves, the problems of the file, and later those of the backends. The file is
    watched: a valid edit is in force within a second; SIGHUP reloads it at once. To replace a running gateway without
    dropping a stream, start the new one with --takeover, then send the old one SIGTERM. Exit code 0: stopped as
    requested; 1: the file has a mistake, or the address is in use; 2: wrong usage.
    """
    from gateway.runtime.process import postpone_collection

    postpone_collection()
    loaded, broken = (load_or_exit(config), None) if strict else load_or_last_good(config)
    if broken is not None:
        click.echo(f"{broken}\n{config} HAS A MISTAKE: its last good version is served until it is mended", err=True)
    run(config, loaded, host, port, takeover=takeover, broken=broken)


def set_up_logs(form: LogForm) -> LogWriter:
    """Log to standard error, in this form. Returns the writer."""
    from gateway.observe.log import open_log

    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would write a line for each of its requests
    return open_log(form)


def run(
    config: Path,
    loaded: LoadedFile,
    host: str | None = None,
    port: int | None = None,
    *,
    takeover: bool = False,
    broken: ConfigError | None = None,
) -> None:
    """Listen and serve until a signal, following edits of `config`. `broken`: its mistakes, where `loaded` is its last
    good version. Exits 1 when the address is in use."""
    from gateway.http.server import listen

    server = loaded.snapshot.server
    port = server.port if port is None else port
    warnings = warnings_of(loaded, host, port)
    host = server.host if host is None else host
    socks = []
    for at, number in ((host, port), *server.also_listen):
        try:
            socks.append(listen(at, number, takeover=takeover))
        except OSError as error:
            who = "another gateway" if not socks else "another program (an Ollama?)"
            click.echo(f"Cannot listen on {at}:{number}: {error.strerror}. Is {who} running there?", err=True)
            sys.exit(1)
    snapshot = replace(loaded.snapshot, server=replace(server, host=host, port=socks[0].getsockname()[1]))
    announce(snapshot, warnings)
    serve(config, loaded, snapshot, socks, broken)


def warnings_of(loaded: LoadedFile, host: str | None, port: int) -> list[str]:
    """The warnings of the file; where `host` overrides `server.listen`, the warning is about `host` instead."""
    from gateway.config.resolve import SHUT, exposure

    if host is None:
        return [str(warning) for warning in loaded.warnings]
    found = [str(warning) for warning in loaded.warnings if warning.path != "server.listen"]
    message = exposure(host, port, clients=bool(loaded.snapshot.clients))
    return found if message is None else [*found, f"{message} - {SHUT}"]


def serve(
    config: Path, loaded: LoadedFile, snapshot: Snapshot, socks: list[socket.socket], broken: ConfigError | None = None
) -> None:
    import uvloop

    from gateway.http.app import App
    from gateway.runtime.process import tune
    from gateway.transport.event_loop import Loop

    always = os.environ.get(DECIDE_ALWAYS, "") not in ("", "0")
    app = App(snapshot, decides_ahead="never" if always else "repeated")
    app.gateway.write_log(set_up_logs(snapshot.server.log))
    app.gateway.follow(config, loaded, broken=broken)
    tune()
    with suppress(KeyboardInterrupt):  # Ctrl-C, raised again after the gateway has stopped
        uvloop.run(_serve(app, socks), loop_factory=Loop)


async def _serve(app: App, socks: list[socket.socket]) -> None:
    from gateway.http.server import make_server

    try:
        server = make_server(app)
    except OSError as error:  # ssl.SSLError is one
        click.echo(f"The files of server.tls cannot be used: {error.strerror or error}", err=True)
        sys.exit(1)
    report = app.gateway.metrics.failures.once("first look", log_when_seen(app.gateway))
    try:
        await server.serve(sockets=socks)
    finally:
        report.cancel()


def announce(snapshot: Snapshot, warnings: list[str]) -> None:
    """Print the addresses it listens at, the aliases it serves, and the warnings."""
    address = snapshot.server.host
    shown = "localhost" if address in ("0.0.0.0", "::") else address
    scheme = "http" if snapshot.server.tls is None else "https"
    url = f"{scheme}://{shown}:{snapshot.server.port}"
    listening = ", ".join([address, *(f"{host}:{port}" for host, port in snapshot.server.also_listen)])
    click.echo(f"gateway on {url}/v1  (listening on {listening}), its page on {url}/", err=True)
    for alias in snapshot.aliases.values():
        steps = " -> ".join((" + " if alias.ask_all else " | ").join(step) for step in alias.steps)
        cloud = "   LEAVES THE LAN" if snapshot.leaves_lan(alias) else ""
        click.echo(f"  {alias.name:24} {steps}{cloud}", err=True)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


# -- the log lines when all backends were probed -----------------------------------------------------------------------


async def log_when_seen(gateway: Gateway) -> None:
    """Wait for the first probe of each backend, then log problems as warnings and the rest in one line."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not _all_seen(gateway):
        await asyncio.sleep(LOOK)
    summary, wrong = startup_report(gateway.snapshot, gateway.fleet.states, time.monotonic())
    log.info("%s", summary)
    for line in wrong:
        log.warning("%s", line)


def _all_seen(gateway: Gateway) -> bool:
    from gateway.domain.health_state import State

    states = gateway.fleet.states
    unseen = (s for s in states.values() if s.health.state is State.UNKNOWN and s.backend.health.every is not None)
    return bool(states) and next(unseen, None) is None


def startup_report(snapshot: Snapshot, states: Mapping[str, BackendState], now: float) -> tuple[str, list[str]]:
    """(the reachable backends in one line; the problems, a line each)."""
    from gateway.domain.health_state import WELL, State

    ready = [name for name, state in states.items() if state.health.state in WELL]
    parked = [name for name, state in states.items() if state.health.state is State.PARKED]
    unasked = [name for name, state in states.items() if state.health.state is State.UNKNOWN]
    groups = (("ready", ready), ("parked", parked), ("not asked", unasked))
    summary = "; ".join(f"{word}: {', '.join(names)}" for word, names in groups if names)
    wrong = [
        f"{name} is {state.health.state}: {state.health.reason}"
        for name, state in states.items()
        if name not in (*ready, *parked, *unasked)
    ]
    return f"first look: {summary or 'nobody is there'}", [*wrong, *_unserved_aliases(snapshot, states, now)]


def _unserved_aliases(snapshot: Snapshot, states: Mapping[str, BackendState], now: float) -> list[str]:
    """The aliases that no backend can serve now. A backend's own name is left out: the backend has a line of its own;
    so is an alias that the mode in force does not serve."""
    from gateway.routing.serving import can_serve

    known = [a for a in snapshot.aliases.values() if a.steps and all(n in states for step in a.steps for n in step)]
    lost = [
        alias.name
        for alias in known
        if not alias.implicit and not _is_outside(alias, states) and not can_serve(alias, states, now)
    ]
    return [f"nobody can serve {', '.join(lost)} now"] if lost else []


def _is_outside(alias: Alias, states: Mapping[str, BackendState]) -> bool:
    """Does the mode in force park every local backend of the alias?"""
    local = [states[name] for step in alias.steps for name in step if not states[name].backend.cloud]
    return bool(local) and all(state.health.outside for state in local)
