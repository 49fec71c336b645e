"""`gateway init`: discovers running servers, probes what they can do, and writes a routes.yaml for them."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from gateway.apps.importing.discovery import PORTS, FoundServer, scan, targets
from gateway.apps.importing.draft import Draft
from gateway.apps.importing.output import STDOUT, deliver, output_options, refuse_to_overwrite, render_and_verify
from gateway.apps.importing.server_draft import apply_findings, draft_of, recipe_files, recipe_nodes, recipe_text
from gateway.apps.importing.sparkrun import note_sparkrun, recipe_of, sparkrun_containers
from gateway.apps.probing.run import probe_directly
from gateway.cli.options import counted, examples, fail, is_host, json_option
from gateway.config.load import LoadedFile, load_text
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Backend
from gateway.config.suggest import did_you_mean
from gateway.printable import visible

_SKIPPED = {
    "gateway": "a gateway, left out",
    "locked": "wants a key: see the comment in the file",
    "unknown": "answers, but is no model server",
}
_NAME_SHOWN = 100  # characters of a model's name
_SHOWN = 3  # models of a server that are listed


@examples(
    "gateway init                                # this machine",
    "gateway init spark1 spark2 --yes            # no questions",
    "gateway init 192.168.1.11:8001 --no-probe -o fleet.yaml",
    "gateway init spark1 --ports 8000-8009,11434 --json --force",
    "gateway init --recipe qwen36-35b 192.168.1.11",
)
@click.command()
@click.argument("hosts", metavar="[HOST]...", nargs=-1)
@click.option("--ports", help="Ports to scan, as 8000-8003,11434 [default: the usual ones].")
@click.option("--probe/--no-probe", default=True, help="Send a few tiny requests to what was found.")
@click.option("--recipe", metavar="NAME", help="Search nothing; write this recipe, with each HOST as a node's address.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation; the default without a terminal.")
@output_options
@json_option
def command(
    hosts: tuple[str, ...],
    ports: str | None,
    probe: bool,
    recipe: str | None,
    yes: bool,
    output: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Discover vLLM, llama-server, Ollama and other servers on each HOST (default: localhost) and write a routes.yaml.

    HOST may name its port (spark1:8001). Models and windows are read from the servers; tiny real requests show whether
    tool calls come as calls and reasoning in its own field. Ollama models that are not loaded are not probed. Exit code
    0: written; 1: nothing was found; 2: wrong usage.
    """
    refuse_to_overwrite(output, force=force)
    if recipe is not None:
        _write_recipe(recipe, hosts, output, force=force, as_json=as_json)
        return
    ask = not yes and not as_json and sys.stdin.isatty()
    if ask and not hosts:
        hosts = tuple(click.prompt("Hosts to scan", default="localhost", err=True).split())
    found, exporters = _scan(hosts or ("localhost",), ports, quiet=as_json)
    draft = draft_of(found, exporters)
    if containers := sparkrun_containers():
        note_sparkrun(draft, containers, recipe_of(containers[0]))
    if not draft.backends:
        _nothing(found, as_json)
    text, loaded = render_and_verify(draft, output)
    if probe and (not ask or click.confirm("Send them a few tiny requests?", default=True, err=True)):
        text, loaded = _probe(draft, loaded, found, output, quiet=as_json)
    if ask and output != STDOUT and not click.confirm(f"Write {output}?", default=True, err=True):
        fail("nothing is written")
    more = {"servers": _servers(found), **draft.data(), "warnings": [str(warning) for warning in loaded.warnings]}
    deliver(text, output, force=force, document=more if as_json else None)
    if not as_json:
        _print(draft, loaded, output)


def _write_recipe(name: str, hosts: tuple[str, ...], output: Path, *, force: bool, as_json: bool) -> None:
    """Write a recipe as routes.yaml, once the gateway has loaded it."""
    known = recipe_files()
    if name not in known:
        hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
        raise click.UsageError(f"no recipe '{name}': {hint}")
    for host in hosts:
        if not is_host(host):
            raise click.UsageError(f"{visible(host)}: write a host name or an address, without a port")
    if len(hosts) > (nodes := recipe_nodes(name)):
        raise click.UsageError(f"the recipe '{name}' has {counted(nodes, 'node')}, not {len(hosts)}")
    text = recipe_text(name, hosts)
    try:
        loaded = load_text(text, "routes.yaml" if output == STDOUT else str(output))
    except ConfigError as error:
        fail(f"{error}\nthe gateway would not load this file; nothing is written")
    more = {"recipe": name, "backends": list(loaded.snapshot.backends)}
    deliver(text, output, force=force, document=more if as_json else None)
    if output != STDOUT and not as_json:
        click.echo(
            f"{output}: {', '.join(loaded.snapshot.backends)}. Next: gateway fleet check{_named(output)}", err=True
        )


# -- discovery --------------------------------------------------------------------------------------------------------


def _scan(hosts: tuple[str, ...], ports: str | None, *, quiet: bool) -> tuple[list[FoundServer], dict[str, str]]:
    try:
        urls = targets(hosts, _ports(ports) if ports is not None else PORTS)
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    if not quiet:
        click.echo(f"Scanning {len(urls)} port{'s' if len(urls) > 1 else ''} of {', '.join(hosts)} ...", err=True)
    return asyncio.run(scan(urls, lambda server: None if quiet else click.echo(f"  {_server_line(server)}", err=True)))


def _ports(text: str) -> list[int]:
    """`8000-8003,11434` -> the ports. Raises UsageError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise click.UsageError(f"--ports {text}: write numbers and ranges, as 8000-8003,11434")
        found += range(int(first), int(last if dash else first) + 1)
    if not found or len(found) > 1024 or not all(0 < port < 65536 for port in found):
        raise click.UsageError(f"--ports {text}: between 1 and 1024 ports, each up to 65535")
    return list(dict.fromkeys(found))


def _server_line(server: FoundServer) -> str:
    if server.kind in _SKIPPED:
        return f"{server.url}  {_SKIPPED[server.kind]}"
    names = [(visible((m.label or m.name)[:_NAME_SHOWN]), m.context) for m in server.models[:_SHOWN]]
    models = [f"{name} ({context:,})" if context else name for name, context in names]
    more = f" and {len(server.models) - _SHOWN} more" if len(server.models) > _SHOWN else ""
    kind = click.style(server.server or server.kind, fg="green")
    return f"{server.url}  {kind}  {', '.join(models) or 'no model'}{more}"


def _nothing(found: list[FoundServer], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"ok": False, "written": None, "servers": _servers(found)}, indent=2))
        sys.exit(1)
    fail(
        "No model server was found. Is it running, and on one of these ports? Name others: gateway init HOST:PORT, or "
        "--ports 8000-8100. To try the gateway without one: gateway demo"
    )


def _probe(
    draft: Draft, loaded: LoadedFile, found: list[FoundServer], output: Path, *, quiet: bool
) -> tuple[str, LoadedFile]:
    """Probe the backends that are ready. Returns the file's text and the loaded file with the findings."""

    def on_seen(backend: str, check: str, result: str) -> None:
        if not quiet and result != "untested":
            click.echo(f"  {backend}: {check} {result}", err=True)

    snapshot = loaded.snapshot
    chosen = [backend for backend in snapshot.backends.values() if not backend.cloud and _is_ready(backend, found)]
    if chosen:
        apply_findings(draft, asyncio.run(probe_directly(snapshot, chosen, on_seen, now=True)))
    return render_and_verify(draft, output)


def _is_ready(backend: Backend, found: list[FoundServer]) -> bool:
    """Is it a chat model that is loaded?"""
    models = (model for server in found if server.url == backend.url for model in server.models)
    return any((model.name or None) == backend.model and model.chat and model.ready for model in models)


# -- output -----------------------------------------------------------------------------------------------------------


def _servers(found: list[FoundServer]) -> list[dict[str, Any]]:
    return [asdict(server) for server in found]


def _print(draft: Draft, loaded: LoadedFile, output: Path) -> None:
    target = "stdout" if output == STDOUT else str(output)
    click.echo(
        f"\n{target}: {counted(len(draft.backends), 'backend')}, aliases {', '.join(draft.aliases) or 'none'}", err=True
    )
    for warning in loaded.warnings:
        click.echo(f"{click.style('warning', fg='yellow')}  {warning}", err=True)
    if output != STDOUT:
        click.echo(f"Next: gateway serve{_named(output)}", err=True)


def _named(output: Path) -> str:
    """The options by which a command finds this file."""
    return "" if output == Path("routes.yaml") else f" --config {output}"
