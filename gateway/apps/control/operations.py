"""Begins operations on the fleet, one at a time, and knows the latest ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from gateway.apps.control.lanes import StartTimes, lanes_of
from gateway.apps.control.other_gateways import OtherGateways
from gateway.apps.control.record import (
    CANCELLED,
    GAVE_WAY,
    INTERRUPTED,
    Cause,
    Operation,
    Step,
    new_operation,
    save,
    saved,
)
from gateway.apps.control.runner import CommandLimits, Runner
from gateway.apps.control.switching import Kind, Presence, Steps, beside_units, presence_of, steps_of
from gateway.apps.control.unit_commands import units_of
from gateway.apps.control.units import activity, look, tell_nodes
from gateway.config.snapshot import Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.events import Event
from gateway.domain.health_state import WELL, State
from gateway.errors import GatewayError
from gateway.runtime.gateway import Gateway
from gateway.supervision import Failures, cancel

log = logging.getLogger("gateway.operations")

KEPT = 20  # operations that are known by their id
LOOK_MOST = 12.0  # seconds for which a plan waits for the nodes to tell how their units are
LOOK = 1.0  # seconds between two looks whether the mode before can be served again
BACK_FOR = 3600.0  # seconds in which it is looked
CHECK_MOST = 2.0  # seconds for which a plan waits for the checks of drained backends


class Operations:
    """The operations of a gateway, and of the others that share its fleet. The latest is kept in `server.data`."""

    def __init__(self, gateway: Gateway) -> None:
        self.limits = CommandLimits()
        self._gateway = gateway
        self._data = Path(gateway.snapshot.server.data)
        self.times = StartTimes(self._data)
        self._known: dict[str, Operation] = {}
        self._task: asyncio.Task[Any] | None = None
        self._way_back: asyncio.Task[Any] | None = None
        self._planning = False
        self._saving = asyncio.Lock()  # drains of several backends run side by side
        self._switching_to: str | None = None  # the mode of a switch that is being planned
        self._interruption = INTERRUPTED  # why a cancelled operation has ended
        self._closed = False
        self._elsewhere = OtherGateways(self, gateway.shared.operations) if gateway.shared is not None else None

    # -- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read the latest operation. One that ran when the last process ended has failed, and its mode is the one in
        force if a backend was stopped."""
        await asyncio.to_thread(self.times.load)
        operation = await asyncio.to_thread(saved, self._data)
        seen = self._known.get(operation.id) if operation is not None else None
        if operation is not None and (seen is None or seen.state == "running"):  # else another gateway knows its end
            self._known[operation.id] = operation
            if operation.state == "running":
                await self.interrupted(operation, INTERRUPTED)
        if self._elsewhere is not None:
            self._elsewhere.open()

    async def close(self) -> None:
        """Ends an operation under way: it has failed, and says where it was."""
        self._closed = True
        await cancel(self._way_back, self._task)

    # -- what there is --------------------------------------------------------------------------------------------

    @property
    def latest(self) -> Operation | None:
        """The operation under way, else the last one."""
        return max(self._known.values(), key=lambda one: (one.state == "running", one.began), default=None)

    @property
    def switching_to(self) -> str | None:
        """The target of a switch that is under way, or about to be; None = there is none."""
        latest = self.latest
        return latest.mode if latest is not None and latest.state == "running" else self._switching_to

    def get(self, name: str) -> Operation:
        """The operation with this id. Raises `not_found`."""
        operation = self._known.get(name)
        if operation is None:
            raise GatewayError("not_found", "There is no such operation: the gateway knows the latest ones only.")
        return operation

    # -- planning -------------------------------------------------------------------------------------------------

    async def planned(self, kind: Kind, name: str, *, profile: str | None = None) -> Steps:
        """The steps to the mode, or for the backend, of this name. `profile`: the one to start the backend with, "" =
        none; None = that of the mode in force. Raises `not_found`."""
        snapshot = self._gateway.written
        _check_name(kind, name, snapshot, profile)
        states = self._gateway.fleet.states
        await self._check_drained(states.values())
        presence = {one: presence_of(state) for one, state in states.items()}
        if (unasked := self._unasked()) is not None and presence.get(unasked.backend or "") == "away":
            presence[unasked.backend or ""] = "drained"  # it loads, and goes on loading when its start gives way
        started, idle = self.profiles, self.latest.not_started if self.latest is not None else ()
        known = await self._seen(snapshot, presence), started, idle
        return await asyncio.to_thread(steps_of, kind, name, snapshot, self._gateway.snapshot.mode, *known, profile)

    async def _check_drained(self, states: Iterable[BackendState]) -> None:
        """Check the backends that get no requests and answered lately: one that was stopped since has to be started."""
        prober = self._gateway.prober
        checks = [prober.hurry(state) for state in states if presence_of(state) == "drained"]
        if tasks := [check for check in checks if check is not None]:
            await asyncio.wait(tasks, timeout=CHECK_MOST)

    async def _seen(self, snapshot: Snapshot, presence: dict[str, Presence]) -> dict[str, Presence]:
        """With what runs on the machines and does not answer: it is asked of them, never concluded."""
        away = [name for name, one in presence.items() if one == "away" and name in snapshot.backends]
        units = {name: units_of(snapshot.backends[name], snapshot.nodes) for name in away}
        states = await look([unit for there in units.values() for unit in there], most=LOOK_MOST)
        return beside_units(presence, {name: activity(map(states.get, there)) for name, there in units.items()})

    @property
    def profiles(self) -> dict[str, str]:
        """Backend -> the profile that the gateway last started it with."""
        return dict(self.latest.profiles) if self.latest is not None else {}

    def lanes(self, steps: Steps) -> tuple[list[dict[str, Any]], float | None]:
        """What these steps start on each node, and the seconds that it takes by earlier starts."""
        backends = self._gateway.written.backends
        names = [step.backend for step in steps.steps if step.what == "start" and not step.skip]
        return lanes_of(names, lambda name: backends[name].nodes if name in backends else (), self.times)

    # -- running --------------------------------------------------------------------------------------------------

    async def begin(
        self, kind: Kind, name: str, *, force: bool = False, profile: str | None = None, by: str = ""
    ) -> Operation:
        """Begin an operation, and return it at once; what nobody has ordered gives way to it. `profile`: as for
        `planned`. `by`: the client that orders it. Raises `not_found`, `operation_running`, and `operation_refused`
        with the reasons unless it is forced."""
        self._check_free(unasked_too=False)
        self._planning, self._switching_to = True, name if kind == "switch" else None
        try:
            written = self._gateway.written
            steps = await self.planned(kind, name, profile=profile)
            if steps.refusals and not force:
                raise GatewayError("operation_refused", f"{'; '.join(steps.refusals)} (`force` begins anyway)")
            self._check_open()
            if self._unasked() is not None:
                await self._end(GAVE_WAY)
            mode = self._gateway.snapshot.mode
            return await self._begin(new_operation(kind, name, mode, steps, forced=force, by=by), steps, written)
        finally:
            self._planning, self._switching_to = False, None

    async def begin_unasked(self, kind: Kind, name: str, steps: Steps, cause: Cause) -> Operation:
        """Begin an operation that no operator has ordered, with these steps, and return it at once. Raises
        `operation_running`."""
        self._check_free()
        self._planning = True
        try:
            operation = new_operation(kind, name, self._gateway.snapshot.mode, steps, cause=cause)
            return await self._begin(operation, steps, self._gateway.written)
        finally:
            self._planning = False

    async def finished(self) -> None:
        """Until the operation under way, if any, has ended."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _begin(self, operation: Operation, steps: Steps, written: Snapshot) -> Operation:
        operation.profiles = self.profiles
        operation.lanes, operation.expected = self.lanes(steps)
        if self._elsewhere is not None:
            await self._elsewhere.claim(operation)
        try:
            self._check_open()
            await self._save(operation)
        except BaseException:
            if self._elsewhere is not None:
                self._elsewhere.release()
            raise
        self.know(operation)
        if self._way_back is not None:
            self._way_back.cancel()
        runner = Runner(self._gateway, operation, steps, written, self._changed, self._save, self.limits)
        self._task = self.failures.once("operation", self._run(runner, operation), operation.title)
        return operation

    @property
    def failures(self) -> Failures:
        return self._gateway.metrics.failures

    def find(self, name: str) -> Operation | None:
        return self._known.get(name)

    def know(self, operation: Operation) -> None:
        """Keep an operation of this gateway or of another one."""
        self._known[operation.id] = operation
        while len(self._known) > KEPT:
            del self._known[next(iter(self._known))]

    async def interrupted(self, operation: Operation, why: str) -> None:
        """An operation that runs no more has failed; its mode is the one in force if a backend was stopped."""
        operation.end(why)
        log.error("%s: %s; %s", operation.title, why, operation.hint)
        mode = operation.mode
        if mode is not None and mode in self._gateway.snapshot.modes and operation.has_stopped:
            await self._gateway.put_mode_in_force(mode)
        self._count(operation)
        await self._save(operation)

    def _unasked(self) -> Operation | None:
        """The operation under way, if no operator has ordered it."""
        latest = self.latest
        return latest if latest is not None and latest.state == "running" and latest.cause != "operator" else None

    async def cancel(self, name: str, by: str = "") -> Operation:
        """End the operation with this id, in the middle of whatever it does; its commands are killed. One that has
        ended stays as it is. Raises `not_found`, and `operation_running` where another gateway runs it."""
        operation = self.get(name)
        if operation.state == "running":
            if self._elsewhere is not None and not self._elsewhere.owns(operation):
                raise GatewayError("operation_running", f"{operation.named} is ended there: ask that gateway.")
            await self._end(f"{CANCELLED} by {by}" if by else CANCELLED)
        return operation

    async def _end(self, why: str) -> None:
        """End the operation of this gateway."""
        if self._task is None:
            return
        self._interruption = why
        try:
            self._task.cancel()
            await asyncio.wait({self._task})
        finally:
            self._interruption = INTERRUPTED

    def _check_free(self, *, unasked_too: bool = True) -> None:
        self._check_open()
        latest = self.latest if self.latest is not None and self.latest.state == "running" else None
        if latest is not None and self._elsewhere is not None and not self._elsewhere.counts(latest):
            latest = None
        if not self._planning and not unasked_too and self._unasked() is not None:
            return
        if self._planning or latest is not None:
            what = f": {latest.under_way}" if latest is not None else ""
            raise GatewayError("operation_running", f"Another operation is under way{what}.")

    def _check_open(self) -> None:
        if self._closed:
            raise GatewayError("no_backend_available", "The gateway is stopping.")

    async def _run(self, runner: Runner, operation: Operation) -> None:
        error: str | None = "a defect in the gateway; the log has the traceback"
        try:
            error = await runner.run()
        except asyncio.CancelledError:
            error = self._interruption
            raise
        finally:
            runner.close(failed=error is not None)
            operation.end(error)
            self._tell(operation, None)
            self._count(operation)
            if self._elsewhere is not None:
                # They learn in one message that it has ended and that they may begin one, before a slow disk has it.
                self._elsewhere.publish(operation)
                self._elsewhere.release()
            await asyncio.shield(self._write(operation))
            if _is_impossible(operation) and not self._closed:
                self._way_back = self.failures.once("operation", self._go_back(operation), "way back")
            if self.times.note(operation):
                await asyncio.shield(asyncio.to_thread(self.times.save))

    async def _go_back(self, operation: Operation) -> None:
        """The mode that served goes on being served while the other one is impossible: it is in force again as soon as
        one of its engines answers, unless one of the target's does, or another mode was chosen."""
        gateway, until = self._gateway, time.monotonic() + BACK_FOR
        while time.monotonic() < until:
            snapshot = gateway.snapshot
            before, target = snapshot.modes.get(operation.before or ""), snapshot.modes.get(operation.mode or "")
            if before is None or target is None or snapshot.mode != target.name:
                return
            if any(_answers(gateway, name) for name in target.backends if name not in before.backends):
                return
            there = [name for name in before.backends if name not in target.backends and _answers(gateway, name)]
            if there:
                await gateway.put_mode_in_force(before.name)
                why = f"{', '.join(there)} answers, nothing of {target.name} does"
                operation.notes.append(f"mode {before.name} is in force again: {why}")
                log.warning("%s: %s", operation.title, operation.notes[-1])
                await tell_nodes(gateway.written, before.name, self.limits.park)
                return
            await asyncio.sleep(LOOK)

    async def _changed(self, operation: Operation, step: Step) -> None:
        """A step has begun or ended."""
        self._tell(operation, step)
        await self._save(operation)

    def _tell(self, operation: Operation, step: Step | None) -> None:
        """A line of the log and an event, of a step or of the whole operation."""
        state = operation.state if step is None else step.state
        what = operation.title if step is None else f"{operation.title}: {step.what} {step.backend}"
        output = (operation.error or "") if step is None else step.output.replace("\n", "; ")
        level = logging.WARNING if state == "failed" or (state == "running" and output) else logging.INFO  # a death
        log.log(level, "%s: %s%s", what, state, f": {output}" if output else "")
        # Without the output: everybody who may read the status reads events.
        self._gateway.emit(Event(time.time(), "operation", step.backend if step else "", what, after=state))

    def _count(self, operation: Operation) -> None:
        if operation.kind == "switch":
            self._gateway.metrics.switches.inc(operation.state)

    async def _save(self, operation: Operation) -> None:
        if self._elsewhere is not None:
            self._elsewhere.publish(operation)
        await self._write(operation)

    async def _write(self, operation: Operation) -> None:
        """A file that cannot be written stops nothing: the engines are more important than the record."""
        try:
            async with self._saving:
                await asyncio.to_thread(save, msgspec.json.encode(operation), self._data)
        except OSError as error:
            log.warning("%s cannot be recorded in %s: %s", operation.title, self._data, error)


def _is_impossible(operation: Operation) -> bool:
    """Did a switch fail because its target did not start?"""
    failed = {step.what for step in operation.steps if step.state == "failed"}
    switch = operation.kind == "switch" and operation.before not in (None, operation.mode)
    return operation.state == "failed" and switch and bool(failed) and failed <= {"preflight", "start", "wait"}


def _answers(gateway: Gateway, name: str) -> bool:
    state = gateway.fleet.states.get(name)
    if state is None:
        return False
    return state.health.state in WELL or (state.health.state is State.PARKED and state.health.oks > 0)


def _check_name(kind: Kind, name: str, snapshot: Snapshot, profile: str | None) -> None:
    """Raises `not_found` where routes.yaml has no such mode, backend or profile."""
    if kind == "switch" and name not in snapshot.modes:
        there = ", ".join(snapshot.modes) or "none: routes.yaml has no `modes`"
        raise GatewayError("not_found", f"There is no mode '{name}'. Modes: {there}.", param="mode")
    if kind != "switch" and name not in snapshot.backends:
        raise GatewayError("not_found", f"There is no backend '{name}'.")
    if profile and profile not in (profiles := snapshot.backends[name].profiles):
        there = ", ".join(profiles) or "none"
        raise GatewayError("not_found", f"'{name}' has no profile '{profile}'. Profiles: {there}.", param="profile")
