"""What one gateway process is made of."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.accounting.accounts import Accounts, today
from gateway.accounting.spending import shares
from gateway.admission.memory import Memory
from gateway.admission.waiting import Admission
from gateway.config.snapshot import Backend, Snapshot, Traces
from gateway.domain.backend import BackendState
from gateway.domain.events import KEPT, Event
from gateway.domain.fleet import Fleet
from gateway.domain.health_state import State, Transition
from gateway.domain.progress import IDLE, Work
from gateway.domain.reason import kind_of
from gateway.domain.request_timer import Pulse, Stopping
from gateway.domain.upstream import Client, ResetFailure, SilenceFailure
from gateway.engines.registry import ENGINES
from gateway.health.prober import Prober
from gateway.metrics.registry import Metrics
from gateway.observe.alerter import Alerter
from gateway.observe.gauges import AliasCollector, BackendCollector, GatewayCollector, MemoryCollector, SharedCollector
from gateway.observe.history import History
from gateway.observe.usage_report import UsageReport
from gateway.routing.alias_status import Standing
from gateway.routing.culprits import Culprits
from gateway.shortage import Kind
from gateway.supervision import Failures
from gateway.transport.connect import open_client

if TYPE_CHECKING:
    from gateway.cluster.gateways import Gateways
    from gateway.observe.log_writer import LogWriter
    from gateway.observe.traces import Tracing
    from gateway.runtime.reload import Reloader

log = logging.getLogger("gateway")

_LOUD = frozenset({State.SUSPECT, State.DOWN, State.MISCONFIGURED})


class Gateway:
    """The snapshot in force, the fleet, the requests under way; handed down, never global."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.metrics = Metrics()
        failures = self.metrics.failures
        self.accounts = Accounts(snapshot.server.data, failures)
        self.fleet = Fleet(open_backend, self._transition, self._gone, self._stalled, self._closed, failures)
        self.events: deque[Event] = deque(maxlen=KEPT)  # the latest last
        self.on_event: list[Callable[[Event], None]] = []  # called with each; must not block, nor raise
        self.admission = Admission(self.metrics)
        self.prober = Prober(self.fleet, self._work, self.emit, failures, on_short=self.short_of)
        self.culprits = Culprits()
        self.pulse = Pulse(failures)
        self.memory = Memory(snapshot.server.memory, lambda: self.short_of("budget"))
        self.tracing: Tracing | None = None
        self.log: LogWriter | None = None  # gets a line for each request; the command that runs us sets it
        self.active: set[Any] = set()  # the requests under way (relay.Relay, which knows us: not the other way round)
        self.started = time.time()
        self.stopping = False
        self._turns: dict[str, int] = {}
        self._preparing: dict[str, asyncio.Task[None]] = {}  # engine -> what makes it ready
        self._stop_timer: asyncio.TimerHandle | None = None
        self.standing = Standing(lambda: self.snapshot, lambda: self.fleet.states)
        self.on_event.append(lambda _: self.standing.look())
        self.shared: Gateways | None = None  # the others in front of the same fleet
        if snapshot.server.shared is not None:
            from gateway.cluster.gateways import Gateways

            parts = self.fleet, self.admission.scheduler, self.accounts, self.prober, self.emit
            self.shared = Gateways(snapshot.server.shared, Path(snapshot.server.data), *parts, failures)
        self.history = History(
            lambda: self.fleet.states, lambda: self.prober.machines, self.admission.queue_depth, self.metrics
        )
        self.usage = UsageReport(self.accounts.ledger.path, failures)
        self.alerter = Alerter(self.standing, self._budgets, failed=self._failed, failures=failures)
        self.reloader: Reloader | None = None  # of one that was started from a file
        self._register_gauges()

    async def open(self) -> None:
        self.fleet.apply(self.snapshot)
        await self.apply_traces()
        self._prepare_engines(self.snapshot)
        await self.accounts.open()
        if self.shared is not None:
            await self.shared.open()
        await self.prober.start(self.snapshot)
        self.alerter.open()
        self.history.open()
        if self.reloader is not None:
            self.reloader.open()

    def _prepare_engines(self, snapshot: Snapshot) -> None:
        """Not waited for: litellm's takes seconds, and its backends are mostly the last step of a chain."""
        used = {backend.engine for backend in snapshot.backends.values()} & ENGINES.keys()
        for name in used - self._preparing.keys():
            self._preparing[name] = self.metrics.failures.once("engine", ENGINES[name].prepare(), f"prepare {name}")

    async def take(self, snapshot: Snapshot) -> None:
        """Put another snapshot in force. Backends that are new are looked at first, so that requests find them known;
        then everything changes at once. Requests under way stay with the snapshot that they began with."""
        await self.prober.meet(self.fleet.prepare(snapshot))
        self._prepare_engines(snapshot)
        gone = self.fleet.apply(snapshot)
        self.snapshot = snapshot
        self.prober.follow_fleet(snapshot)
        for state in gone:
            self.admission.changed(state)
        self._forget_names()
        self.standing.look()
        await self.apply_traces()

    async def close(self) -> None:
        if self.reloader is not None:
            await self.reloader.close()
        for task in self._preparing.values():
            task.cancel()
        await self.history.close()
        await self.alerter.close()
        await self.prober.suspicion.close()
        await self.prober.close()
        if self.shared is not None:
            await self.shared.close()
        await self.fleet.close()
        await self.accounts.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    async def apply_traces(self) -> None:
        """Trace as the snapshot in force says; OpenTelemetry is loaded only where it says so."""
        settings, before = self.snapshot.traces, self.tracing
        if before is not None and before.settings == settings:
            return
        failures = self.metrics.failures
        self.tracing = await asyncio.to_thread(_tracing, settings, failures) if settings is not None else None
        if before is not None:
            await asyncio.to_thread(before.close)

    def next_turn(self, alias: str) -> int:
        """How many requests of this alias came before: what round robin turns on."""
        turn = self._turns.get(alias, 0)
        self._turns[alias] = turn + 1
        return turn

    def _budgets(self) -> dict[str, float]:
        """Share of each budget that is spent."""
        return shares(self.snapshot, self.accounts.budgets, today())

    def _failed(self) -> dict[str, int]:
        """How often each part of the gateway itself has failed."""
        return {part: count.value for (part,), count in list(self.metrics.internal_failures.items())}

    def short_of(self, kind: Kind) -> None:
        """This process itself has just lacked something: counted, and told where it lasts."""
        self.metrics.shortages.inc(kind)
        self.alerter.short_of(kind)

    def _lost(self) -> dict[str, int]:
        """Records that were given up because nobody took them, by kind."""
        log_lines = self.log.lost if self.log is not None else 0
        spans = self.tracing.exporter.lost if self.tracing is not None else 0
        return {"ledger": self.accounts.ledger.lost, "log": log_lines, "spans": spans}

    def _register_gauges(self) -> None:
        metrics, registry = self.metrics, self.metrics.registry
        registry.register(BackendCollector(self.fleet, self.standing, self.admission.queue_depth))
        registry.register(AliasCollector(self.standing))
        valid, connections = lambda: self.alerter.refused is None, lambda: metrics.open_connections.value
        registry.register(GatewayCollector(self._budgets, self._lost, valid, connections))
        registry.register(MemoryCollector(self.memory))
        registry.register(SharedCollector(self.shared, self.fleet))

    def begin_stop(self) -> None:
        """Not ready any more; what runs has `server.shutdown` to end by itself."""
        if self.stopping:
            return
        self.stopping = True
        loop = asyncio.get_running_loop()
        self._stop_timer = loop.call_later(self.snapshot.server.shutdown, self.interrupt_all)

    def interrupt_all(self) -> None:
        for relay in list(self.active):
            relay.watch.interrupt(Stopping())

    def _gone(self, state: BackendState) -> None:
        """Its port is closed. A stopping vLLM may leave its sockets open and say nothing more for minutes: what has
        heard nothing since is ended here, and goes on elsewhere where it can."""
        for relay in list(self.active):
            watch = relay.watch
            if relay.trying is state and watch.heard < state.refused_since and not watch.writing:
                watch.interrupt(ResetFailure("silent, and its port is closed"))

    def _closed(self, state: BackendState) -> None:
        """It was taken out of routes.yaml, and all that ran there has ended."""
        self.admission.forget(state)
        self._forget_names()

    def _forget_names(self) -> None:
        """Metrics speak of what is in routes.yaml, and of what was taken out and still runs."""
        snapshot, retired = self.snapshot, self.fleet.retired.values()
        backends = {*snapshot.backends, *(state.name for state in retired)}
        self.metrics.keep(backend=backends, alias=snapshot.aliases, client=snapshot.clients)

    def _stalled(self, state: BackendState) -> None:
        """Its engine stands still. Who waits for it is ended here, and goes on elsewhere where it can."""
        for relay in list(self.active):
            if relay.trying is state and not relay.watch.writing:
                relay.watch.interrupt(SilenceFailure(kind_of(state.health.reason)))

    def _work(self, state: BackendState) -> Work:
        """Our requests there, as evidence that its engine ought to move."""
        if not state.inflight:
            return IDLE
        waiting = unspoken = tokens = 0
        since, newest = time.monotonic(), 0.0
        idle = state.backend.timeouts.idle
        for relay in self.active:
            watch = relay.watch
            if relay.trying is not state or watch.writing:
                continue  # one whose client does not read says nothing of its engine
            waiting += 1
            since = min(since, watch.heard)
            if watch.budget != idle:  # it waits for its first token; from then on the idle timeout is its budget
                unspoken += 1
                newest = max(newest, watch.heard)
                tokens += state.ratio.probably(relay.request.prompt_bytes)
        return Work(waiting, since, newest, unspoken, tokens, state.inflight, state.last_event)

    def _transition(self, transition: Transition) -> None:
        before, after = transition.before, transition.after
        log.log(logging.WARNING if after in _LOUD else logging.INFO, "%s: %s -> %s: %s", *_words(transition))
        self.metrics.transitions.inc(transition.backend, after.value)
        self.emit(Event(time.time(), "state", transition.backend, transition.reason, before.value, after.value))
        state = self.fleet.states.get(transition.backend)
        if state is not None:
            self.admission.changed(state)

    def emit(self, event: Event) -> None:
        """Keep it, and tell those who listen."""
        self.events.append(event)
        for listener in self.on_event:
            listener(event)


def _words(transition: Transition) -> tuple[str, str, str, str]:
    return transition.backend, transition.before.value, transition.after.value, transition.reason


def _tracing(settings: Traces, failures: Failures) -> Tracing:
    from gateway.observe.traces import Tracing

    return Tracing(settings, failures)


def open_backend(backend: Backend) -> Client | None:
    """The connections of one backend; None for an engine that brings its own (litellm)."""
    if backend.url is None:
        return None
    return open_client(backend.origin, connect_timeout=backend.timeouts.connect)
