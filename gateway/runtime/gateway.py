"""The objects of one gateway process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import Metric

from gateway import __version__
from gateway.accounting.accounts import Accounts, today
from gateway.accounting.budgets import shares
from gateway.accounting.record import Settler
from gateway.admission.memory import Memory
from gateway.admission.slots import Admission
from gateway.config.load import LoadedFile
from gateway.config.modes import in_mode
from gateway.config.problems import ConfigError
from gateway.config.snapshot import Alerts, Backend, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import Endpoint
from gateway.domain.events import KEPT, Event
from gateway.domain.fleet import Fleet
from gateway.domain.health_state import State, Transition
from gateway.domain.request_timer import Pulse
from gateway.domain.upstream import UpstreamClient
from gateway.engines.registry import ENGINES
from gateway.health.prober import Prober
from gateway.metrics.registry import Metrics
from gateway.observe.gauges import (
    ScrapedMetrics,
    alias_metrics,
    backend_metrics,
    counter,
    engine_metrics,
    gauge,
    node_metrics,
)
from gateway.observe.log import LogWriter
from gateway.proxy.active import ActiveRequests
from gateway.proxy.exchange import Exchange
from gateway.proxy.handler import RequestHandler
from gateway.proxy.inner_exchange import OnBehalf
from gateway.proxy.sent_ids import SentIds
from gateway.proxy.services import DecidesAhead, Services
from gateway.routing.alias_status import AliasStatusTracker
from gateway.routing.culprits import Culprits
from gateway.runtime.apps import Apps, SharedFleet
from gateway.runtime.chosen_mode import ChosenMode, ModeChoice
from gateway.runtime.reload import Adapt, Reloader
from gateway.shortage import Kind
from gateway.transport.h1 import open_client

log = logging.getLogger("gateway")

LOOK_AFTER = 0.05  # seconds from a change of state until the aliases are looked at
SHORT_FOR = 60.0  # seconds after the last shortage until it counts as over
_LOUD = frozenset({State.SUSPECT, State.DOWN, State.MISCONFIGURED})


class Gateway:
    """The snapshot in force, the fleet, what requests use (`services`); handed down, never global. `snapshot` is the
    file's; what is in force is that snapshot in the mode in force."""

    def __init__(self, snapshot: Snapshot, decides_ahead: DecidesAhead = "repeated") -> None:
        self.written = snapshot
        self._putting = asyncio.Lock()  # one change of what is in force at a time
        self._loop: asyncio.AbstractEventLoop | None = None  # None until the gateway is open
        self.chosen_mode = ChosenMode(Path(snapshot.server.data))
        self.metrics = Metrics()
        failures = self.metrics.failures
        pulse = Pulse(failures)
        self.active = ActiveRequests()
        self.accounts = Accounts(snapshot.server.data, failures)
        self.fleet = Fleet(open_backend, failures)
        observers = self.fleet.observers
        observers.transitions.append(self._transition)
        observers.gone.append(self.active.leave_closed)
        observers.stalled.append(self.active.leave_stalled)
        observers.mute.append(self.active.leave_mute)
        observers.silent.append(self.active.leave_silent)
        observers.restarted.append(self._restarted)
        observers.closed.append(self._closed)
        self.events: deque[Event] = deque(maxlen=KEPT)  # the latest is the last
        self.on_event: list[Callable[[Event], None]] = []  # called with each; must not block, nor raise
        self.admission = Admission(self.metrics)
        self.prober = Prober(self.fleet, self.active.work_of, self.emit, failures, on_short=self.short_of)
        self.admission.look, self.admission.check = self.prober.look_now, self.prober.hurry
        self.memory = Memory(snapshot.server.memory, lambda: self.short_of("budget"))
        self.log: LogWriter | None = None  # see `write_log`
        self.started = time.time()
        self.stopping = False
        self.refused_edit: str | None = None  # the mistakes of the present routes.yaml; None = it is in force
        self._short: dict[Kind, float] = {}  # what the process has lacked -> when last (monotonic seconds)
        self._preparing: dict[str, asyncio.Task[None]] = {}  # engine -> the task that prepares it
        self._following: set[asyncio.Task[None]] = set()  # the choices of other gateways
        self.alias_status = AliasStatusTracker(lambda: self.snapshot, lambda: self.fleet.states)
        self.on_event.append(lambda _: self._look_soon())
        self.services = Services(
            snapshot=in_mode(snapshot, None),
            fleet=self.fleet,
            metrics=self.metrics,
            accounts=self.accounts,
            settler=Settler(self.accounts, self.metrics, self.alias_status.spent),
            admission=self.admission,
            prober=self.prober,
            culprits=Culprits(),
            pulse=pulse,
            active=self.active,
            sent_ids=SentIds(among_others=snapshot.server.shared is not None),
            on_short=self.short_of,
            decides_ahead=decides_ahead,
        )
        self.shared: SharedFleet | None = None  # None = no other gateways share the fleet; set by the app `cluster`
        self.apps = Apps(self)
        if snapshot.server.shared is not None and self.shared is None:
            raise RuntimeError("routes.yaml has `server.shared`, and this gateway has no folder gateway/apps/cluster")
        self.reloader: Reloader | None = None  # None = the snapshot is not from a file; see `follow`
        self.metrics.registry.register(ScrapedMetrics(self._scraped))

    async def handle(self, endpoint: Endpoint, exchange: Exchange, on_behalf: OnBehalf) -> None:
        """Run a request that the gateway makes itself for a client."""
        await RequestHandler(self.services, endpoint, exchange, on_behalf).run()

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot in force."""
        return self.services.snapshot

    @snapshot.setter
    def snapshot(self, snapshot: Snapshot) -> None:
        self.services.snapshot = snapshot

    def write_log(self, log: LogWriter) -> None:
        """Write a line into this log for each finished request from now on."""
        self.log = log
        log.failures = self.metrics.failures
        if log.requests:
            self.services.line_observers.append(log.put)

    def follow(
        self, path: Path, loaded: LoadedFile, adapt: Adapt | None = None, broken: ConfigError | None = None
    ) -> None:
        """Reload the file at `path` whenever it is edited, from `open` on. The arguments are those of `Reloader`."""
        self.reloader = Reloader(self, path, loaded, adapt, broken)

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self._putting:
            await self._open()
        await self.apps.open()  # may put a mode in force, so outside the lock
        asked = {
            "alerts": self.snapshot.alerts != Alerts(),
            "control": any(backend.run == "on_request" for backend in self.snapshot.backends.values()),
            "tracing": self.snapshot.traces is not None,
        }
        for app, wanted in asked.items():
            if wanted and not hasattr(self.apps, app):
                log.warning("routes.yaml asks for %s, and this gateway has no folder gateway/apps/%s", app, app)

    async def _open(self) -> None:
        if self.written.modes:
            await self.chosen_mode.open()
        self.snapshot = in_mode(self.written, self.chosen_mode.name)
        self.fleet.apply(self.snapshot)
        self._prepare_engines(self.snapshot)
        await self.accounts.open()
        if self.shared is not None:
            if (choice := self.chosen_mode.choice) is not None:
                self.shared.publish_mode(choice.mode, choice.at)
            await self.shared.open()
            self.snapshot = in_mode(self.written, self.chosen_mode.name)  # the others may have chosen another one
            self.fleet.apply(self.snapshot)
        await self.prober.start(self.snapshot)
        if self.snapshot.mode is not None:
            log.info("mode '%s' is in force", self.snapshot.mode)
        if (missing := self.chosen_mode.missing_in(self.written)) is not None:
            log.warning("%s", missing)
        if self.reloader is not None:
            self.reloader.open()

    def _prepare_engines(self, snapshot: Snapshot) -> None:
        """Prepare engines in the background: litellm takes seconds, and its backends are mostly the last step of a
        chain."""
        used = {backend.engine for backend in snapshot.backends.values()} & ENGINES.keys()
        for name in used - self._preparing.keys():
            self._preparing[name] = self.metrics.failures.once("engine", ENGINES[name].prepare(), f"prepare {name}")

    async def put_in_force(self, snapshot: Snapshot) -> None:
        """Put another snapshot of the file in force, in the mode that was chosen. New backends are probed first, so
        that requests find their state known; then everything changes at once. Requests under way keep the snapshot
        that they began with."""
        async with self._putting:
            if snapshot.modes and not self.written.modes:
                await self.chosen_mode.open()
            await self.chosen_mode.follow_edit(self.written, snapshot)
            self.written = snapshot
            await self._put_in_force(self.chosen_mode.missing_in(snapshot) or "routes.yaml was edited")

    async def put_mode_in_force(self, name: str) -> None:
        """Choose the mode of this name, here and at the other gateways, and put it in force. Nothing is started or
        stopped. Backends that it does not contain are parked: requests under way there end by themselves. Raises
        `KeyError` if routes.yaml has no such mode."""
        async with self._putting:
            if name not in self.written.modes:
                raise KeyError(name)
            choice = await self.chosen_mode.choose(name)
            if self.shared is not None:
                self.shared.publish_mode(choice.mode, choice.at)
            await self._put_in_force("chosen")

    def chosen_elsewhere(self, name: str, at: float) -> None:
        """Another gateway has chosen this mode, at `at` (Unix ms)."""
        if self.chosen_mode.adopt(ModeChoice(name, at)):
            task = self.metrics.failures.once("shared", self._follow_choice(), "mode of another gateway")
            self._following.add(task)
            task.add_done_callback(self._following.discard)

    async def _follow_choice(self) -> None:
        async with self._putting:
            await self.chosen_mode.save()
            missing = self.chosen_mode.missing_in(self.written)
            if missing is not None:
                log.warning("another gateway has chosen a mode, but %s", missing)
            await self._put_in_force(missing or "chosen at another gateway")

    async def _put_in_force(self, why: str) -> None:
        """Put the file's snapshot in force, in the chosen mode. `why`: the reason if that is another mode."""
        snapshot, before = in_mode(self.written, self.chosen_mode.name), self.snapshot.mode
        await self.apps.follow(snapshot)
        await self.prober.meet(self.fleet.prepare(snapshot))
        self._prepare_engines(snapshot)
        gone = self.fleet.apply(snapshot)
        self.snapshot = snapshot
        self.prober.follow_fleet(snapshot)
        for state in gone:
            self.admission.changed(state)
        self._drop_old_series()
        if snapshot.mode != before:
            log.info("mode '%s' is in force instead of '%s': %s", snapshot.mode or "", before or "", why)
            self.emit(Event(time.time(), "mode", "", why, before or "", snapshot.mode or ""))
        self.alias_status.look()

    async def close(self) -> None:
        """Close part after part. One that fails keeps none of the others from writing what it holds."""
        first = (self.reloader, *self.apps.parts)
        await self.metrics.failures.close(*first)
        for task in (*self._preparing.values(), *self._following):
            task.cancel()
        parts = (self.prober.suspicion, self.prober, self.shared, self.fleet, self.accounts)
        await self.metrics.failures.close(*parts)

    def budget_shares(self) -> dict[str, float]:
        """Name of a budget -> share that is spent."""
        return shares(self.snapshot, self.accounts.budgets, today())

    def failed_parts(self) -> dict[str, int]:
        """Part of the gateway -> number of its failures."""
        return {part: count.value for (part,), count in list(self.metrics.internal_failures.items())}

    def short_of(self, kind: Kind) -> None:
        """This process itself has just lacked a resource."""
        self.metrics.shortages.inc(kind)
        self._short[kind] = time.monotonic()

    @property
    def short(self) -> tuple[Kind, ...]:
        """The resources that it has lacked in the last SHORT_FOR seconds."""
        since = time.monotonic() - SHORT_FOR
        return tuple(sorted(kind for kind, at in self._short.items() if at > since))

    def _lost(self) -> dict[str, int]:
        """Kind of record -> how many were dropped because they could not be written."""
        log_lines = self.log.lost if self.log is not None else 0
        return {"ledger": self.accounts.ledger.lost, "log": log_lines, **self.apps.lost()}

    def _scraped(self) -> Iterator[Metric]:
        """What Prometheus reads of the present state."""
        states, snapshot, memory = self.fleet.states, self.snapshot, self.memory
        yield from backend_metrics(states, self.alias_status, self.admission.queue_depth())
        yield from engine_metrics(states)
        yield from node_metrics(self.prober.machines)
        yield from alias_metrics(self.alias_status)
        yield gauge("gateway_build_info", "1; the version that runs", "version", [((__version__,), 1)])
        valid = [((), self.refused_edit is None)]
        yield gauge("gateway_config_valid", "1 while routes.yaml as it is now is in force", rows=valid)
        connections = [((), self.metrics.open_connections.value)]
        yield gauge("gateway_connections", "Connections of clients that are open", rows=connections)
        spent = (((name,), share) for name, share in self.budget_shares().items())
        yield gauge("gateway_budget_spent_ratio", "Share of a budget that is spent", "budget", spent)
        lost = (((kind,), count) for kind, count in self._lost().items())
        yield counter("gateway_records_lost_total", "Records given up because nobody took them", "kind", lost)
        modes = (((name,), name == snapshot.mode) for name in snapshot.modes)
        yield gauge("gateway_mode", "1 for the mode in force", "mode", modes)
        held = "Bytes of request bodies and whole answers that are held"
        yield gauge("gateway_memory_bytes", held, rows=[((), memory.used)])
        bound = "Bytes of them that may be held; without a bound left out"
        limit = [((), memory.limit)] if memory.limit is not None else []
        yield gauge("gateway_memory_limit_bytes", bound, rows=limit)

    def begin_stop(self) -> None:
        """Begin to stop: the gateway is no longer ready, and running requests have `server.shutdown` seconds to end."""
        if self.stopping:
            return
        self.stopping = True
        self.apps.begin_stop()
        asyncio.get_running_loop().call_later(self.snapshot.server.shutdown, self.active.interrupt_all)

    def _restarted(self, state: BackendState) -> None:
        """Its prefix cache is empty now, and that of the adapters on the same engine."""
        for one in (state, *state.siblings):
            self.services.placements.forget(one.name)

    def _closed(self, state: BackendState) -> None:
        """The backend was removed from routes.yaml, and its last request has ended."""
        self.admission.forget(state)
        self.services.placements.forget(state.name)
        self._drop_old_series()

    def _drop_old_series(self) -> None:
        """Drop metrics of names that are neither in routes.yaml nor of removed backends that still run requests."""
        snapshot, retired = self.snapshot, self.fleet.retired.values()
        backends = {*snapshot.backends, *(state.name for state in retired)}
        self.metrics.keep(backend=backends, alias=snapshot.aliases, client=snapshot.clients_by_owner)

    def _transition(self, transition: Transition) -> None:
        before, after = transition.before, transition.after
        words = transition.backend, before.value, after.value, transition.reason
        log.log(logging.WARNING if after in _LOUD else logging.INFO, "%s: %s -> %s: %s", *words)
        self.metrics.transitions.inc(transition.backend, after.value)
        self.emit(Event(time.time(), "state", transition.backend, transition.reason, before.value, after.value))
        state = self.fleet.states.get(transition.backend)
        if state is not None:
            self.admission.changed(state)

    def _look_soon(self) -> None:
        """Have the aliases looked at when the answers at hand are sent: with many aliases that takes milliseconds, for
        which the answer of a failover is not to wait."""
        if not self.alias_status.stale:
            self.alias_status.stale = True
            if self._loop is None:
                self._look()
            else:
                self._loop.call_later(LOOK_AFTER, self._look)

    def _look(self) -> None:
        try:
            if self.alias_status.stale:
                self.alias_status.look()
        except Exception:
            self.metrics.failures.note("status", "a look at the aliases")

    def emit(self, event: Event) -> None:
        """Keep the event, and call the listeners."""
        self.events.append(event)
        for listener in self.on_event:
            listener(event)


def open_backend(backend: Backend) -> UpstreamClient | None:
    """The HTTP client of one backend; None for an engine that has its own connections (litellm)."""
    if backend.url is None:
        return None
    return open_client(backend.origin, connect_timeout=backend.timeouts.connect)
