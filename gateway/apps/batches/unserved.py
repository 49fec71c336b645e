"""Why the lines of a batch wait although their client's storage has room: nobody serves their alias now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.config.snapshot import Snapshot
from gateway.domain.backend import BackendState


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
