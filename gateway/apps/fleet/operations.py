"""`gateway fleet switch`, `start`, `restart`, `stop`, `cancel`, `status`: the operations of the running gateway."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import click

from gateway.cli.options import complete_backend, end_with, examples, snapshot_served
from gateway.cli.running import GatewayClient, GatewayRefusal, GatewayUnreachable, asks_gateway

_asks_gateway = asks_gateway("Key of a client with `admin: true`")


@examples(
    "gateway fleet switch ds4 --dry-run           # the steps, and nothing is done",
    "gateway fleet switch ds4",
    "gateway fleet switch daily --gateway http://192.168.1.5:4000 --json",
)
@click.command()
@click.argument("mode")
@click.option("--dry-run", is_flag=True, help="Print the steps, and do nothing.")
@click.option("--force", is_flag=True, help="Also if the mode does not fit, or a node's preflight fails.")
@_asks_gateway
def switch(mode: str, dry_run: bool, force: bool, as_json: bool, asking: GatewayClient) -> None:
    """Put MODE in force: drain and stop what leaves, start what comes in the order of the memory plan, and wait until
    it serves. The running gateway does it; the command shows each step, and may be ended without ending the switch.

    Exit code 0: done; 1: it failed, was refused, or the gateway could not be reached; 2: there is no such mode.
    """
    body = {"mode": mode, "force": force}
    if not dry_run:
        run(asking, "/admin/mode", body, as_json=as_json)
    try:
        steps = asking.post("/admin/mode", {**body, "dry_run": True})
    except GatewayRefusal as error:
        leave(error, as_json=as_json)
    except GatewayUnreachable as away:
        steps = _from_file(mode, click.get_current_context().params["config"], str(away), as_json=as_json)
    _show(steps, force=force, as_json=as_json)


def _from_file(mode: str, config: Path, away: str, *, as_json: bool) -> dict[str, Any]:
    """The steps as far as the file tells them."""
    from gateway.apps.control.record import described
    from gateway.apps.control.switching import assumed_presence, steps_of

    snapshot = snapshot_served(config, as_json=as_json)
    if mode not in snapshot.modes:
        there = ", ".join(snapshot.modes) or "none: the file has no `modes`"
        leave(GatewayRefusal(404, f"There is no mode '{mode}'. Modes: {there}."), as_json=as_json)
    current = next(iter(snapshot.modes))
    steps = steps_of("switch", mode, snapshot, current, assumed_presence(snapshot, current))
    found = described("switch", mode, current, steps)
    found["notes"].insert(0, f"{away}; so this is as if mode {current} were in force and ran")
    return found


def _show(steps: dict[str, Any], *, force: bool, as_json: bool) -> NoReturn:
    refused = bool(steps["refusals"]) and not force
    if as_json:
        click.echo(json.dumps({"ok": not refused, **steps}, indent=2))
        sys.exit(1 if refused else 0)
    click.echo(f"From {steps['before'] or 'no mode'} to {steps['mode']}:")
    print_notes(steps)
    for step in steps["steps"]:
        print_step(step)
    _print_lanes(steps)
    if not steps["steps"]:
        click.echo("Nothing to do.")
    for refusal in steps["refusals"]:
        click.echo(f"{'Forced' if force else 'Refused'}: {refusal}", err=True)
    sys.exit(1 if refused else 0)


def _print_lanes(steps: Mapping[str, Any]) -> None:
    """What starts on each node, and how long it takes, as far as earlier starts tell."""
    for lane in steps.get("lanes", ()):
        starts = (f"{one['backend']} ({_span(one['seconds'])})" for one in lane["starts"])
        click.echo(f"{lane['node'] or 'no node'}: {', then '.join(starts)}")
    if steps.get("expected") is not None:
        click.echo(f"Expected to take {_span(steps['expected'])}, by earlier starts.")


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "not started yet"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@examples("gateway fleet start ds4", "gateway fleet start ds4 --profile latency")
@click.command()
@click.argument("backend", shell_complete=complete_backend)
@click.option(
    "--profile", metavar="NAME", help="Start it with this profile; where it runs with another one, stop it first."
)
@click.option("--force", is_flag=True, help="Also if it does not fit, or its node's preflight fails.")
@_asks_gateway
def start(backend: str, profile: str | None, force: bool, as_json: bool, asking: GatewayClient) -> None:
    """Look the nodes of BACKEND over, start it, and wait until it serves. The running gateway does it. Without
    --profile it is started as in the mode in force.

    Exit code 0: it serves; 1: it failed, was refused, or the gateway could not be reached; 2: there is no such backend
    or profile.
    """
    body = {"force": force} if profile is None else {"force": force, "profile": profile}
    run(asking, f"/admin/backends/{quote(backend, safe='')}/start", body, as_json=as_json)


@examples("gateway fleet restart ds4")
@click.command()
@click.argument("backend", shell_complete=complete_backend)
@click.option("--force", is_flag=True, help="Also if its node's preflight fails.")
@_asks_gateway
def restart(backend: str, force: bool, as_json: bool, asking: GatewayClient) -> None:
    """Drain BACKEND, stop it, start it with the profile that it ran with, and wait until it serves. The running gateway
    does it.

    Exit code 0: it serves; 1: it failed, was refused, or the gateway could not be reached; 2: there is no such backend.
    """
    run(asking, f"/admin/backends/{quote(backend, safe='')}/restart", {"force": force}, as_json=as_json)


@examples("gateway fleet stop ds4")
@click.command()
@click.argument("backend", shell_complete=complete_backend)
@_asks_gateway
def stop(backend: str, as_json: bool, asking: GatewayClient) -> None:
    """Send nothing new to BACKEND, wait until its streams have ended, and stop it. The running gateway does it, and
    does not take it for a failure. It gets requests again after `gateway fleet start`.

    Exit code 0: it is stopped; 1: it failed, was refused, or the gateway could not be reached; 2: there is no such
    backend.
    """
    run(asking, f"/admin/backends/{quote(backend, safe='')}/stop", {}, as_json=as_json)


@examples("gateway fleet cancel", "gateway fleet cancel --json")
@click.command()
@_asks_gateway
def cancel(as_json: bool, asking: GatewayClient) -> None:
    """End the operation under way, in the middle of whatever it does. Its commands are killed; backends that were
    drained and not stopped serve again; an engine that it has started goes on loading until it is stopped.

    Exit code 0: nothing is under way any more; 1: it could not be ended, or the gateway could not be reached.
    """
    latest = asking.get("/admin/operations")["operation"]
    if latest is None or latest["state"] != "running":
        click.echo(json.dumps({"ok": True, "operation": latest}, indent=2) if as_json else "Nothing is under way.")
        return
    ended = asking.delete(f"/admin/operations/{quote(latest['id'], safe='')}")
    if as_json:
        click.echo(json.dumps({"ok": True, "operation": ended}, indent=2))
    else:
        _print_operation(ended)


@examples("gateway fleet status", "gateway fleet status --json")
@click.command()
@_asks_gateway
def status(as_json: bool, asking: GatewayClient) -> None:
    """Show which mode is in force, how far the operation under way is (or how the last one ended), and how each backend
    is.

    Exit code 0: it was shown; 1: the gateway could not be reached, or refuses the key; 2: wrong usage.
    """
    found = asking.get("/admin/operations")
    backends = asking.get("/status").get("backends", {})
    states = {name: {key: one.get(key) for key in ("state", "reason")} for name, one in backends.items()}
    if as_json:
        click.echo(json.dumps({"ok": True, **found, "backends": states}, indent=2))
        return
    click.echo(f"Mode: {found['mode'] or 'none, routes.yaml has no `modes`'}")
    _print_operation(found["operation"])
    width = max((len(name) for name in states), default=0)
    for name, one in states.items():
        click.echo(f"{name:{width}}  {one['state']:13}  {one['reason'] or ''}")


_WHY = {"request": " for a request", "idle": ", which is idle", "recovery": ", which hangs"}


def _print_operation(operation: Mapping[str, Any] | None) -> None:
    """The operation under way with its steps, or a failed one; of one that is done a line."""
    if operation is None:
        return
    switch = operation["kind"] == "switch"
    title = f"switch to {operation['mode']}" if switch else f"{operation['kind']} {operation['backend']}"
    title += _WHY.get(operation.get("cause", ""), "")
    if operation.get("gateway"):
        title += f" at gateway {operation['gateway']}"
    running = operation["state"] == "running"
    more = f" for {max(0.0, time.time() - operation['began']):.0f} s ({operation['id']})" if running else ""
    more += f", by {operation['by']}" if running and operation.get("by") else ""
    click.echo(f"{'Under way' if running else 'Last'}: {title}, {operation['state']}{more}")
    if operation["state"] == "done":
        return
    for step in operation["steps"]:
        print_step(step)
        if step["state"] == "running":
            click.echo(f"            {_progress(step)}")
    if operation["error"]:
        click.echo(f"Failed: {operation['error']}\nWhat to do: {operation['hint']}.")


SECOND_WITHIN = 3.0  # seconds for a second Ctrl-C
EVERY = 0.3  # seconds between two looks at an operation
AWAY_MOST = 20.0  # seconds for which the gateway may be away while an operation is followed
_COLOURS = {"done": "green", "failed": "red", "skipped": "bright_black", "running": "cyan", "waiting": ""}


def leave(error: Exception, *, as_json: bool) -> NoReturn:
    """Print why nothing was begun. Exits 2 for a name that there is not, else 1."""
    end_with(error, as_json=as_json, code=2 if isinstance(error, GatewayRefusal) and error.status == 404 else 1)


def run(asking: GatewayClient, path: str, body: Mapping[str, Any], *, as_json: bool) -> NoReturn:
    """Begin an operation, and show its steps until it has ended. Exits 0 when it is done, 1 when it failed or was
    refused, 2 for an unknown name."""
    try:
        operation = asking.post(path, body)
    except (GatewayUnreachable, GatewayRefusal) as error:
        leave(error, as_json=as_json)
    shown = Shown()
    if not as_json:
        print_notes(operation)
        _print_lanes(operation)
    try:
        while True:
            try:
                if not as_json:
                    shown.news(operation)
                if operation["state"] != "running":
                    break
                time.sleep(EVERY)
                operation = _look(asking, operation["id"])
            except KeyboardInterrupt:
                operation = _interrupted(asking, operation, shown)
    except (GatewayUnreachable, GatewayRefusal) as error:
        end_with(GatewayUnreachable(f"{error}; `gateway fleet status` shows how far it is"), as_json=as_json)
    if as_json:
        click.echo(json.dumps(operation, indent=2))
    else:
        failed = f"Failed: {operation['error']}\nWhat to do: {operation['hint']}."
        done = operation["state"] == "done"
        click.echo("Done." if done else failed, err=not done)
    sys.exit(0 if operation["state"] == "done" else 1)


def _interrupted(asking: GatewayClient, operation: dict[str, Any], shown: Shown) -> dict[str, Any]:
    """After Ctrl-C: a second one cancels the operation, which is returned as it has ended; else the command exits."""
    shown.leave_line()
    click.echo("\nIt goes on without you. Ctrl-C again now cancels it.", err=True)
    try:
        time.sleep(SECOND_WITHIN)
    except KeyboardInterrupt:
        return asking.delete(f"/admin/operations/{quote(operation['id'], safe='')}")
    click.echo("`gateway fleet status` shows how far it is, `gateway fleet cancel` ends it.", err=True)
    sys.exit(1)


def _look(asking: GatewayClient, name: str) -> dict[str, Any]:
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


class Shown:
    """What of an operation was printed: the state and the output of its steps, and on a terminal a last line that is
    written over, with the seconds of what runs and its last sign of life."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[str, str]] = {}
        self._signs: dict[int, str] = {}
        self._on_terminal = sys.stdout.isatty()
        self._live = False

    def news(self, operation: Mapping[str, Any]) -> None:
        """Print the steps whose state has changed, or that have something new to say (an engine that died). A step that
        is skipped has its turn as well."""
        before_is_over = True
        for index, step in enumerate(operation["steps"]):
            state = step["state"]
            has_its_turn = state != "skipped" or before_is_over
            before_is_over = before_is_over and state not in ("waiting", "running")
            now = (state, step["output"] if state == "running" else "")
            if has_its_turn and now != self._states.get(index, ("waiting", "")):
                self._states[index] = now
                self.leave_line()
                print_step(step)
        self._progress([(at, one) for at, one in enumerate(operation["steps"]) if one["state"] == "running"])

    def _progress(self, running: list[tuple[int, Mapping[str, Any]]]) -> None:
        if self._on_terminal and running:
            width = shutil.get_terminal_size().columns - 1
            line = "   ".join(f"{step['what']} {step['backend']} {_progress(step)}" for _, step in running)
            click.echo(f"\r\x1b[K{line[:width]}", nl=False)
            self._live = True
        for at, step in running if not self._on_terminal else ():
            if step.get("sign") and step["sign"] != self._signs.get(at):
                self._signs[at] = step["sign"]
                click.echo(f"            {_progress(step)}")

    def leave_line(self) -> None:
        """The next text begins a line of its own."""
        if self._live:
            click.echo("\r\x1b[K", nl=False)
            self._live = False


def _progress(step: Mapping[str, Any]) -> str:
    """For how long a step runs, and the last sign of life of what it waits for."""
    now = time.time()
    seconds = f"{max(0.0, now - (step.get('began') or now)):.0f} s"
    if not step.get("sign"):
        return seconds
    return f"{seconds}; {max(0.0, now - step['sign_at']):.0f} s ago: {step['sign']}"


def print_step(step: Mapping[str, Any]) -> None:
    """One line, and the whole output of a step that failed."""
    state, output = step["state"], step["output"] or ""
    seconds = f"  {step['seconds']:.1f} s" if step["seconds"] is not None else ""
    mark = click.style(f"{state:8}", fg=_COLOURS.get(state) or None)
    lines = output.splitlines()
    warned = any(line.startswith("warning: ") for line in lines)  # what a preflight warns of is not swallowed
    short = f"  {output}" if output and state != "failed" and not warned and len(lines) == 1 else ""
    click.echo(f"{mark}  {step['what']:9}  {step['backend']}{seconds}{short}")
    if state == "failed" or warned or (state == "running" and len(lines) > 1):
        for line in lines:
            click.echo(f"            {line}")


@examples("gateway fleet logs qwen36", "gateway fleet logs ds4 --node spark2 --follow")
@click.command()
@click.argument("backend", shell_complete=complete_backend)
@click.option("--follow", is_flag=True, help="Go on with each line as it comes, until Ctrl-C.")
@click.option("--lines", type=click.IntRange(1, 2000), default=100, show_default=True, help="The last lines to show.")
@click.option("--node", metavar="NAME", help="Of an engine over several nodes: this one; default the head.")
@_asks_gateway
def logs(backend: str, follow: bool, lines: int, node: str | None, as_json: bool, asking: GatewayClient) -> None:
    """Show the journal of BACKEND's unit, else the log of its container. Escapes are taken out and secrets masked.

    Exit code 0: it was shown; 1: the node or the gateway could not be reached; 2: there is no such backend, or it has
    no rendered unit.
    """
    if follow and as_json:
        raise click.UsageError("--json shows what there is: leave out --follow")
    path = f"/admin/backends/{quote(backend, safe='')}/logs?lines={lines}&node={quote(node or '', safe='')}"
    try:
        found = asking.lines(f"{path}&follow=true" if follow else path)
        if as_json:
            click.echo(json.dumps({"ok": True, "backend": backend, "lines": list(found)}, indent=2))
            return
        for line in found:
            if line:
                click.echo(line)
    except (GatewayUnreachable, GatewayRefusal) as error:
        leave(error, as_json=as_json)
    except KeyboardInterrupt:
        sys.exit(0)
