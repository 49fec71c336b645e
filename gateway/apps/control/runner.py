"""Runs the steps of one operation.

What the operation needs of routes.yaml (commands, nodes) is that of the moment when it began: an edit in between
changes nothing of it, except that a backend that was taken out is not waited for. A step that fails ends the operation;
backends that were drained and not stopped serve again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

from gateway.apps.control.command import problem_of
from gateway.apps.control.lanes import run_lanes
from gateway.apps.control.record import Operation, Step
from gateway.apps.control.switching import LOADS, PlannedStep, Steps
from gateway.apps.control.troubles import StartWatch
from gateway.apps.control.unit_commands import (
    SSH,
    Command,
    Unit,
    stop_commands,
    units_of,
)
from gateway.apps.control.units import RUNS, look, run_ordered, tell_nodes
from gateway.config.snapshot import Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.health_state import WELL, State, Transition
from gateway.runtime.gateway import Gateway

LOOK = 0.1  # seconds between two looks whether the requests of a drained backend have ended
_OF_A_START = ("preflight", "start", "wait", "resume")
PROOF = 0.5  # seconds between two looks whether a unit has stopped
GONE = "was taken out of routes.yaml while this ran"


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Seconds for one command. `start` None = the backend's `health.start_grace`, which is also how long it may take
    until it serves. `watch`: between two looks at a unit that is waited for. `park`: for telling a node the mode."""

    stop: float = 300.0
    start: float | None = None
    watch: float = 5.0
    park: float = 15.0


class StepFailed(Exception):
    """Why a step failed. `short`: the same in a line, None = the last one."""

    def __init__(self, text: str, short: str | None = None) -> None:
        super().__init__(text)
        self.short = short if short is not None else (text.splitlines() or [text])[-1]


Changed = Callable[[Operation, Step], Awaitable[None]]
Keep = Callable[[Operation], Awaitable[None]]


class Runner:
    """`written`: the snapshot of the plan. `changed` is called when a step has begun or ended, or has news; `keep`
    records the operation."""

    def __init__(
        self,
        gateway: Gateway,
        operation: Operation,
        steps: Steps,
        written: Snapshot,
        changed: Changed,
        keep: Keep,
        limits: CommandLimits,
    ) -> None:
        self._gateway, self._operation, self._limits = gateway, operation, limits
        self._pairs = list(zip(operation.steps, steps.steps, strict=True))
        self._changed, self._keep = changed, keep
        self._snapshot = written
        self._drained: dict[str, BackendState] = {}  # and not stopped
        self._is_in_force = operation.mode is None
        self._moved = asyncio.Event()  # some backend has changed its state
        gateway.fleet.observers.transitions.append(self._note)
        self._announce(under_way=operation.mode is not None)

    def close(self, *, failed: bool) -> None:
        """Called once, whatever happened; ends the drain of what was not stopped if the operation has failed."""
        self._gateway.fleet.observers.transitions.remove(self._note)
        self._announce(under_way=False)
        for state in self._drained.values() if failed else ():
            state.evidence.resume()

    def _announce(self, *, under_way: bool) -> None:
        """Tell what a switch brings and takes. Requests that only the target's backends can serve wait for them, also
        while the others are drained; and nobody is alarmed by what leaves."""
        coming = {planned.backend for _, planned in self._pairs if planned.what in ("start", "resume")}
        for name in {planned.backend for _, planned in self._pairs}:
            state = self._gateway.fleet.states.get(name)
            if state is not None:
                state.health.coming = under_way and name in coming
                state.health.leaving = under_way and name not in coming

    def _note(self, _: Transition) -> None:
        self._moved.set()

    async def run(self) -> str | None:
        """Drains of several backends run side by side, because all wait for streams; then what leaves is stopped, then
        what comes is started, one at a time per node and the nodes side by side. Returns why a step has failed; None =
        all are done."""
        coming = {planned.backend for _, planned in self._pairs if planned.what == "start"}
        for phase, group in groupby(self._pairs, key=lambda pair: _phase(pair[1], coming)):
            pairs = list(group)
            if phase == "drain":
                found = await asyncio.gather(*(self._step(step, planned) for step, planned in pairs))
                error = next((error for error in found if error), None)
            elif phase == "come":
                error = await run_lanes(pairs, self._nodes_of, self._step)
            else:
                error = None
                for step, planned in pairs:
                    if (error := await self._step(step, planned)) is not None:
                        break
            if error is not None:
                return error
        try:
            await self._put_in_force()
        except StepFailed as error:
            return str(error)
        return await self._stop_strays()

    def _nodes_of(self, name: str) -> tuple[str, ...]:
        backend = self._snapshot.backends.get(name)
        return backend.nodes if backend is not None else ()

    async def _stop_strays(self) -> str | None:
        """A switch ends with every unit outside its mode proved stopped. One that came meanwhile (its node has booted,
        or somebody has started it) is stopped now."""
        if (mode := self._snapshot.modes.get(self._operation.mode or "")) is None:
            return None
        in_some_mode = {name for one in self._snapshot.modes.values() for name in one.backends}
        others = {
            name: units_of(backend, self._snapshot.nodes)
            for name, backend in self._snapshot.backends.items()
            if name not in mode.backends and backend.run != "on_request" and name in in_some_mode
        }
        states = await look([unit for units in others.values() for unit in units])
        for name, units in others.items():
            unseen = dict.fromkeys(unit.node for unit in units if states.get(unit) is None)
            if unseen:
                self._operation.notes.append(
                    f"{', '.join(unseen)} was not reached: whether {name} is stopped there is not known"
                )
            if any(state is not None and state.runs for state in map(states.get, units)):
                commands = stop_commands(self._snapshot.backends[name], self._snapshot.nodes)
                step = Step(name, "stop")
                self._operation.steps.append(step)
                if (error := await self._step(step, PlannedStep(name, "stop", commands, units=units))) is not None:
                    return error
        return None

    async def _step(self, step: Step, planned: PlannedStep) -> str | None:
        """Run a step. Why it failed, in a line with its name; None = it did not."""
        error: str | None = None
        if step.state == "skipped":
            state = self._gateway.fleet.states.get(planned.backend)
            if planned.skip == LOADS and planned.what == "start" and state is not None:
                self._note_start(state)  # somebody has started what the gateway may have stopped
            await self._changed(self._operation, step)
            return None
        began = time.monotonic()
        step.state, step.began = "running", time.time()
        self._operation.since = step.began
        await self._changed(self._operation, step)
        try:
            step.output = await self._do(step, planned)
            step.state = "done"
        except StepFailed as failure:
            error = f"{step.what} {step.backend}: {(failure.short.splitlines() or [''])[-1]}"
            step.state = "failed"
            step.output = f"{failure}\nlook: {planned.journal}" if planned.journal else str(failure)
        finally:
            step.seconds = round(time.monotonic() - began, 3)
        await self._changed(self._operation, step)
        return error

    async def _do(self, step: Step, planned: PlannedStep) -> str:
        """What to show of the step. Raises StepFailed."""
        match planned.what:
            case "drain":
                return await self._drain(planned.backend)
            case "stop":
                return await self._stop(planned)
            case "preflight":
                return await self._preflight(planned)
            case "start":
                return await self._start(planned)
            case "wait":
                return await self._wait(step, planned)
            case "resume":
                await self._put_in_force()
                self._state(planned.backend).evidence.resume()
                return self._state(planned.backend).health.state.value

    def _state(self, name: str) -> BackendState:
        state = self._gateway.fleet.states.get(name)
        if state is None:
            raise StepFailed(GONE)
        return state

    # -- leaving --------------------------------------------------------------------------------------------------

    async def _drain(self, name: str) -> str:
        state = self._gateway.fleet.states.get(name)
        if state is None:
            return GONE
        if state.health.state is not State.DRAINING:
            self._drained[name] = state
        state.evidence.drain(reason=f"{self._operation.title}: it is about to be stopped")
        limit = self._snapshot.server.shutdown
        until = time.monotonic() + limit
        while state.under_way and time.monotonic() < until:
            await asyncio.sleep(min(LOOK, max(until - time.monotonic(), 0.0)))
        if not state.under_way:
            return ""
        if self._operation.cause in ("request", "idle"):  # a request takes no stream from another one
            raise StepFailed(f"{state.under_way} still ran after {limit:g} s (server.shutdown): it is not stopped")
        return f"{state.under_way} still ran after {limit:g} s (server.shutdown): cut by the stop"

    async def _stop(self, planned: PlannedStep) -> str:
        self._check_target()
        name = planned.backend
        try:
            output = await self._run(planned.commands, self._limits.stop)
            output += await self._prove_stopped(planned.units)
        except StepFailed as failure:
            if not self._operation.forced or any((await look(planned.units)).values()):
                raise
            output = f"{failure}\nforced: its node is not reached, and the rest goes on"
        self._drained.pop(name, None)
        self._operation.profiles.pop(name, None)
        state = self._gateway.fleet.states.get(name)
        if state is not None:
            state.evidence.drain()  # an edit may have made another record of it
            state.evidence.stopped()
        await self._put_in_force()
        if state is not None and state.health.state is State.PARKED:
            state.evidence.resume()  # the mode keeps requests away from it now, and no drain has to
        elif state is not None and state.backend.run == "on_request" and not self._stops_on_order:
            state.evidence.dismiss("stopped by the gateway; a request starts it again")
        return output

    async def _prove_stopped(self, units: Sequence[Unit]) -> str:
        """Until every unit is down, and the container of its name with it: one that somebody has started without its
        unit is stopped too. What to show of it. A node that does not tell how its units are is believed. Raises
        StepFailed."""
        until = time.monotonic() + self._limits.stop
        shown = ""
        asked = set[Unit]()
        while running := [one for one in (await look(units)).values() if one is not None and one.runs]:
            stray = next((one.unit for one in running if one.active not in RUNS and one.unit not in asked), None)
            if stray is not None:
                asked.add(stray)
                words = ("docker", "stop", "-t", "90", stray.name)
                command = Command((*SSH, stray.target, *words), f"ssh {stray.target} {' '.join(words)}")
                shown += "\n" + await self._run([command], self._limits.stop)
            elif time.monotonic() >= until:
                raise StepFailed("; ".join(f"{one.unit.name} still runs on {one.shown}" for one in running))
            await asyncio.sleep(PROOF)
        return shown

    @property
    def _stops_on_order(self) -> bool:
        """Has an operator ordered to stop this very backend? Then no request starts it again."""
        return self._operation.kind == "stop" and self._operation.cause == "operator"

    async def _put_in_force(self) -> None:
        """The target is the mode in force from the first stop on."""
        mode = self._operation.mode
        if mode is not None and not self._is_in_force:
            self._check_target()
            self._is_in_force = True
            try:
                await self._gateway.put_mode_in_force(mode)
            except KeyError:
                raise StepFailed(f"mode '{mode}' {GONE}") from None
            self._operation.notes += await tell_nodes(self._snapshot, mode, self._limits.park)

    def _check_target(self) -> None:
        mode = self._operation.mode
        if mode is not None and mode not in self._gateway.snapshot.modes:
            raise StepFailed(f"mode '{mode}' {GONE}")

    # -- coming ---------------------------------------------------------------------------------------------------

    async def _preflight(self, planned: PlannedStep) -> str:
        """Raises StepFailed with what keeps it from starting; what may keep it is shown."""
        asked = self._gateway.apps.preflight
        found = await asyncio.to_thread(asked, self._snapshot, planned.backend, planned.profile, planned.early)
        if found.failures and not self._operation.forced:
            raise StepFailed("\n".join([*found.failures, *found.warnings]), found.failures[0])
        return "\n".join([*found.failures, *found.warnings])

    async def _start(self, planned: PlannedStep) -> str:
        name = planned.backend
        backend = self._state(name).backend
        await self._put_in_force()
        limit = self._limits.start
        self._operation.profiles[name] = planned.profile
        await self._keep(self._operation)  # a gateway that is killed now has started it
        output = await self._run(planned.commands, max(backend.health.start_grace, 1.0) if limit is None else limit)
        state = self._gateway.fleet.states.get(name)
        if state is None:
            raise StepFailed(f"{output}\n{GONE}")  # the output says what may run now
        self._note_start(state)
        return output

    def _note_start(self, state: BackendState) -> None:
        """It is on its way, whatever was known of it."""
        if state.health.state not in WELL:  # it may be seen before its command ends
            state.evidence.started()
        self._gateway.prober.hurry(state)

    async def _wait(self, step: Step, planned: PlannedStep) -> str:
        """Until the backend serves: its health checks are good, and its canary was answered. One that the mode parks
        only has to answer its health check."""
        name = planned.backend
        grace = self._state(name).backend.health.start_grace
        until = time.monotonic() + grace
        starts = [one for _, one in self._pairs if one.backend == name and one.what == "start" and one.skip != LOADS]
        watching = StartWatch(name, planned.units, begun_here=bool(starts))
        watch_at = time.monotonic() + min(self._limits.watch, 1.0)
        while True:
            self._moved.clear()
            health = self._state(name).health
            if health.state in WELL or (health.state is State.PARKED and health.oks > 0):
                return "\n".join([*watching.deaths, health.reason])
            ended = self._operation.cause == "request" and health.state is State.PARKED and not health.summoned
            if ended or health.state is State.MISCONFIGURED:
                raise StepFailed(health.reason)
            if planned.units and time.monotonic() >= watch_at:
                await self._watch(step, watching)
                watch_at = time.monotonic() + self._limits.watch
            left = until - time.monotonic()
            if left <= 0:
                why = f"does not serve after {grace:g} s (health.start_grace): {health.reason}"
                raise StepFailed("\n".join([*watching.told, why]))
            try:
                async with asyncio.timeout(min(left, 1.0)):  # an edit may take it away, without a change of its state
                    await self._moved.wait()
            except TimeoutError:
                pass

    async def _watch(self, step: Step, watching: StartWatch) -> None:
        """Note the last sign of life of its units, and a death at once. Raises StepFailed where no more is to be
        expected."""
        has_died = await watching.look()
        if watching.sign != step.sign:
            step.sign, step.sign_at = watching.sign, time.time()
        if has_died:
            step.output = "\n".join(watching.deaths)
            await self._changed(self._operation, step)
        if watching.over:
            raise StepFailed("\n".join([*watching.told, watching.over]), watching.over)

    # -- commands -------------------------------------------------------------------------------------------------

    async def _run(self, commands: Sequence[Command], seconds: float) -> str:
        """What the commands wrote. Raises StepFailed with the first one that fails."""
        outputs = []
        for command in commands:
            ended = await run_ordered(command, seconds)
            outputs += [command.shown, *([ended.output] if ended.output else [])]
            if ended.problem:
                target = command.unit.target if command.unit is not None else None
                found = problem_of(target, ended.output) if target is not None else None
                if found is not None:
                    raise StepFailed("\n".join([*outputs, f"{found.why}\nmend: {found.mend}"]), found.why)
                raise StepFailed("\n".join([*outputs, ended.problem]))
        return "\n".join(outputs)


def _phase(planned: PlannedStep, coming: Collection[str]) -> str:
    """What runs together. `coming`: the backends that are started; their steps are one phase."""
    return "come" if planned.backend in coming and planned.what in _OF_A_START and not planned.early else planned.what
