"""Shared by the commands that make the running gateway switch, start or stop: asking it, and following the steps."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

import click

from gateway.cli.options import key_option, load_or_exit, server_url
from gateway.printable import visible, visible_all

F = TypeVar("F", bound=Callable[..., Any])

WAIT = 60.0  # seconds for an answer: a plan reads files of models
ANSWER_MOST = 16 * 1024 * 1024  # bytes of an answer
EVERY = 0.3  # seconds between two looks at an operation
AWAY_MOST = 20.0  # seconds for which the gateway may be away while an operation is followed
_COLOURS = {"done": "green", "failed": "red", "skipped": "bright_black", "running": "cyan", "waiting": ""}


def gateway_options(command: F) -> F:
    """`--gateway URL` and `--key KEY`, given to the command as `at` and `key`."""
    at = click.option("--gateway", "at", metavar="URL", help="Where the gateway is; default `server.listen`.")
    return at(key_option("Key of a client with `admin: true`")(command))


def url_of(config: Path, at: str | None, *, as_json: bool) -> str:
    """The URL of the gateway: `at`, else that of the file."""
    from gateway.cli.probe_run import address

    if at is not None:
        return server_url(at).removesuffix("/v1")
    return address(load_or_exit(config, as_json=as_json).snapshot.server)


class GatewayUnreachable(Exception):
    """The gateway did not answer; the text says why."""


class GatewayRefusal(Exception):
    """The gateway refused, with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class OperationClient:
    """Asks one gateway."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def get(self, path: str) -> dict[str, Any]:
        """The answer. Raises Away and Refused."""
        return self._ask("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer. Raises Away and Refused."""
        return self._ask("POST", path, json=dict(body))

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        import httpx

        from gateway.transport.bounded import client, fetch_now

        try:
            with client(WAIT, base_url=self.url, headers=self._headers) as asking:
                answer = fetch_now(asking, method, path, most=ANSWER_MOST, seconds=WAIT, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = visible(str(error)) or type(error).__name__
            raise GatewayUnreachable(f"the gateway at {self.url} cannot be reached: {why}") from None
        try:
            found = answer.json()
        except (ValueError, RecursionError):
            found = None
        if answer.status_code in (200, 202) and isinstance(found, dict):
            return dict(visible_lines_of(found))
        raise GatewayRefusal(answer.status_code, _message(found, answer.status_code, self.url))


def visible_lines_of(value: Any) -> Any:
    """Decoded JSON that is safe to print: texts of several lines keep their line ends."""
    if isinstance(value, str):
        return "\n".join(visible(line) for line in value.split("\n"))
    if isinstance(value, dict):
        return {visible(str(key)): visible_lines_of(inner) for key, inner in value.items()}
    return [visible_lines_of(inner) for inner in value] if isinstance(value, list) else value


def _message(found: Any, status: int, url: str) -> str:
    try:
        message = str(visible_all(found["error"]["message"]))
    except (KeyError, TypeError):
        return f"what listens at {url} does not answer as a gateway ({status})"
    return f"{message} (--key KEY, or GATEWAY_KEY)" if status in (401, 403) else message


def leave(error: Exception, *, as_json: bool) -> NoReturn:
    """Print why nothing was begun. Exits 2 for a name that there is not, else 1."""
    unknown = isinstance(error, GatewayRefusal) and error.status == 404
    if as_json:
        click.echo(json.dumps({"ok": False, "error": str(error)}, indent=2))
    else:
        click.echo(f"Error: {error}", err=True)
    sys.exit(2 if unknown else 1)


# -- one operation ----------------------------------------------------------------------------------------------------


def run(asking: OperationClient, path: str, body: Mapping[str, Any], *, as_json: bool) -> NoReturn:
    """Begin an operation, and show its steps until it has ended. Exits 0 when it is done, 1 when it failed or was
    refused, 2 for an unknown name."""
    try:
        operation = asking.post(path, body)
    except (GatewayUnreachable, GatewayRefusal) as error:
        leave(error, as_json=as_json)
    shown: dict[int, str] = {}
    if not as_json:
        print_notes(operation)
    try:
        while True:
            if not as_json:
                _print_news(operation, shown)
            if operation["state"] != "running":
                break
            time.sleep(EVERY)
            operation = _look(asking, operation["id"])
    except (GatewayUnreachable, GatewayRefusal) as error:
        leave(GatewayUnreachable(f"{error}; `gateway fleet status` shows how far it is"), as_json=as_json)
    except KeyboardInterrupt:
        click.echo("\nIt goes on without you: `gateway fleet status` shows how far it is.", err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps(operation, indent=2))
    else:
        _print_end(operation)
    sys.exit(0 if operation["state"] == "done" else 1)


def _look(asking: OperationClient, name: str) -> dict[str, Any]:
    """The operation as it is now; a gateway that does not answer may be back soon."""
    until = time.monotonic() + AWAY_MOST
    while True:
        try:
            return asking.get(f"/admin/operations/{quote(name, safe='')}")
        except GatewayUnreachable:
            if time.monotonic() >= until:
                raise
            time.sleep(EVERY)


def print_notes(operation: Mapping[str, Any]) -> None:
    for note in operation.get("notes", ()):
        click.echo(f"note: {note}")


def _print_news(operation: Mapping[str, Any], shown: dict[int, str]) -> None:
    """The steps whose state has changed since they were `shown`. A step that is skipped has its turn as well."""
    before_is_over = True
    for index, step in enumerate(operation["steps"]):
        has_its_turn = step["state"] != "skipped" or before_is_over
        before_is_over = before_is_over and step["state"] not in ("waiting", "running")
        if has_its_turn and step["state"] != shown.get(index, "waiting"):
            shown[index] = step["state"]
            print_step(step)


def print_step(step: Mapping[str, Any]) -> None:
    """One line, and the whole output of a step that failed."""
    state, output = step["state"], step["output"] or ""
    seconds = f"  {step['seconds']:.1f} s" if step["seconds"] is not None else ""
    mark = click.style(f"{state:8}", fg=_COLOURS.get(state) or None)
    short = f"  {output}" if output and state != "failed" and "\n" not in output else ""
    click.echo(f"{mark}  {step['what']:9}  {step['backend']}{seconds}{short}")
    if state == "failed":
        for line in output.splitlines():
            click.echo(f"            {line}")


def _print_end(operation: Mapping[str, Any]) -> None:
    if operation["state"] == "done":
        click.echo("Done.")
        return
    click.echo(f"Failed: {operation['error']}", err=True)
    click.echo(f"What to do: {operation['hint']}.", err=True)
