"""`gateway top`: a live view of the fleet in a terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gateway.apps.console.top_view import View
from gateway.cli.options import config_option, examples, is_there, json_option, key_option, server_url, snapshot_served
from gateway.cli.running import address
from gateway.printable import visible, visible_all
from gateway.transport.bounded import client, fetch_now

if TYPE_CHECKING:
    import httpx

WAIT = 3.0  # seconds for an answer
ANSWER_MOST = 16 * 1024 * 1024  # bytes of an answer
EVERY = 1.0  # seconds between two updates
USAGE_EVERY = 15.0  # seconds for which the gateway caches this answer
DEFAULT = "http://127.0.0.1:4000"


@examples("gateway top", "gateway top --gateway http://192.168.1.5:4000", "gateway top --once", "gateway top --json")
@click.command()
@config_option
@click.option("--gateway", "at", metavar="URL", help="Where the gateway is; default `server.listen`.")
@key_option("Key of a client")
@click.option("--once", is_flag=True, help="Print it once and leave; so too where the output is no terminal.")
@json_option
def command(config: Path, at: str | None, key: str | None, once: bool, as_json: bool) -> None:
    """Show backends, slots, queues, who answers for each alias, and what happened last; q or Ctrl-C leaves.

    While the gateway cannot be reached, the view says so and keeps trying.

    Exit code 0: it was shown; 1: the gateway could not be reached, or refuses the key (--once, --json); 2: wrong usage.
    """
    url = server_url(at).removesuffix("/v1") if at is not None else _listens(config)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with client(WAIT, base_url=url, headers=headers) as asking:
        poller = StatusPoller(asking, url)
        if as_json:
            poller.look()
            _print_json(poller.view)
        elif once or not sys.stdout.isatty():
            poller.look()
            _print(replace(poller.view, height=False))
        else:
            _follow(poller)


def _listens(config: Path) -> str:
    """The URL of the gateway of the file; where no file was named and none is there, the default URL."""
    source = click.get_current_context().get_parameter_source("config")
    if source is ParameterSource.DEFAULT and not is_there(config):
        return DEFAULT
    return address(snapshot_served(config).server)


class StatusPoller:
    """Polls one gateway; `view` has the latest of it."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self.view = View(url)
        self._client = client
        self._answered_at = self._usage_at = float("-inf")

    def look(self) -> None:
        """Poll now. Without an answer the view keeps its data, and its `trouble` has the reason."""
        status, trouble = self._ask("/status")
        now = time.monotonic()
        if status is None:
            self.view = replace(self.view, trouble=trouble, age=now - self._answered_at if self.view.status else 0.0)
            return
        self._answered_at = now
        self.view = replace(self.view, status=status, trouble=None, age=0.0)
        if now - self._usage_at >= USAGE_EVERY:
            self._usage_at = now
            self.view = replace(self.view, usage=self._ask("/status/usage")[0] or {})

    def _ask(self, path: str) -> tuple[Mapping[str, Any] | None, str | None]:
        """(the decoded answer, None), or (None, the reason why none came)."""
        import httpx

        try:
            answer = fetch_now(self._client, "GET", path, most=ANSWER_MOST, seconds=WAIT)
            fields = answer.json() if answer.status_code == 200 else None
        except httpx.TimeoutException:
            return None, f"does not answer within {WAIT:.0f} s"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return None, f"cannot be reached: {visible(str(error)) or type(error).__name__}"
        except (ValueError, RecursionError):
            return None, "is none: what listens there does not answer in JSON"
        if answer.status_code in (401, 403):
            return None, "refuses the key (--key KEY, or GATEWAY_KEY)"
        if not isinstance(fields, Mapping):
            return None, f"is none: what listens there answers {answer.status_code} at {path}"
        return visible_all(fields), None


# -- output -----------------------------------------------------------------------------------------------------------


def _print_json(view: View) -> None:
    """Print the answer of /status, with `usage` added."""
    if view.trouble is not None:
        click.echo(json.dumps({"ok": False, "error": problem(view)}, indent=2))
        sys.exit(1)
    click.echo(json.dumps({"ok": True, **view.status, "usage": view.usage or None}, indent=2))


def problem(view: View) -> str:
    """Why there is no current status, as a sentence."""
    return f"The gateway at {view.url} {view.trouble}."


def _print(view: View) -> None:
    from rich.console import Console

    if view.trouble is not None:
        click.echo(problem(view), err=True)
        sys.exit(1)
    Console(highlight=False).print(view)


def _follow(poller: StatusPoller) -> None:
    """Poll every second on a separate screen; the view is redrawn in between when the terminal changes its size."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    try:
        with (
            keys_at_once() as key_within,
            Live(console=console, screen=True, refresh_per_second=4, get_renderable=lambda: poller.view),
        ):
            while True:
                began = time.monotonic()
                poller.look()
                if key_within(max(0.0, EVERY - (time.monotonic() - began))) in ("q", "Q"):
                    break
    except KeyboardInterrupt:
        pass


@contextmanager
def keys_at_once() -> Iterator[Callable[[float], str]]:
    """Keys are read without a line end. The function waits so many seconds for one, "" = none came; without a terminal
    it only waits."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    import select
    import termios
    import tty

    terminal = sys.stdin.fileno()

    def key_within(seconds: float) -> str:
        if not select.select([terminal], [], [], seconds)[0]:
            return ""
        return os.read(terminal, 1).decode(errors="replace") or _no_key(seconds)  # b"": the terminal is gone

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield key_within
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""
