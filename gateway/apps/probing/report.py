"""What a probe has found, as data: the observations, the drift, and the backend's faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gateway.config.snapshot import Backend
from gateway.domain.backend import BackendState
from gateway.domain.drift import drift
from gateway.domain.engine_traits import EngineTraits, traits_of
from gateway.domain.facts import Observation
from gateway.domain.health_state import State
from gateway.health.checks import NO_ANSWER
from gateway.launch.families import ENFORCES

_ANSWERS = ("plain", "stream", "arithmetic")  # required of every backend
_TOOLS = ("tool_auto", "tool_stream")
_ON_DEMAND = ("tool_required", "tool_named")


def probe_report(state: BackendState, seen: Mapping[str, Observation], now: float) -> dict[str, Any]:
    """The report of a probe, for the endpoint, scripts and the printed table:
    `{backend, engine, model, state, checks: {name: {result, seen, at}}, drift: [...], problems: [...]}`."""
    parked = state.health.state is State.PARKED
    return {
        "backend": state.name,
        "engine": state.backend.engine,
        "server": state.server,
        "front_end": state.reported.front_end,
        "model": state.model,
        "state": state.health.state.value,
        "checks": {name: asdict(observation) for name, observation in seen.items()},
        "drift": list(map(str, drift(state, now))),
        "problems": problems(state.backend, seen, state.traits, parked=parked),
    }


def problems(
    backend: Backend, seen: Mapping[str, Observation], traits: EngineTraits | None = None, *, parked: bool = False
) -> list[str]:
    """The backend's faults: it did not answer (unless it is parked), or it failed a required check."""
    no_answer = next((found.seen for found in seen.values() if found.seen.startswith(NO_ANSWER)), None)
    if no_answer is not None:
        return [] if parked else [no_answer]
    required = required_checks(backend, traits)
    return [f"{name}: {found.seen}" for name, found in seen.items() if found.result == "no" and name in required]


def required_checks(backend: Backend, traits: EngineTraits | None = None) -> frozenset[str]:
    """The checks that a backend has to pass, which follow from its traits and from what routes.yaml declares. `traits`:
    the row in force; None: the declared one."""
    traits = traits_of(backend) if traits is None else traits
    checks = set(_ANSWERS)
    if backend.tool_parser not in (None, "none"):
        checks.update(_TOOLS if backend.auto_tools is not False else ())
        checks.update(_ON_DEMAND if ENFORCES.get(backend.tool_parser or "") != "nothing" else ())
    if backend.reasoning_parser not in (None, "none") or backend.thinking in ("optional", "always"):
        checks.add("reasoning")
    if backend.thinking == "optional":
        checks.update(("thinking_on", "thinking_off"))
    if traits.enforces_schema:
        checks.add("json_schema")
    if traits.refuses_unread:
        checks.add("window")
    return frozenset(checks)
