"""Runs the steps of one operation.

What the operation needs of routes.yaml (commands, nodes) is that of the moment when it began: an edit in between
changes nothing of it, except that a backend that was taken out is not waited for. A step that fails ends the operation;
backends that were drained and not stopped serve again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from gateway.apps.control.command import run
from gateway.apps.control.record import Operation, Step
from gateway.apps.control.switching import PlannedStep, Steps
from gateway.apps.control.unit_commands import Command, has_failed, with_credentials
from gateway.config.snapshot import Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.health_state import WELL, State, Transition
from gateway.runtime.gateway import Gateway

LOOK = 0.1  # seconds between two looks whether the requests of a drained backend have ended
_WATCH_MOST = 15.0  # seconds for one look at a unit
GONE = "was taken out of routes.yaml while this ran"


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Seconds for one command. `start` None = the backend's `health.start_grace`, which is also how long it may take
    until it serves. `watch`: between two looks whether a unit that is waited for has failed."""

    stop: float = 300.0
    start: float | None = None
    watch: float = 10.0


class StepFailed(Exception):
    """Why a step failed. `short`: the same in a line, None = the last one."""

    def __init__(self, text: str, short: str | None = None) -> None:
        super().__init__(text)
        self.short = short if short is not None else (text.splitlines() or [text])[-1]


Changed = Callable[[Operation, Step], Awaitable[None]]


class Runner:
    """`written`: the snapshot of the plan. `changed` is called when a step has begun or ended."""

    def __init__(
        self,
        gateway: Gateway,
        operation: Operation,
        steps: Steps,
        written: Snapshot,
        changed: Changed,
        limits: CommandLimits,
    ) -> None:
        self._gateway, self._operation, self._limits = gateway, operation, limits
        self._pairs = list(zip(operation.steps, steps.steps, strict=True))
        self._changed = changed
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
        """Every step in turn; drains of several backends run side by side, because all wait for streams. Returns why a
        step has failed, which is then the last one; None = all are done."""
        for what, group in groupby(self._pairs, key=lambda pair: pair[1].what):
            pairs = list(group)
            if what == "drain":
                found = await asyncio.gather(*(self._step(step, planned) for step, planned in pairs))
                for (step, _), error in zip(pairs, found, strict=True):
                    if error is not None:
                        return f"{step.what} {step.backend}: {_last_line(error)}"
            else:
                for step, planned in pairs:
                    error = await self._step(step, planned)
                    if error is not None:
                        return f"{step.what} {step.backend}: {_last_line(error)}"
        try:
            await self._put_in_force()
        except StepFailed as error:
            return str(error)
        return None

    async def _step(self, step: Step, planned: PlannedStep) -> str | None:
        """Why it failed, in a line; None = it did not."""
        error: str | None = None
        if step.state == "skipped":
            await self._changed(self._operation, step)
            return None
        began = time.monotonic()
        step.state, self._operation.since = "running", time.time()
        await self._changed(self._operation, step)
        try:
            step.output = await self._do(planned)
            step.state = "done"
        except StepFailed as failure:
            error = failure.short
            step.state = "failed"
            step.output = f"{failure}\nlook: {planned.journal}" if planned.journal else str(failure)
        finally:
            step.seconds = round(time.monotonic() - began, 3)
        await self._changed(self._operation, step)
        return error

    async def _do(self, planned: PlannedStep) -> str:
        """What to show of the step. Raises StepFailed."""
        match planned.what:
            case "drain":
                return await self._drain(planned.backend)
            case "stop":
                return await self._stop(planned.backend, planned.commands)
            case "preflight":
                return await self._preflight(planned.backend, planned.profile)
            case "start":
                return await self._start(planned)
            case "wait":
                return await self._wait(planned.backend, planned.commands)
            case "resume":
                return await self._resume(planned.backend)

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
        state.evidence.drain()
        limit = self._snapshot.server.shutdown
        until = time.monotonic() + limit
        while state.under_way and time.monotonic() < until:
            await asyncio.sleep(min(LOOK, max(until - time.monotonic(), 0.0)))
        if not state.under_way:
            return ""
        if self._operation.cause != "operator":  # a request takes no stream from another one
            raise StepFailed(f"{state.under_way} still ran after {limit:g} s (server.shutdown): it is not stopped")
        return f"{state.under_way} still ran after {limit:g} s (server.shutdown): cut by the stop"

    async def _stop(self, name: str, commands: Sequence[Command]) -> str:
        self._check_target()
        output = await self._run(commands, self._limits.stop)
        self._drained.pop(name, None)
        self._operation.profiles.pop(name, None)
        state = self._gateway.fleet.states.get(name)
        if state is not None:
            state.evidence.drain()  # an edit may have made another record of it
            state.evidence.stopped()
        await self._put_in_force()
        if state is not None and state.health.state is State.PARKED:
            state.evidence.resume()  # the mode keeps requests away from it now, and no drain has to
        elif state is not None and self._may_be_started_again(state):
            state.evidence.dismiss("stopped by the gateway; a request starts it again")
        return output

    def _may_be_started_again(self, state: BackendState) -> bool:
        """Requests start it again, unless an operator has ordered to stop this very backend."""
        ordered = self._operation.kind == "stop" and self._operation.cause == "operator"
        return state.backend.run == "on_request" and not ordered

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

    def _check_target(self) -> None:
        mode = self._operation.mode
        if mode is not None and mode not in self._gateway.snapshot.modes:
            raise StepFailed(f"mode '{mode}' {GONE}")

    # -- coming ---------------------------------------------------------------------------------------------------

    async def _preflight(self, name: str, profile: str) -> str:
        lines = await asyncio.to_thread(self._gateway.apps.preflight, self._snapshot, name, profile)
        if lines and not self._operation.forced:
            raise StepFailed("\n".join(lines), lines[0])
        return "\n".join(lines)

    async def _start(self, planned: PlannedStep) -> str:
        name = planned.backend
        backend = self._state(name).backend
        await self._put_in_force()
        limit = self._limits.start
        self._operation.profiles[name] = planned.profile
        output = await self._run(planned.commands, max(backend.health.start_grace, 1.0) if limit is None else limit)
        state = self._gateway.fleet.states.get(name)
        if state is None:
            raise StepFailed(f"{output}\n{GONE}")  # the output says what may run now
        if state.health.state not in WELL:  # it may be seen before its command ends
            state.evidence.started()
        self._gateway.prober.hurry(state)
        return output

    async def _wait(self, name: str, watch: Sequence[Command]) -> str:
        """Until the backend serves: its health checks are good, and its canary was answered. One that the mode parks
        only has to answer its health check."""
        grace = self._state(name).backend.health.start_grace
        until = time.monotonic() + grace
        watch_at = time.monotonic() + self._limits.watch
        while True:
            self._moved.clear()
            health = self._state(name).health
            if health.state in WELL or (health.state is State.PARKED and health.oks > 0):
                return health.reason
            ended = self._operation.cause == "request" and health.state is State.PARKED and not health.summoned
            if ended or health.state is State.MISCONFIGURED:
                raise StepFailed(health.reason)
            if watch and time.monotonic() >= watch_at:
                await self._check_unit(watch)
                watch_at = time.monotonic() + self._limits.watch
            left = until - time.monotonic()
            if left <= 0:
                raise StepFailed(f"does not serve after {grace:g} s (health.start_grace): {health.reason}")
            try:
                async with asyncio.timeout(min(left, 1.0)):  # an edit may take it away, without a change of its state
                    await self._moved.wait()
            except TimeoutError:
                pass

    async def _check_unit(self, watch: Sequence[Command]) -> None:
        """Raises StepFailed where systemd has given up on a unit. A node that does not tell is no reason."""
        for command in watch:
            ended = await run(with_credentials(command.argv), _WATCH_MOST)
            why = has_failed(ended.output) if not ended.problem else None
            if why is not None:
                raise StepFailed(f"{command.shown}\n{ended.output}\n{why}", why)

    async def _resume(self, name: str) -> str:
        await self._put_in_force()
        state = self._state(name)
        state.evidence.resume()
        return state.health.state.value

    # -- commands -------------------------------------------------------------------------------------------------

    async def _run(self, commands: Sequence[Command], seconds: float) -> str:
        """What the commands wrote. Raises StepFailed with the first one that fails."""
        outputs = []
        for command in commands:
            ended = await run(with_credentials(command.argv), seconds)
            outputs += [command.shown, *([ended.output] if ended.output else [])]
            if ended.problem:
                raise StepFailed("\n".join([*outputs, ended.problem]))
        return "\n".join(outputs)


def _last_line(text: str) -> str:
    return text.splitlines()[-1] if text else ""
