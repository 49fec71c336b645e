"""`gateway explain ALIAS`: where a request would go now, and why not elsewhere."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.apps.console.status_fields import ago
from gateway.cli.options import (
    complete_alias,
    complete_client,
    config_option,
    examples,
    in_mode_or_exit,
    json_option,
    key_option,
    mode_option,
    server_shown,
    snapshot_served,
)
from gateway.cli.running import GatewayClient, GatewayRefusal, GatewayUnreachable, address, is_running
from gateway.config.sources import read_file
from gateway.printable import visible_all

if TYPE_CHECKING:
    from gateway.config.snapshot import Snapshot

    Explanation = dict[str, Any]

_COLOURS = {"use": "green", "adapt": "yellow", "skip": "red"}
REQUEST_MOST = 256 * 1024 * 1024  # bytes of a request body
_NAMES = {"required": "on demand", "json_schema": "JSON schema"}


@examples(
    "gateway explain reviewer",
    "gateway explain reviewer --tools --tokens 120000",
    "gateway explain spark-qwen36 --request body.json --client webui --json",
)
@click.command()
@click.argument("alias", shell_complete=complete_alias)
@config_option
@click.option("--tools", is_flag=True, help="A request with tools.")
@click.option("--tokens", type=click.IntRange(min=0), help="A prompt of so many tokens.")
@click.option("--request", "file", type=click.Path(dir_okay=False, path_type=Path), help="The request body, as JSON.")
@click.option("--client", shell_complete=complete_client, help="By the rules of this client of routes.yaml.")
@key_option("Key of a client with `admin: true`")
@mode_option
@json_option
def command(
    alias: str,
    config: Path,
    tools: bool,
    tokens: int | None,
    file: Path | None,
    client: str | None,
    key: str | None,
    mode: str | None,
    as_json: bool,
) -> None:
    """Print the plan for a request to ALIAS, with the reason for each backend.

    Asks the running gateway, which knows the backends' health and what was learned; where none runs, the plan is made
    from the file alone (with --mode always). Exit code 0: some backend may serve it; 1: none; 2: wrong usage.
    """
    if file is not None and (tools or tokens is not None):
        raise click.UsageError("--request says it all: leave out --tools and --tokens")
    asked: dict[str, Any] = {"alias": alias, "client": client}
    asked |= {"request": _read_request(file)} if file is not None else {"tools": tools, "tokens": tokens}
    snapshot = in_mode_or_exit(snapshot_served(config, as_json=as_json), mode)
    if mode is None:
        explanation, source = _ask(snapshot, asked, key)
    else:
        explanation = _from_file(snapshot, asked)
        source = f"{snapshot.source} alone: every backend in mode {mode} is taken as ready"
    try:
        served = bool(explanation["served"])
        if as_json:
            click.echo(json.dumps({"source": source, **explanation}, indent=2))
        else:
            _print(visible_all(explanation), source)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise click.UsageError(f"{source} does not answer as a gateway") from None
    sys.exit(0 if served else 1)


def _read_request(file: Path) -> Any:
    try:
        return json.loads(read_file(file, REQUEST_MOST))
    except OSError as error:
        raise click.UsageError(f"cannot read '{file}': {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"'{file}' is not JSON: {error}") from None


def _ask(snapshot: Snapshot, asked: dict[str, Any], key: str | None) -> tuple[Explanation, str]:
    """(the explanation, where it comes from). Raises UsageError."""
    url = address(snapshot.server)
    try:
        running = asyncio.run(is_running(url))
    except GatewayUnreachable:
        running = False  # something else listens there
    if running:
        try:
            return GatewayClient(url, key).post("/admin/explain", asked), f"the running gateway at {url}"
        except (GatewayUnreachable, GatewayRefusal) as error:
            raise click.UsageError(str(error)) from None
    where = f" in mode {snapshot.mode}" if snapshot.mode is not None else ""
    source = f"{snapshot.source} alone (no gateway runs at {url}): every backend{where} is taken as ready"
    return _from_file(snapshot, asked), source


def _from_file(snapshot: Snapshot, asked: dict[str, Any]) -> Explanation:
    from gateway.apps.explaining.explain import explain_asked
    from gateway.errors import GatewayError
    from gateway.routing.serving import all_ready

    try:
        from gateway.apps.dialects.app import read_request
    except ModuleNotFoundError:  # the app is not installed: requests of OpenAI's chat API are read
        from gateway.apps.explaining.explain import read_request
    try:
        return explain_asked(snapshot, all_ready(snapshot), asked, 0.0, read_request)
    except GatewayError as error:
        raise click.UsageError(error.message) from None


# -- printing ---------------------------------------------------------------------------------------------------------


def _print(explanation: Explanation, source: str) -> None:
    click.echo(f"{explanation['alias']}, from {source}")
    click.echo(f"request: {_request(explanation['request'])}")
    if explanation["resort"]:
        click.echo(f"no step can call tools: on_unsupported {explanation['resort']}")
    for step in explanation["steps"]:
        click.echo("")
        for backend in step["backends"]:
            _print_backend(step["step"], backend, explanation["order"])
    if start := explanation.get("start"):  # an older gateway says nothing of starts
        click.echo(f"\n{_start(start)}")
        for note in start["notes"]:
            click.echo(f"  {note}")
    how = "asked at the same time" if explanation.get("ask_all") else "tried in this order"
    click.echo(f"\n{how}: {', '.join(explanation['order']) or 'none'}")
    if explanation["error"] is not None:
        error = explanation["error"]
        click.echo(f"the client gets {error['status']} {error['code']}: {error['message']}")


def _start(start: dict[str, Any]) -> str:
    """`starts coder (stops vision, idle for 12 min); goes to qwen36 meanwhile`"""
    stops = ", ".join(f"{name}, idle for {ago(idle)}" for name, idle in start["stops"].items())
    what = f"{start['backend']} is starting" if start["begun"] else f"starts {start['backend']}"
    then = "waits" if start["meanwhile"] is None else f"goes to {start['meanwhile']} meanwhile"
    return f"{what}{f' (stops {stops})' if stops else ''}; {then}"


def _request(asked: dict[str, Any]) -> str:
    words = [asked["endpoint"]]
    words += [f"tools {asked['tools']}"] if asked["tools"] else []
    words += [name for name in ("json_schema", "images", "audio", "pdf", "continues") if asked[name]]
    if asked["thinking"]:
        words.append(f"thinking {asked['thinking']}{' (a wish)' if asked['thinking_is_a_wish'] else ''}")
    return ", ".join([*words, f"room for {asked['room']:,} tokens of answer"])


def _print_backend(step: int, backend: dict[str, Any], order: list[str]) -> None:
    name, verdict = backend["backend"], backend["verdict"]
    shown = verdict if name not in order else f"{verdict}, number {order.index(name) + 1}"
    cloud = "  CLOUD" if backend["cloud"] else ""
    click.echo(
        f"  {step}. {name}  {click.style(shown, fg=_COLOURS[verdict])}  {server_shown(backend)}, "
        f"{backend['state']}{cloud}"
    )
    for reason in backend["reasons"]:
        click.echo(f"       {reason}")
    click.echo(f"       {_window(backend)}")
    click.echo(f"       {_capabilities(backend)}")
    for difference in backend["drift"]:
        click.echo(f"       drift: {difference}")


def _window(backend: dict[str, Any]) -> str:
    if backend["window"] is None:
        return "window not known"
    prompt = backend["prompt"]
    about = "" if prompt["at_least"] == prompt["at_most"] else "about "
    count = "; it is asked to count" if backend["counted"] else ""
    return f"window {backend['window']:,}, prompt {about}{prompt['probably']:,}, left {backend['left']:,}{count}"


def _capabilities(backend: dict[str, Any]) -> str:
    known = backend["capabilities"]
    words = []
    for name, one in known.items():
        if name == "named" and one == known["required"]:
            continue
        value = {True: "yes", False: "no", None: "?"}.get(one["value"], one["value"])
        where = f" ({one['from']})" if one["from"] != "unknown" else ""
        words.append(f"{_NAMES.get(name, name)} {value}{where}")
    return "  ".join(words)
