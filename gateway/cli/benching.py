"""How `gateway bench` measures: from the names on the command line to the report."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import click
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from gateway.benching import chart
from gateway.benching.report import as_json
from gateway.benching.results import Results
from gateway.benching.session import Session, Settings
from gateway.benching.setup import Subject, Through, at_alias, at_url, open_direct
from gateway.benching.table import show
from gateway.benching.ways import NotThere, Way
from gateway.cli.probing import address
from gateway.cli.urls import checked
from gateway.config.snapshot import Alias, Snapshot
from gateway.domain.engine_traits import TRAITS
from gateway.printable import visible


class Wanted(NamedTuple):
    """What the command line says, beside the settings. `trim`: the lengths of prompts were not asked for, so those that
    do not fit are left out."""

    name: str
    model: str | None
    gateway: str | None
    key: str | None
    direct: bool
    cloud: bool
    trim: bool
    chart: Path | None
    as_json: bool


class Bench:
    """One run of the command. Raises UsageError wherever the command line is at fault."""

    def __init__(self, wanted: Wanted, settings: Settings, snapshot: Snapshot | None) -> None:
        """`snapshot` None: a URL is measured, or an alias of which only the gateway is known."""
        if wanted.chart is not None and (problem := chart.why_not(wanted.chart)) is not None:
            raise click.UsageError(problem)
        self.wanted, self.settings, self.snapshot = wanted, settings, snapshot
        self.results = Results(settings.tokens)
        self._title = wanted.name
        self._alias = None if snapshot is None else chosen(snapshot, wanted, settings)
        self._progress = Progress(quiet=wanted.as_json)

    # -- measuring ----------------------------------------------------------------------------------------------------

    def measure(self) -> None:
        """Until all is measured, or Ctrl-C: what there is then is told. Exits where nothing can be measured."""
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, self._progress:
                runner.run(self.run())
        except NotThere as problem:
            click.echo(f"Nothing was measured: {visible(str(problem))}", err=True)
            if self.wanted.as_json:
                click.echo(json.dumps({"ok": False, "error": str(problem)}, indent=2))
            sys.exit(1)
        except KeyboardInterrupt:
            self.results.stopped = True

    async def run(self) -> None:
        """Raises NotThere when nothing can be measured."""
        async with AsyncExitStack() as stack:
            if "://" in self.wanted.name:
                subject = await at_url(checked(self.wanted.name), self.wanted.model, self.wanted.key)
                stack.push_async_callback(subject.ways[0].close)
                session = await self._begin(subject)
            else:
                session = await self._begin_alias(stack)
            self._progress.begin(self.settings.steps(len(session.ways)))
            await session.run()

    async def _begin(self, subject: Subject) -> Session:
        """Warmed up by the first way."""
        self._title = subject.title
        self._fit_lengths(subject.window)
        session = Session(self.settings, subject.ways, self.results, self._progress.step)
        runs = await session.warm_up(subject.ways[0])
        self.results.expected = runs[-1].backend
        return session

    async def _begin_alias(self, stack: AsyncExitStack) -> Session:
        url = self.wanted.gateway or (address(self.snapshot.server) if self.snapshot is not None else "")
        try:
            subject, through = await at_alias(checked(url), self.wanted.name, self.wanted.key, cloud=self.wanted.cloud)
        except NotThere as problem:
            raise NotThere(f"{problem} (the gateway: `gateway serve`, or --gateway URL; a key: --key)") from None
        stack.push_async_callback(through.close)
        session = await self._begin(subject)
        await self._look_around(through)
        if self.wanted.direct:
            await self._add_direct(session, through, stack)

        async def settle(way: Way) -> None:
            if way is through and len(session.ways) > 1:
                await through.settle(self.results.expected)

        session.settle = settle
        return session

    def _fit_lengths(self, window: int | None) -> None:
        """Leave out the prompts that the window does not hold; those that were asked for are a mistake."""
        settings = self.settings
        most = fitting(window, settings.tokens)
        kept = tuple(length for length in settings.lengths if most is None or length <= most)
        if kept == settings.lengths:
            return
        if not self.wanted.trim or not kept:
            raise click.UsageError(
                f"--prompt-tokens: {settings.lengths[-1]:,} and an answer of {settings.tokens:,} do not fit the window "
                f"of {window:,} tokens; at most {most:,}"
            )
        left_out = ", ".join(f"{length:,}" for length in settings.lengths if length not in kept)
        self.results.notes.append(f"prompts of {left_out} tokens are left out: the window is {window:,}")
        self.settings = replace(settings, lengths=kept)

    async def _look_around(self, through: Through) -> None:
        """Who answers, and is anybody else there?"""
        name, notes = self.results.expected, self.results.notes
        if name is None:
            return
        self._title += f", answered by {name}"
        if self._alias is not None and self._alias.steps and name not in self._alias.steps[0]:
            notes.append(f"{self.wanted.name} is not served by its first step now: this is what {name} does")
        if others := await through.others(name):
            notes.append(f"{name} has other requests under way ({others}): the figures hold for what they leave")
        backend = self.snapshot.backends.get(name) if self.snapshot is not None else None
        slots = backend.slots if backend is not None else None
        if slots is not None and any(level > slots for level in self.settings.concurrency):
            count = "1 slot" if slots == 1 else f"{slots} slots"
            notes.append(f"{name} has {count}: requests beyond that wait (`queued`: at the gateway)")

    async def _add_direct(self, session: Session, through: Through, stack: AsyncExitStack) -> None:
        name = self.results.expected
        try:
            if self.snapshot is None or self._alias is None or name is None:
                raise NotThere("that takes the routes.yaml of the gateway (--config FILE)")
            direct = await open_direct(self.snapshot, self._alias, name, through)
            stack.push_async_callback(direct.close)
            await session.warm_up(direct)
            session.ways.append(direct)
        except NotThere as problem:
            self.results.notes.append(f"not measured directly: {problem}")

    # -- telling ------------------------------------------------------------------------------------------------------

    def report(self) -> None:
        """To stdout, and the chart to its file. Exits when that cannot be written."""
        if self.wanted.as_json:
            click.echo(json.dumps(as_json(self._title, self.settings, self.results), indent=2))
        else:
            show(Console(highlight=False), self._title, self.results)
        path = self.wanted.chart
        if path is None or not any(run.ok for _, run in self.results.runs):
            return
        try:
            chart.draw(path, self._title, self.results)
        except OSError as error:
            click.echo(f"The chart cannot be written: {error}", err=True)
            sys.exit(1)
        click.echo(f"chart: {path}", err=True)


# -- what may be measured ---------------------------------------------------------------------------------------------


def chosen(snapshot: Snapshot, wanted: Wanted, settings: Settings) -> Alias:
    """The alias of this name. Raises UsageError where there is none, or where measuring it would mislead or cost."""
    name = wanted.name
    alias = snapshot.resolve(name)
    if alias is None:
        close = get_close_matches(name, snapshot.aliases, n=1)
        hint = f"Did you mean '{close[0]}'?" if close else f"There are: {', '.join(snapshot.aliases)}."
        raise click.UsageError(f"there is no alias '{name}'. {hint}")
    members = [snapshot.backends[member] for member in (alias.steps[0] if alias.steps else ())]
    if not members or not any(TRAITS[backend.engine].chats for backend in members):
        raise click.UsageError(f"'{name}' does not chat: only what answers chats can be measured")
    if all(backend.cloud for backend in members) and not wanted.cloud:
        raise click.UsageError(f"'{name}' goes to a cloud, which costs money: say --cloud if that is meant")
    least = alias.min_max_tokens
    if least is not None and least > settings.tokens:
        raise click.UsageError(
            f"'{name}' raises every answer to {least:,} tokens (min_max_tokens): measure it with --tokens {least}, or "
            "take another alias of the same backend"
        )
    return alias


def fitting(window: int | None, tokens: int) -> int | None:
    """The longest prompt that surely leaves room for the answer: lengths are met within a few percent. None = any."""
    return None if window is None else max(0, int((window - tokens) * 0.97))


class Progress:
    """A bar on a terminal's stderr, nothing elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("warm-up", total=None)
        self._begun = False

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, total: int) -> None:
        self._bar.update(self._task, total=total)

    def step(self, what: str) -> None:
        """What was under way is done, and this begins."""
        self._bar.update(self._task, description=visible(what), advance=1 if self._begun else 0)
        self._begun = True
