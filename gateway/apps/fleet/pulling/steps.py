"""Runs one step of a pull on a node over ssh, and shows how far it is."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from gateway.apps.control.unit_commands import with_credentials
from gateway.apps.fleet.preflight.run import program, ssh_command
from gateway.apps.fleet.pulling.files import Broken
from gateway.apps.fleet.pulling.node import MARK
from gateway.config.snapshot import Node
from gateway.printable import visible

MODULES = ("preflight.terms", "preflight.host", "preflight.checks_weights", "pulling.files", "pulling.node")
_SILENCE = 600.0  # seconds without a line after which a step is given up: docker says nothing while it unpacks
_MOST_LINE = 64 * 1024 * 1024
_EVERY = 10.0  # seconds between two lines of progress where the output is no terminal

Job = Mapping[str, Any]
OnProgress = Callable[[int, int], None]
RunStep = Callable[[Node, Job, OnProgress], dict[str, Any]]


def run_step(node: Node, job: Job, progress: OnProgress) -> dict[str, Any]:
    """The result of a step on a node. Raises Broken."""
    assert node.ssh is not None
    lines = _lines(with_credentials(ssh_command(node.ssh)), program(MODULES, json.dumps(job)))
    said = ""
    for line in lines:
        if not line.startswith(MARK):
            said = line.strip() or said
            continue
        try:
            told = json.loads(line.removeprefix(MARK))
        except ValueError:
            continue
        if isinstance(told.get("result"), dict):
            if "problem" in told["result"]:
                raise Broken(str(told["result"]["problem"]))
            return dict(told["result"])
        if isinstance(told.get("done"), int) and isinstance(told.get("total"), int):
            progress(told["done"], told["total"])
    raise Broken(f"ssh {node.ssh}: {visible(said)[:200] or 'no answer'}")


def _lines(argv: Sequence[str], text: str) -> Any:
    """The lines that a command writes, as they come."""
    try:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise Broken(f"{argv[0]} cannot be run: {error.strerror or error}") from None
    assert process.stdin is not None
    assert process.stdout is not None
    rest = b""
    try:
        try:
            process.stdin.write(text.encode())
            process.stdin.close()
        except OSError:  # it has ended already, and says why
            pass
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(_SILENCE):
                chunk = os.read(process.stdout.fileno(), 65536)
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in lines)
                if not chunk or len(rest) > _MOST_LINE:
                    break
        if rest:
            yield rest.decode("utf-8", "replace")
    finally:
        process.kill()
        process.wait()


@dataclass(slots=True)
class Meter:
    """Shows the progress of one step, with the time that is left."""

    what: str
    began: float = 0.0
    first: int = 0
    said: float = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self.began:
            self.began, self.first = now, done
        terminal = sys.stderr.isatty()
        if terminal or now - self.said >= _EVERY:
            self.said = now
            begin = "\r" if terminal else ""
            click.echo(f"{begin}{self.line(done, total, now)}", err=True, nl=not terminal)

    def line(self, done: int, total: int, now: float) -> str:
        passed = now - self.began
        speed = (done - self.first) / passed if passed > 0 else 0.0
        if total <= 0:
            return f"  {self.what}: {passed:.0f} s"
        shown = f"  {self.what}: {min(done / total, 1):4.0%} of {total / 2**30:.1f} GiB"
        if speed <= 0:
            return shown
        return f"{shown}, {speed / 1e6:.0f} MB/s, {_duration(max(0, total - done) / speed)} left   "

    def end(self) -> None:
        if self.began and sys.stderr.isatty():
            click.echo("", err=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
