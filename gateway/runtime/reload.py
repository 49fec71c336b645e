"""Reloads routes.yaml: a valid edit is put in force at once; an invalid one changes nothing and is reported in the log,
`/status`, events, metrics and alerts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from gateway.config.changes import changes, local_keys, needs_restart, openings
from gateway.config.edits import edits
from gateway.config.load import LoadedFile, keep_last_good, load
from gateway.config.problems import ConfigError, NotRead, Problem
from gateway.config.snapshot import Snapshot
from gateway.config.sources import look
from gateway.domain.events import Event
from gateway.metrics.registry import Metrics
from gateway.shortage import Kind, shortage_of
from gateway.supervision import cancel

log = logging.getLogger("gateway.config")

REREAD = 0.3  # seconds until a file with mistakes is read once more: it may be half written
RETRY = 1.0  # seconds until the next attempt when the process lacks a resource to read files
ALERTED_MOST = 5  # mistakes in an alert
LOGGED_MOST = 20  # changes in a line of the log

Adapt = Callable[[Snapshot], Awaitable[Snapshot]]


class Reloadable(Protocol):
    """A gateway, as far as a reload changes it."""

    metrics: Metrics
    refused_edit: str | None

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot in force."""
        ...

    async def put_in_force(self, snapshot: Snapshot) -> None:
        """Put another snapshot in force."""
        ...

    def short_of(self, kind: Kind) -> None:
        """This process lacked a resource."""
        ...

    def emit(self, event: Event) -> None: ...


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A version of the file that was put in force `at` (Unix seconds). `changes`: one line each, without secrets.
    `restart`: the keys of `server` that need a restart."""

    at: float
    changes: tuple[str, ...]
    restart: tuple[str, ...]
    warnings: tuple[str, ...]


class Reloader:
    """Watches `path` while it is open. `loaded`: the file as the gateway was started with it. `adapt` turns the file's
    snapshot into the one that is served (for the demo's simulated fleet). `broken`: the mistakes of the file, in whose
    place the gateway was started with its last good version."""

    def __init__(
        self,
        gateway: Reloadable,
        path: Path,
        loaded: LoadedFile,
        adapt: Adapt | None = None,
        broken: ConfigError | None = None,
    ) -> None:
        self.path = path
        self.loaded_at = time.time()
        self.refused_at: float | None = None  # Unix seconds; None = the present file is in force
        self.problems: tuple[Problem, ...] = ()
        self.restart: tuple[str, ...] = ()
        self._gateway = gateway
        self._adapt = adapt
        self._started_with = loaded.snapshot.server
        self._loaded = loaded
        self._broken = broken
        self._known = loaded.sources if broken is None else broken.sources
        self._kept_local = local_keys(loaded.snapshot.clients)  # since the start, or the last confirmed opening
        self._lock = asyncio.Lock()
        self._opened = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._requested: set[asyncio.Task[None]] = set()

    # -- life -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to watch, for changes since the file was loaded."""
        self._opened.set()
        if self._broken is not None:
            self._refuse(self._broken)
        else:
            self._keep()
        if self.path.exists() and not self.path.is_file():
            log.warning("%s is not a regular file and cannot be watched: edits need a restart", self.path)
            return
        self._watching = self._gateway.metrics.failures.task("reload", self._watch, f"watching {self.path}")

    async def close(self) -> None:
        await cancel(*self._requested, self._watching)

    def ask(self) -> None:
        """Reload soon (SIGHUP), at the earliest when the gateway is open."""
        task = self._gateway.metrics.failures.once("reload", self._try(), "reload")
        self._requested.add(task)
        task.add_done_callback(self._requested.discard)

    async def _watch(self) -> None:
        """Restarts after every failure, so that edits are noticed as long as the gateway runs."""
        while True:
            try:
                async with aclosing(edits(lambda: self._known)) as noticed:
                    async for _ in noticed:
                        await self._try()
            except Exception as error:
                if not self._lacks_resource(error):
                    self._gateway.metrics.failures.note("reload", f"the watch on {self.path}")
                await asyncio.sleep(RETRY)

    async def _try(self) -> None:
        await self._opened.wait()
        while True:
            try:
                await self.reload()
            except Exception as error:
                if self._lacks_resource(error):
                    await asyncio.sleep(RETRY)
                    continue
                if not isinstance(error, ConfigError):  # reported already
                    self._gateway.metrics.failures.note("reload", f"loading {self.path}")
                    self._known = await asyncio.to_thread(look, tuple(self._known))  # not again before the next edit
            return

    def _lacks_resource(self, error: Exception) -> bool:
        """Could the file not be read because the process lacks a resource? That is temporary, and not the file's
        fault."""
        kind = error.kind if isinstance(error, NotRead) else shortage_of(error)
        if kind is None:
            return False
        log.warning("%s could not be read and is tried again: %s", self.path, error)
        self._gateway.short_of(kind)
        return True

    # -- one reload -----------------------------------------------------------------------------------------------

    async def reload(self, *, may_open: bool = False) -> FileVersion:
        """Read the file and put it in force. Raises `ConfigError` (already reported, nothing is changed) when it is not
        valid, or would open the gateway to more callers without `may_open`; `NotRead` when the process lacks a resource
        to read it."""
        async with self._lock:
            try:
                loaded = await self._load(may_open)
            except NotRead:
                raise
            except ConfigError as error:
                self._refuse(error)
                raise
            return await self._apply(loaded, may_open)

    async def _load(self, may_open: bool) -> LoadedFile:
        """Read the file, and once more after mistakes: it may be half written."""
        try:
            return await self._read(may_open)
        except ConfigError:
            await asyncio.sleep(REREAD)
            return await self._read(may_open)

    async def _read(self, may_open: bool) -> LoadedFile:
        """Read the file in a thread, because a long file takes a while to parse."""
        loaded = await asyncio.to_thread(load, self.path)
        clients = loaded.snapshot.clients
        found = openings(self._loaded.snapshot.clients, clients, self._kept_local, str(self.path), loaded.lines)
        if found and not may_open:
            error = ConfigError(found)
            error.sources = loaded.sources
            raise error
        return loaded

    async def _apply(self, loaded: LoadedFile, may_open: bool) -> FileVersion:
        before, after = self._loaded.snapshot, loaded.snapshot
        snapshot = after if self._adapt is None else await self._adapt(after)
        await self._gateway.put_in_force(replace(snapshot, server=self._gateway.snapshot.server))
        found = changes(before, after)
        restart = needs_restart(self._started_with, after.server)
        for key in needs_restart(before.server, after.server):  # an edit can go back to the value that is in force
            found.append(f"~ {key} ({'waits for a restart' if key in restart else 'as the gateway runs'})")
        warnings = [str(warning) for warning in loaded.warnings]
        news = [warning for warning in warnings if warning not in {str(w) for w in self._loaded.warnings}]
        applied = FileVersion(time.time(), tuple(found), tuple(restart), tuple(warnings))
        self._loaded, self._known = loaded, loaded.sources
        self._kept_local = local_keys(after.clients) | (frozenset() if may_open else self._kept_local)
        self.loaded_at, self.refused_at, self.problems, self.restart = applied.at, None, (), applied.restart
        self._keep()
        self._report(applied, news)
        return applied

    def _keep(self) -> None:
        """Keep the file for a restart that finds a broken one."""
        data = Path(self._gateway.snapshot.server.data)
        keeping = asyncio.to_thread(keep_last_good, self.path, self._loaded.text, data)
        task = self._gateway.metrics.failures.once("reload", keeping, f"keeping the last good {self.path}")
        self._requested.add(task)
        task.add_done_callback(self._requested.discard)

    def _report(self, applied: FileVersion, news: Iterable[str]) -> None:
        what = listed(applied.changes, LOGGED_MOST) or "nothing has changed"
        log.info("%s was read and is in force: %s", self.path, what)
        for warning in news:
            log.warning("%s", warning)
        if applied.restart:
            log.warning("restart the gateway for %s: until then the old value counts", ", ".join(applied.restart))
        self._gateway.metrics.reloads.inc("taken" if applied.changes else "unchanged")
        self._gateway.refused_edit = None
        self._gateway.emit(Event(applied.at, "config", "", what, after="taken"))

    def _refuse(self, error: ConfigError) -> None:
        self.problems = error.problems
        self.refused_at = time.time()
        self._known = error.sources
        log.error("%s is not valid, what was before stays in force:\n%s", self.path, error)
        self._gateway.metrics.reloads.inc("refused")
        what = listed([str(problem) for problem in error.problems], ALERTED_MOST)
        self._gateway.refused_edit = what
        self._gateway.emit(Event(self.refused_at, "config", "", what, after="refused"))

    # -- status ---------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """`{path, loaded_at, error, refused_at, restart, warnings}` for `/status`; times in Unix seconds. `error`: the
        mistakes of the present file, a line each; None = it is in force."""
        return {
            "path": str(self.path),
            "loaded_at": self.loaded_at,
            "error": "\n".join(str(problem) for problem in self.problems) if self.refused_at is not None else None,
            "refused_at": self.refused_at,
            "restart": list(self.restart),
            "warnings": [str(warning) for warning in self._loaded.warnings],
        }


def listed(lines: Iterable[str], most: int) -> str:
    """At most `most` of the lines, joined to one."""
    lines = list(lines)
    more = len(lines) - most
    return "; ".join(lines[:most]) + (f"; and {more} more" if more > 0 else "")
