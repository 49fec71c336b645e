"""`gateway client add|rotate|remove NAME`: keys of clients, in routes.yaml. The file gets the key's SHA-256; the key
itself is printed once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import click

from gateway.cli.options import complete_client, config_option, end_with, examples, fail_with, json_option, load_or_exit

if TYPE_CHECKING:
    from gateway.config.snapshot import Snapshot

CONFIGS = Path(__file__).with_name("configs.txt")
WINDOW_GUESS = 131072  # tokens, where routes.yaml says no window


@examples("gateway client add hermes", "gateway client rotate hermes", "gateway client remove hermes")
@click.group()
def command() -> None:
    """Keys of clients. routes.yaml gets the SHA-256 of a key, and keeps its comments; the key is printed once."""


def configs_for(url: str, key: str, alias: str, window: int) -> dict[str, str]:
    """Name of a program -> what to write into its settings."""
    values = {"url": url, "key": key, "alias": alias, "window": str(window)}
    parts = CONFIGS.read_text(encoding="utf-8").split("\n\n")
    return {part[2 : part.index(":")]: Template(part.strip()).substitute(values) for part in parts}


PROGRAMS = tuple(configs_for("", "", "", 0))
_for_option = click.option(
    "--for", "programs", multiple=True, type=click.Choice(PROGRAMS), help="Whose settings to print; default all."
)
_url_option = click.option("--url", help="How the program reaches the gateway; default this machine's name.")
_name = click.argument("name", shell_complete=complete_client)


@examples(
    "gateway client add hermes",
    'gateway client add webui --aliases "spark-*" --budget "1 USD/day" --for open-webui',
)
@command.command()
@click.argument("name")
@click.option("--aliases", multiple=True, help="An alias it may use, globs allowed; repeatable; default all.")
@click.option("--budget", help='Spending limit: "1 USD/day".')
@click.option("--admin", is_flag=True, help="It may drain, reload and read everything.")
@_for_option
@_url_option
@config_option
@json_option
def add(
    name: str,
    aliases: Sequence[str],
    budget: str | None,
    admin: bool,
    programs: Sequence[str],
    url: str | None,
    config: Path,
    as_json: bool,
) -> None:
    """Add a client with a new key, and print settings for the programs that it is for.

    Exit code 0: added; 1: the file has a mistake, or the client is there already; 2: wrong usage.
    """
    from gateway.apps.keys.client_entries import with_client

    key = _new_key()
    more = {"aliases": list(aliases), "budget": budget, "admin": admin}
    fields = {"key": _digest(key), **{field: value for field, value in more.items() if value}}
    snapshot = _edit(config, lambda text: with_client(text, name, fields), as_json=as_json)
    _show(snapshot, name, key, programs, url, as_json=as_json)


@examples("gateway client rotate hermes", "gateway client rotate hermes --finish")
@command.command()
@_name
@click.option("--finish", is_flag=True, help="Take the old key out: the program has the new one.")
@_for_option
@_url_option
@config_option
@json_option
def rotate(name: str, finish: bool, programs: Sequence[str], url: str | None, config: Path, as_json: bool) -> None:
    """Give a client a new key. The one before (`old_key`) stays valid until `--finish`.

    Exit code 0: done; 1: the file has a mistake, or there is no such client; 2: wrong usage.
    """
    from gateway.apps.keys.client_entries import with_fields, written_field

    if finish:
        _edit(config, lambda text: with_fields(text, name, {"old_key": None}), as_json=as_json)
        click.echo(json.dumps({"client": name, "old_key": None}) if as_json else f"'{name}' has one key now.")
        return
    key = _new_key()

    def edited(text: str) -> str:
        return with_fields(text, name, {"old_key": written_field(text, name, "key"), "key": _digest(key)})

    snapshot = _edit(config, edited, as_json=as_json)
    _show(snapshot, name, key, programs, url, as_json=as_json)
    if not as_json:
        click.echo(f"\nThe old key is valid until: gateway client rotate {name} --finish", err=True)


@examples("gateway client remove hermes")
@command.command()
@_name
@config_option
@json_option
def remove(name: str, config: Path, as_json: bool) -> None:
    """Take a client out: its keys are refused from then on.

    Exit code 0: removed; 1: there is no such client, or it is the last one; 2: wrong usage.
    """
    from gateway.apps.keys.client_entries import without_client

    _edit(config, lambda text: without_client(text, name), as_json=as_json)
    click.echo(json.dumps({"client": name, "removed": True}) if as_json else f"'{name}' is removed.")


def _new_key() -> str:
    return f"sk-{secrets.token_urlsafe(32)}"


def _digest(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def _edit(config: Path, edited: Callable[[str], str], *, as_json: bool) -> Snapshot:
    """Write the edited file, if it is valid. It is written in place: its owner, mode and links stay. Two edits at a
    time wait for each other, so that none of them is lost."""
    from gateway.cli.config_edits import CannotEdit
    from gateway.config.load import load_text
    from gateway.config.problems import ConfigError

    was_open = not load_or_exit(config, as_json=as_json).snapshot.clients
    try:
        with config.open("r+", encoding="utf-8", newline="") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            given = file.read()
            mark = given[: given.startswith("\ufeff")]
            text = edited(given[len(mark) :])
            snapshot: Snapshot = load_text(text, str(config)).snapshot
            file.seek(0)
            file.write(mark + text)
            file.truncate()
    except (CannotEdit, OSError) as error:
        end_with(error, as_json=as_json)
    except ConfigError as error:
        fail_with(error, as_json=as_json)
    if was_open:
        click.echo("This is the first client: from now on every caller needs a key.", err=True)
        if not any(client.admin for client in snapshot.clients.values()):
            click.echo("Nobody may steer the fleet now: `gateway client add ops --admin` makes a key for it.", err=True)
    return snapshot


def _show(snapshot: Snapshot, name: str, key: str, programs: Sequence[str], url: str | None, *, as_json: bool) -> None:
    server, client = snapshot.server, snapshot.clients[name]
    host = socket.gethostname() if server.host in ("0.0.0.0", "::") else server.host
    url = (url or f"{'http' if server.tls is None else 'https'}://{host}:{server.port}").rstrip("/").removesuffix("/v1")
    alias = next((alias for alias in snapshot.aliases.values() if client.may_use(alias.name)), None)
    first = snapshot.backends[alias.steps[0][0]] if alias is not None and alias.steps else None
    window = first.context if first is not None and first.context else WINDOW_GUESS
    shown = configs_for(url, key, alias.name if alias is not None else "ALIAS", window)
    shown = {program: text for program, text in shown.items() if not programs or program in programs}
    if as_json:
        click.echo(json.dumps({"client": name, "key": key, "url": url, "configs": shown}, indent=2))
        return
    click.echo(f"The key of '{name}', shown this once: {key}\n")
    click.echo("\n\n".join(shown.values()))
