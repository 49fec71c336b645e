"""What is known of one operation: its steps, kept in a file of `server.data` so that a restart knows where it was."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from gateway.apps.control.switching import Kind, Steps, What
from gateway.config.sources import read_kept, replace_file

log = logging.getLogger("gateway.operations")

Progress = Literal["waiting", "running", "done", "failed", "skipped"]
Result = Literal["running", "done", "failed"]
Cause = Literal["operator", "request", "idle", "recovery"]

FILE = "operation.json"  # in `server.data`: the latest operation
FILE_MOST = 1024 * 1024  # bytes
_NOT_RUN = "not run"
SHARED_MOST = 2000  # characters of a step's output that other gateways get
INTERRUPTED = "interrupted: the gateway ended while it ran"
GAVE_WAY = "gave way to an order of an operator"
CANCELLED = "cancelled"


_WHY: dict[Cause, str] = {
    "operator": "",
    "request": " for a request",
    "idle": ", which is idle",
    "recovery": ", which hangs",
}


class Step(msgspec.Struct):
    """`seconds`: how long it took, None = it did not run, or runs. `output`: what its command wrote, or why it was
    skipped or failed. `began`: Unix seconds. `sign`: the last sign of life of what is waited for, seen first at
    `sign_at`."""

    backend: str
    what: What
    state: Progress = "waiting"
    seconds: float | None = None
    output: str = ""
    began: float | None = None
    sign: str = ""
    sign_at: float | None = None


class Operation(msgspec.Struct):
    """`mode`: the target of a switch, and `before` the mode that was in force; `backend`: of a start or stop. `began`,
    `ended`: Unix seconds. `error`: why it failed, `hint`: what to do then. `notes`: what the operator should know.
    `since`: when the step under way began, and those beside it; None = none is. `profiles`: backend -> the profile that
    the gateway last started it with ("" = none), here or in an earlier operation. `gateway`: the one that runs it,
    where several share the fleet. `cause`: who wanted it, an operator, a request, nobody any more (`stop_after`),
    or the gateway itself (`recover`).
    `by`: the client whose key it was; empty without `clients`. `lanes`: what starts on each node, and `expected`: how
    many seconds that takes, by earlier starts; None = not known."""

    id: str
    kind: Kind
    mode: str | None
    before: str | None
    backend: str | None
    forced: bool
    state: Result
    began: float
    steps: list[Step]
    ended: float | None = None
    error: str | None = None
    hint: str | None = None
    notes: list[str] = []
    since: float | None = None
    profiles: dict[str, str] = {}
    gateway: str | None = None
    cause: Cause = "operator"
    by: str = ""
    expected: float | None = None
    lanes: list[dict[str, Any]] = []

    @property
    def title(self) -> str:
        """In words, for the log and events."""
        return f"switch to {self.mode}" if self.kind == "switch" else f"{self.kind} {self.backend}{_WHY[self.cause]}"

    @property
    def has_started(self) -> bool:
        """Whether a start command was run, as far as is known."""
        return any(step.what == "start" and step.state in ("done", "failed") for step in self.steps)

    @property
    def has_stopped(self) -> bool:
        """Whether a backend was stopped, as far as is known."""
        return any(step.what == "stop" and step.state in ("done", "failed") for step in self.steps)

    @property
    def not_started(self) -> frozenset[str]:
        """The backends that it did not come to start, because it failed before."""
        return frozenset(step.backend for step in self.steps if step.what == "start" and step.output == _NOT_RUN)

    @property
    def named(self) -> str:
        """With its id, and the gateway that runs it."""
        return f"{self.title} ({self.id})" + (f" at gateway {self.gateway}" if self.gateway is not None else "")

    @property
    def under_way(self) -> str:
        """For somebody who wants to begin another one: how far it is, whose it is, and how to look or end it."""
        now = time.time()
        running = [one for one in self.steps if one.state == "running"]
        steps = " and ".join(f"`{one.what} {one.backend}` for {now - (one.began or now):.0f} s" for one in running)
        since = f"since {time.strftime('%H:%M:%S', time.localtime(self.began))} ({now - self.began:.0f} s)"
        whose = f", by {self.by}" if self.by else ""
        look = "`gateway fleet status` looks, `gateway fleet cancel` ends it"
        return f"{self.named}, {since}{whose}; step {steps or 'none yet'}. {look}"

    def as_json(self) -> dict[str, Any]:
        """`{id, kind, mode, state, steps: [{backend, what, state, seconds, output}], ...}`."""
        return dict(msgspec.to_builtins(self))

    def shown_to_all(self) -> dict[str, Any]:
        """As `as_json`, for people who are no admins: without what commands wrote, and without reasons."""
        steps = [{**msgspec.to_builtins(step), "output": "", "sign": ""} for step in self.steps]
        return {**self.as_json(), "steps": steps, "error": None, "notes": [], "by": ""}

    def for_others(self) -> dict[str, Any]:
        """As `as_json`, with the end of each output only: every gateway keeps it."""
        found = self.as_json()
        for step in found["steps"]:
            step["output"] = step["output"][-SHARED_MOST:]
        return found

    def end(self, error: str | None) -> None:
        """End it; with an error a step under way has failed, and what did not run is skipped."""
        self.ended, self.since = time.time(), None
        if error is None:
            self.state = "done"
            return
        for step in self.steps:
            if step.state == "running":
                step.state, step.output = "failed", error
            elif step.state == "waiting":
                step.state, step.output = "skipped", _NOT_RUN
        self.state, self.error, self.hint = "failed", error, self._way_on()

    def _way_on(self) -> str:
        if self.kind != "switch":
            again = f"`gateway fleet {self.kind} {self.backend}` tries it again"
            begun = f", `gateway fleet stop {self.backend}` stops what it has begun" if self.has_started else ""
            return again + begun
        again = f"`gateway fleet switch {self.mode}` does what is left"
        back = f", `gateway fleet switch {self.before}` goes back" if self.before not in (None, self.mode) else ""
        return again + back if self.has_stopped else f"nothing was stopped; {again}"


def new_operation(
    kind: Kind,
    name: str,
    current: str | None,
    steps: Steps,
    *,
    forced: bool = False,
    cause: Cause = "operator",
    by: str = "",
) -> Operation:
    """An operation that has not begun; what the plan skips is skipped already. `name`: the mode or the backend;
    `current`: the mode in force."""
    switch = kind == "switch"
    return Operation(
        id=os.urandom(6).hex(),
        kind=kind,
        mode=name if switch else None,
        before=current if switch else None,
        backend=None if switch else name,
        forced=forced,
        state="running",
        began=time.time(),
        steps=[
            Step(one.backend, one.what, "skipped" if one.skip else "waiting", output=one.skip) for one in steps.steps
        ],
        notes=[*steps.notes, *(f"forced: {refusal}" for refusal in steps.refusals)],
        cause=cause,
        by=by,
    )


def described(kind: Kind, name: str, current: str | None, steps: Steps) -> dict[str, Any]:
    """What an operation would do: `{kind, mode, before, backend, steps, notes, refusals}`. The commands stand in
    `output`; `refusals`: why it would not begin."""
    found = new_operation(kind, name, current, steps).as_json()
    for step, planned in zip(found["steps"], steps.steps, strict=True):
        step["output"] = step["output"] or "; ".join(command.shown for command in planned.commands)
    shown = {key: found[key] for key in ("kind", "mode", "before", "backend", "steps")}
    return {**shown, "notes": steps.notes, "refusals": steps.refusals}


def save(operation: bytes, folder: Path) -> None:
    """Write the file atomically: an operation as JSON. Raises OSError."""
    replace_file(folder / FILE, operation)


def saved(folder: Path) -> Operation | None:
    """The latest operation; None = there was none, or its file cannot be read. Blocks."""
    return read_kept(folder / FILE, Operation, log, "the latest operation is not known", FILE_MOST)
