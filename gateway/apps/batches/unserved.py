"""Why the lines of a batch wait although their client's storage has room: nobody serves their alias now, a budget or
limit is reached, or others come first. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import msgspec

from gateway.apps.batches.records import RUNNING, Waiting
from gateway.apps.batches.runner import Answer, BatchRun
from gateway.config.snapshot import Snapshot
from gateway.domain.backend import BackendState
from gateway.proxy.services import Services


def why_unserved(snapshot: Snapshot, states: Mapping[str, BackendState], models: Iterable[str], now: float) -> str:
    """A sentence for each alias that no backend serves now; "" = all are served."""
    return " ".join(filter(None, (_of_one(snapshot, states, model, now) for model in models)))


def _of_one(snapshot: Snapshot, states: Mapping[str, BackendState], model: str, now: float) -> str:
    alias = snapshot.resolve(model)
    members = [states[name] for step in alias.steps for name in step if name in states] if alias is not None else []
    if alias is None or not members or any(state.health.usable(now) for state in members):
        return ""
    why = ", ".join(f"{state.name} is {state.health.state.value}" for state in members)
    names = {state.backend.on or state.name for state in members}
    modes = [mode.name for mode in snapshot.modes.values() if names & set(mode.backends) and mode.name != snapshot.mode]
    switch = f" Mode {' or '.join(modes)} has it: gateway fleet switch {modes[0]}." if modes else ""
    return f"Nobody serves '{alias.name}' now: {why}.{switch}"


_CODES = {402: "waiting_for_budget", 429: "waiting_for_limit", 503: "waiting_for_backend"}


def why_waiting(run: BatchRun, services: Services) -> Waiting | None:
    """Why none of the lines that this gateway has begun runs at a backend; None: some do, or will at once."""
    if run.waits:
        return Waiting("waiting_for_storage", run.waits)
    if run.record.status not in RUNNING:
        return None
    if run.hold:
        return Waiting("waiting_for_schedule", run.hold)
    states, models = services.fleet.states, run.record.models
    if unserved := why_unserved(services.snapshot, states, models, time.monotonic()):
        return Waiting("waiting_for_backend", unserved)
    name = f"{run.record.id}-"
    if any(one.record.trying is not None and one.record.id.startswith(name) for one in services.active):
        return None
    return next(filter(None, map(_refused, run.paused.values())), None) or _behind_others(run)


def _behind_others(run: BatchRun) -> Waiting | None:
    if run.asking:
        lines = "1 line waits" if len(run.asking) == 1 else f"{len(run.asking)} lines wait"
        return Waiting("waiting_for_slots", f"{lines} for a free slot: interactive requests go first.")
    if waiting := +run.waiting:
        return Waiting("waiting_for_slots", f"Lines of '{min(waiting)}' that are under way come first.")
    return None


def _refused(answer: Answer) -> Waiting | None:
    """What keeps a line that is asked again later; None: a backend's failure, or nobody was there."""
    try:
        error = msgspec.json.decode(answer.body)["error"]
        if answer.status not in _CODES or error["code"] == "no_backend_available":
            return None
        return Waiting(_CODES[answer.status], str(error["message"]))
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError):
        return None
