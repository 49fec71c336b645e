"""Batches that are for a mode: the fleet is switched to it in their window, and back when they have ended. Once each,
and only while nobody needs what the switch stops."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gateway.apps.batches.records import RUNNING, BatchRecord
from gateway.apps.batches.runner import BatchRun, now
from gateway.apps.batches.store import BatchStore, StoreThreads
from gateway.errors import GatewayError
from gateway.runtime.gateway import Gateway

log = logging.getLogger("gateway.apps.batches")

QUIET = 300.0  # seconds without a request after which a backend may be stopped for a batch
AGAIN = 60.0  # seconds after which a switch that was refused is tried again


class ModeSwitches:
    """Tells each batch with a schedule whether its lines may run, and orders the switches."""

    def __init__(self, gateway: Gateway, store: BatchStore, threads: StoreThreads) -> None:
        self.quiet = QUIET
        self._gateway = gateway
        self._store, self._threads = store, threads
        self._refused: dict[str, tuple[float, str]] = {}  # batch -> when its switch was refused, and why

    async def look(self, runs: Mapping[str, BatchRun], ended: Iterable[BatchRecord]) -> None:
        """`runs`: the batches under way, `ended`: the last ones that are not."""
        for run in list(runs.values()):
            if run.record.schedule is not None and run.record.status in RUNNING:
                run.hold = await self._why_not(run)
        records = [*(run.record for run in runs.values()), *ended]
        wanted = {r.schedule.mode for r in records if r.schedule is not None and _wants(r, time.time())}
        for record in records:
            if record.mode_before and record.schedule is not None and record.schedule.mode not in wanted:
                await self._go_back(record, record.schedule.mode, runs.get(record.id))

    async def _why_not(self, run: BatchRun) -> str:
        """Why its lines do not run now; "" = they do. Begins the switch that it waits for."""
        record, schedule, snapshot = run.record, run.record.schedule, self._gateway.snapshot
        assert schedule is not None
        if not schedule.is_open(time.time()):
            return f"It waits for its time, {schedule.between}."
        if not schedule.mode:
            return ""
        if (control := self._operations()) is None:
            return f"It is for mode {schedule.mode}, and this gateway does not switch modes."
        if control.switching_to is not None:
            return f"The fleet is being switched to mode {control.switching_to}."
        if snapshot.mode == schedule.mode:
            return ""
        if schedule.mode not in snapshot.modes:
            return f"There is no mode {schedule.mode} any more."
        if record.switched:
            return (
                f"Mode {schedule.mode} was put in force for it once, and left. `gateway fleet switch {schedule.mode}`"
            )
        if busy := self._busy(snapshot.modes[schedule.mode].backends):
            return f"It waits to switch to mode {schedule.mode} until {busy} has had no requests for a while."
        at, why = self._refused.get(record.id, (0.0, ""))
        if time.monotonic() - at < AGAIN and why:
            return why
        before = snapshot.mode or ""
        try:
            operation = await control.begin("switch", schedule.mode, by=record.owner)
        except GatewayError as error:
            why = f"The switch to mode {schedule.mode} is refused: {error.message}"
            self._refused[record.id] = time.monotonic(), why
            return why
        log.info("%s: the fleet is switched to mode %s", record.id, schedule.mode)
        await self._note(record, run, switched=operation.id, mode_before=before)
        return f"The fleet is being switched to mode {schedule.mode}."

    async def _go_back(self, record: BatchRecord, mode: str, run: BatchRun | None) -> None:
        """Put the mode in force that was before, unless somebody has ordered something else since."""
        control, snapshot = self._operations(), self._gateway.snapshot
        if control is None or control.switching_to is not None:
            return
        latest = control.latest
        stays = snapshot.mode != mode or record.mode_before not in snapshot.modes
        if not stays and latest is not None and latest.id == record.switched:
            if self._busy(snapshot.modes[record.mode_before].backends):
                return
            at, _ = self._refused.get(record.id, (0.0, ""))
            if at and time.monotonic() - at < AGAIN:
                return
            try:
                await control.begin("switch", record.mode_before, by=record.owner)
            except GatewayError as error:
                self._refused[record.id] = time.monotonic(), ""
                log.warning("%s: no way back to mode %s: %s", record.id, record.mode_before, error.message)
                return
        self._refused.pop(record.id, None)
        await self._note(record, run, mode_before="")

    def _operations(self) -> Any:
        """Those of the app `control`; None: it is not there."""
        control = getattr(self._gateway.apps, "control", None)
        return control.operations if control is not None else None

    async def _note(self, record: BatchRecord, run: BatchRun | None, **changes: str) -> None:
        stored = await self._threads.patiently(
            self._store.move, record.id, (record.status,), record.status, now(), **changes
        )
        if run is not None:
            run.record = stored

    def _busy(self, stay: Collection[str]) -> str:
        """The first backend that has work, or had some lately, and would be stopped; "" = none."""
        waiting, clock = self._gateway.admission.queue_depth(), time.monotonic()
        for state in self._gateway.fleet.states.values():
            if state.backend.cloud or state.name in stay or state.health.set_aside:
                continue
            works = state.under_way or state.foreign or state.shared.elsewhere_lately or waiting.get(state.name, 0)
            answered = state.evidence.answered_at
            if works or (answered and clock - answered < self.quiet):
                return state.name
        return ""


def _wants(record: BatchRecord, at: float) -> bool:
    """Does it want its mode to stay?"""
    return record.unfinished and record.schedule is not None and record.schedule.is_open(at)
