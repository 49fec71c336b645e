"""Starts parked backends for requests, one at a time, and stops those that are idle for `stop_after`.

`decide` (fleet/starting.py) says whether; the steps run as an operation, so that a start by a request is seen like any
other. Requests for a backend that starts wait, or go elsewhere: routing and admission decide that from its health.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.apps.control.facts import (
    RUNS,
    Demands,
    UseTracker,
    demands_of,
    has_work,
    members_of,
    rooms_of,
    why_unstoppable,
)
from gateway.apps.control.operations import Operations
from gateway.apps.control.record import GAVE_WAY, INTERRUPTED, Cause, Operation
from gateway.apps.control.starting import decide
from gateway.apps.control.switching import Kind, Steps, request_steps, stop_steps
from gateway.apps.control.unit_commands import start_commands
from gateway.config.snapshot import Alias, Client, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.health_state import WELL, StartDecision, State, Transition
from gateway.errors import GatewayError
from gateway.runtime.gateway import Gateway
from gateway.supervision import cancel

LOOK = 1.0  # seconds between two looks at what is idle
PAUSE_FIRST, PAUSE_MOST = 30.0, 3600.0  # seconds after a failed start; each pause is twice the one before
SAVE_EVERY = 5.0  # seconds between two writes of the idle times
BUSY_AGAIN = 0.1  # seconds until an operation is tried again where another one was planned at that moment
STEADY = 60.0  # seconds, at least, that a backend has to run until its failed starts are forgotten


@dataclass(slots=True)
class FailedStarts:
    """Failed starts in a row of one backend. `until`: not started before that (monotonic). `why`: for clients too."""

    count: int = 0
    until: float = 0.0
    why: str = ""


class Starter:
    """Starts and stops as operations, in turn with the other gateways that share the fleet."""

    def __init__(self, gateway: Gateway, operations: Operations) -> None:
        self.look_every = LOOK
        self.use = UseTracker(Path(gateway.snapshot.server.data))
        self.failed: dict[str, FailedStarts] = {}
        self._gateway = gateway
        self._operations = operations
        self._waiting = gateway.admission.queue_depth
        self._shares = gateway.shared is not None
        # Held while this gateway starts or stops what requests start: no other gateway does then.
        self._turn_of_gateways = gateway.shared.operations.turn if gateway.shared is not None else nullcontext
        self._demands: Demands = {}
        self._turn = asyncio.Lock()  # one start or stop at a time
        self._starts: dict[str, asyncio.Task[Any]] = {}  # backend -> its start
        self._stops: dict[str, asyncio.Task[Any]] = {}  # backend -> its stop
        self._left_starting: dict[str, float] = {}  # backends that the last process was starting -> until when
        self._watching: asyncio.Task[None] | None = None
        self._saved = 0.0
        gateway.fleet.observers.transitions.append(self._on_transition)

    # -- life -----------------------------------------------------------------------------------------------------

    async def follow(self, snapshot: Snapshot) -> bool:
        """Another snapshot is about to be in force. False = requests start nothing of it."""
        if all(backend.run != "on_request" for backend in snapshot.backends.values()):
            return False
        self._demands = await asyncio.to_thread(demands_of, snapshot)
        return True

    async def open(self) -> None:
        """Called after the first health checks, and after the latest operation was read. Starts nothing."""
        await asyncio.to_thread(self.use.load)
        latest = self._operations.latest
        if latest is not None and latest.error == INTERRUPTED and latest.cause == "request" and latest.has_started:
            state = self._gateway.fleet.states.get(latest.backend or "")
            if state is not None:  # its engine may be loading
                self._left_starting[state.name] = time.monotonic() + state.backend.health.start_grace
        self._watching = self._gateway.metrics.failures.task("starts", self._watch)

    async def close(self) -> None:
        await cancel(*self._starts.values(), *self._stops.values(), self._watching)
        if self._watching is not None:
            await self._save()

    @property
    def is_busy(self) -> bool:
        """Is something being started or stopped?"""
        return bool(self._starts or self._stops)

    @property
    def unstarted(self) -> dict[str, str]:
        """Backends whose last start has failed -> why."""
        return {name: failed.why for name, failed in self.failed.items()}

    def idle(self, name: str) -> float | None:
        """Seconds for which a backend that requests start has been idle; None = it does not run, or is no such one."""
        idle = self.use.idle(name)
        return None if idle is None else round(idle, 1)

    # -- for requests ---------------------------------------------------------------------------------------------

    def decision(self, state: BackendState, client: Client | None, alias: Alias) -> StartDecision:
        """What a request of this client and alias would cause now."""
        state = state.host or state
        if client is not None and not client.may_start:
            return StartDecision(f"client '{client.name}' may start no backend (clients.{client.name}.may_start)")
        if why := self._why_not_now(state):
            return StartDecision(why, wait=self._pause(state.name) or None)
        return self._decide(state.name, may_stop=not _is_batch(client, alias))

    def begin(self, state: BackendState, client: Client | None, alias: Alias) -> bool:
        """Begin to start the backend, once for all requests. False = it is not started. Returns at once."""
        state = state.host or state
        if state.name in self._starts or self.decision(state, client, alias).refusal:
            return False
        self._left_starting.pop(state.name, None)
        state.evidence.summon("a request starts it")
        work = self._start(state.name, may_stop=not _is_batch(client, alias))
        self._run(self._starts, state.name, work, f"start {state.name} for a request")
        return True

    def _why_not_now(self, state: BackendState) -> str:
        if not start_commands(state.backend, self._gateway.snapshot.nodes):
            return "it has no `start` command"
        if (mode := self._operations.switching_to) is not None:
            return f"nothing is started during the switch to {mode}"
        left = self._pause(state.name)
        return f"{self.failed[state.name].why}; it is started again in {left:.0f} s" if left else ""

    def _pause(self, name: str) -> float:
        """Seconds until a backend whose last start has failed is started again; 0 = no start of it has failed."""
        failed = self.failed.get(name)
        return 0.0 if failed is None else max(0.0, failed.until - time.monotonic())

    def _decide(self, name: str, *, may_stop: bool) -> StartDecision:
        snapshot, states = self._gateway.snapshot, self._gateway.fleet.states
        members = members_of(snapshot, states, self.use, self._waiting())
        if name not in members:
            return StartDecision("it was taken out of routes.yaml")
        rooms = rooms_of(snapshot, self._demands, self._gateway.prober.machines)
        return decide(name, members, rooms, time.time(), may_stop=may_stop)

    # -- starting -------------------------------------------------------------------------------------------------

    def _run(
        self, tasks: dict[str, asyncio.Task[Any]], name: str, work: Coroutine[Any, Any, object], title: str
    ) -> None:
        task = tasks[name] = self._gateway.metrics.failures.once("starts", work, title)
        task.add_done_callback(lambda done: tasks.pop(name) if tasks.get(name) is done else None)

    async def _start(self, name: str, *, may_stop: bool) -> None:
        why = "its start was given up"
        try:
            async with self._turn, self._turn_of_gateways():
                why = await self._start_now(name, may_stop=may_stop)
        finally:
            self._starts.pop(name, None)  # the requests that get this answer may begin another start
            if self._is_summoned(name):
                self._gateway.fleet.states[name].evidence.dismiss(why)

    def _is_summoned(self, name: str) -> bool:
        state = self._gateway.fleet.states.get(name)
        return state is not None and state.health.summoned

    async def _start_now(self, name: str, *, may_stop: bool) -> str:
        """Start it when no other operation runs. Returns why it does not run, where it does not."""
        while True:
            await self._operations.finished()
            if not self._is_summoned(name):
                return ""  # it is ready already, or was drained
            if self._shares and await self._answers(name):
                return await self._until_ready(name)
            decision = self._decide(name, may_stop=may_stop)
            if decision.refusal:
                return decision.refusal
            notes = [f"stops {other}, idle for {idle:.0f} s" for other, idle in decision.stops.items()]
            steps = request_steps(self._gateway.snapshot, name, decision.stops, [*notes, *decision.notes])
            operation = await self._operate("start", name, steps, "request", decision.stops)
            if operation is not None:
                return await self._started(name, operation, decision)

    async def _answers(self, name: str) -> bool:
        """Has another gateway started it since it was last checked here?"""
        state = self._gateway.fleet.states[name]
        await self._gateway.prober.check(state, read_models=True)
        return state.health.oks > 0

    async def _until_ready(self, name: str) -> str:
        """A backend that answers is ready after its canary. Returns why it is not."""
        until = time.monotonic() + self._gateway.fleet.states[name].backend.health.start_grace
        while self._is_summoned(name) and time.monotonic() < until:
            await asyncio.sleep(BUSY_AGAIN)
        return "it answers its health check, and does not become ready"

    async def _started(self, name: str, operation: Operation, decision: StartDecision) -> str:
        """Count how the start has ended. Returns why it does not run."""
        gave_way = operation.error == GAVE_WAY
        self._gateway.metrics.starts.inc(name, "gave_way" if gave_way else operation.state)
        for stopped in decision.stops:
            if _has_stopped(operation, stopped):
                self._gateway.metrics.stops.inc(stopped, "evicted")
        if operation.state == "done" or gave_way:
            return operation.error or ""
        step = next((step.what for step in operation.steps if step.state == "failed"), "start")
        if step == "drain":
            return "what was to give way has a request after all"
        why = self._note_failure(name, f"its start failed (step `{step}`)")
        state = self._gateway.fleet.states.get(name)
        if state is None:
            return why
        state.evidence.dismiss(why)  # requests need not wait for what follows
        if operation.has_started:
            await self._stop_remains(state)
        return why

    def _note_failure(self, name: str, why: str) -> str:
        failed = self.failed.setdefault(name, FailedStarts())
        failed.count += 1
        pause = min(PAUSE_MOST, PAUSE_FIRST * 2.0 ** min(failed.count - 1, 16))
        failed.until, failed.why = time.monotonic() + pause, why
        return why

    async def _stop_remains(self, state: BackendState) -> None:
        """Its start has failed: what is left of it must not keep memory."""
        steps = stop_steps(self._gateway.snapshot, state.name, {})
        steps.steps = [step for step in steps.steps if step.what == "stop" and not step.skip]
        if steps.steps:
            while not await self._stop(state.name, steps, "request", "failed_start"):
                await self._operations.finished()

    # -- stopping -------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.look_every)
            self.look()
            if self.use.changed and time.monotonic() - self._saved >= SAVE_EVERY:
                await self._save()

    async def _save(self) -> None:
        self._saved = time.monotonic()
        await asyncio.to_thread(self.use.save, self.use.encode())

    def look(self) -> None:
        """Note which backends have work, and begin to stop those that are idle for `stop_after`."""
        snapshot, states, waiting = self._gateway.snapshot, self._of_requests(), self._waiting()
        self.use.look(states, waiting)
        for name in self.failed.keys() - {state.name for state in states}:
            del self.failed[name]
        for state in states:
            self._look_after_restart(state)
            if self._has_been_steady(state):
                self.failed.pop(state.name, None)
            is_idle = state.name not in self._stops and self._is_idle(state, waiting)
            if is_idle and not why_unstoppable(snapshot, state.backend):
                self._run(self._stops, state.name, self._stop_idle(state), f"stop {state.name}, which is idle")

    def _of_requests(self) -> list[BackendState]:
        return [
            state
            for state in self._gateway.fleet.states.values()
            if state.backend.run == "on_request" and state.host is None
        ]

    def _look_after_restart(self, state: BackendState) -> None:
        """A backend that the last process was starting: its engine may be loading, and has `start_grace` for it."""
        until = self._left_starting.get(state.name)
        if until is None:
            return
        if state.health.startable and time.monotonic() < until:
            state.evidence.summon("was being started when the gateway ended")
        if state.health.state in WELL or time.monotonic() >= until:
            del self._left_starting[state.name]
            if state.health.summoned:
                state.evidence.dismiss("its start was interrupted, and it does not answer")

    def _has_been_steady(self, state: BackendState) -> bool:
        known = self.use.known.get(state.name)
        return known is not None and time.time() - known.ran_since >= max(STEADY, state.backend.min_run)

    def _on_transition(self, transition: Transition) -> None:
        """An engine that ends soon after its start has not started well."""
        state = self._gateway.fleet.states.get(transition.backend)
        if state is None or state.backend.run != "on_request" or transition.before not in RUNS:
            return
        if transition.after is State.PARKED and not state.health.outside and not self._has_been_steady(state):
            self._note_failure(state.name, "it ended by itself soon after its start")

    def _is_idle(self, state: BackendState, waiting: Mapping[str, int]) -> bool:
        after, idle = state.backend.stop_after, self.use.idle(state.name)
        is_due = after is not None and idle is not None and idle >= after
        return is_due and state.health.state in RUNS and not has_work(state, waiting)

    async def _stop_idle(self, state: BackendState) -> None:
        """It is looked at again when its turn has come: it may have had a request meanwhile."""
        async with self._turn, self._turn_of_gateways():
            while True:
                await self._operations.finished()
                waiting = self._waiting()
                self.use.look(self._of_requests(), waiting)
                if not self._is_idle(state, waiting):
                    return
                steps = stop_steps(self._gateway.snapshot, state.name, {})
                if await self._stop(state.name, steps, "idle", "idle"):
                    return

    async def _stop(self, name: str, steps: Steps, cause: Cause, reason: str) -> bool:
        """Run these steps, and wait for their end. False = another operation was faster."""
        operation = await self._operate("stop", name, steps, cause, [name])
        if operation is not None and operation.state == "done":
            self._gateway.metrics.stops.inc(name, reason)
        return operation is not None

    async def _operate(
        self, kind: Kind, name: str, steps: Steps, cause: Cause, stops: Iterable[str]
    ) -> Operation | None:
        """Run an operation, and wait for its end; None = another one was faster. From now on no request is sent to
        those of `stops`: they have been found idle."""
        states = self._gateway.fleet.states
        drained = [states[stop] for stop in stops if stop in states and states[stop].health.state in RUNS]
        for state in drained:
            state.evidence.drain(reason="is about to be stopped by the gateway")
        operation: Operation | None = None
        try:
            operation = await self._operations.begin_unasked(kind, name, steps, cause)
            await self._operations.finished()
        except GatewayError as error:
            if error.code != "operation_running":
                raise
            await asyncio.sleep(BUSY_AGAIN)
        finally:
            for state in drained:
                if operation is None or not _has_stopped(operation, state.name):
                    state.evidence.resume()
        return operation


def _has_stopped(operation: Operation, name: str) -> bool:
    return any((step.backend, step.what, step.state) == (name, "stop", "done") for step in operation.steps)


def _is_batch(client: Client | None, alias: Alias) -> bool:
    return ((client.priority if client is not None else None) or alias.priority) == "batch"
