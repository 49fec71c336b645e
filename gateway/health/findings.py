"""What a probe found, as data: for the endpoint, for scripts, and for the table that people read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gateway.config.snapshot import Backend
from gateway.domain.backend import BackendState
from gateway.domain.drift import drift
from gateway.domain.facts import Observation
from gateway.domain.families import ENFORCES
from gateway.domain.health_state import State
from gateway.health.checks import NO_ANSWER

_ANSWERS = ("plain", "stream", "arithmetic")  # whatever is declared, a backend has to answer
_TOOLS = ("tool_auto", "tool_stream")
_ON_DEMAND = ("tool_required", "tool_named")


def findings(state: BackendState, seen: Mapping[str, Observation], now: float) -> dict[str, Any]:
    """`{backend, engine, model, state, checks: {name: {result, seen, at}}, drift: [...], problems: [...]}`."""
    parked = state.health.state is State.PARKED
    return {
        "backend": state.name,
        "engine": state.backend.engine,
        "model": state.model,
        "state": state.health.state.value,
        "checks": {name: asdict(observation) for name, observation in seen.items()},
        "drift": list(map(str, drift(state, now))),
        "problems": problems(state.backend, seen, parked=parked),
    }


def problems(backend: Backend, seen: Mapping[str, Observation], *, parked: bool = False) -> list[str]:
    """What must not be so: it did not answer (unless it is parked), or cannot do what routes.yaml declares."""
    lost = next((observation.seen for observation in seen.values() if observation.seen.startswith(NO_ANSWER)), None)
    if lost is not None:
        return [] if parked else [lost]
    declared = promised(backend)
    return [f"{name}: {observation.seen}" for name, observation in seen.items() if _broken(name, observation, declared)]


def _broken(name: str, observation: Observation, declared: frozenset[str]) -> bool:
    return observation.result == "no" and name in declared


def promised(backend: Backend) -> frozenset[str]:
    """The checks that a backend must not fail, by its engine and what is declared of it."""
    checks = set(_ANSWERS)
    if backend.tool_parser not in (None, "none"):
        checks.update(_TOOLS if backend.auto_tools is not False else ())
        checks.update(_ON_DEMAND if ENFORCES.get(backend.tool_parser or "") != "nothing" else ())
    if backend.reasoning_parser not in (None, "none") or backend.thinking in ("optional", "always"):
        checks.add("reasoning")
    if backend.thinking == "optional":
        checks.update(("thinking_on", "thinking_off"))
    if backend.engine in ("vllm", "ollama"):
        checks.add("json_schema")
    if backend.engine == "vllm":
        checks.add("window")
    return frozenset(checks)
