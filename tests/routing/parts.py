"""Backends, aliases and requests as routing sees them, without files or sockets."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.config.snapshot import Alias, Backend, HealthSettings
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT, Endpoint
from gateway.domain.health_machine import Health
from gateway.domain.health_state import State
from gateway.domain.request import InferenceRequest, parse

NOW = 10_000.0  # monotonic seconds
LONG_AGO = 0.0

Condition = Literal[
    "ok", "suspect", "unknown", "down", "warming", "misconfigured", "parked", "cooldown", "too_long", "incapable"
]


def backend(name: str, condition: Condition = "ok", *, inflight: int = 0, **keys: Any) -> BackendState:
    """A backend in a condition. `keys` are those of `Backend`."""
    keys.setdefault("slots", 4)
    keys.setdefault("context", 100 if condition == "too_long" else 32768)
    keys.setdefault("tool_parser", "none" if condition == "incapable" else "hermes")
    settings = HealthSettings()
    health = Health(name, settings, born=LONG_AGO)
    health.state = {
        "down": State.DOWN,
        "warming": State.DOWN,
        "misconfigured": State.MISCONFIGURED,
        "parked": State.PARKED,
        "suspect": State.SUSPECT,
        "unknown": State.UNKNOWN,
    }.get(condition, State.READY)
    health.ever_ready = True
    health.since = NOW - 1.0 if condition == "warming" else NOW - settings.start_grace - 1.0
    state = BackendState(Backend(name, **keys), None, health)
    state.inflight = inflight
    if condition == "cooldown":
        state.cooldown_until = NOW + 20.0
    return state


def alias(*steps: str | tuple[str, ...], **keys: Any) -> Alias:
    return Alias("alias", tuple((s,) if isinstance(s, str) else s for s in steps), **keys)


def fleet(*states: BackendState) -> dict[str, BackendState]:
    return {state.name: state for state in states}


def request(endpoint: Endpoint = CHAT, **body: Any) -> InferenceRequest:
    body.setdefault("model", "alias")
    if endpoint is CHAT:
        body.setdefault("messages", [{"role": "user", "content": "hello"}])
    return parse(endpoint, msgspec.json.encode(body))
