"""Which backends may tell the tokens of an alias. Pure.

Tokens of different models mean different text, so all that tell them serve one model: that of the alias' first backend
which is not parked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.health_state import State
from gateway.errors import GatewayError
from gateway.routing.refusal import expected_wait
from gateway.routing.resume import same_model
from gateway.routing.why_not import STARTING, unavailable

COMING = frozenset({"warming", STARTING})


class TokenizeFailure(NamedTuple):
    """Why a backend has not answered. `kind`: lacking (it cannot) | failed | a kind of `unavailable`. `timeout`: it was
    silent."""

    state: BackendState
    kind: str
    reason: str
    timeout: bool = False


def tokenizers_of(
    alias: Alias, states: Sequence[BackendState], now: float
) -> tuple[list[BackendState], list[TokenizeFailure]]:
    """(the backends to ask, in order; why the others are not asked). `states`: those of the alias, in its order."""
    here = [state for state in states if not state.backend.cloud and state.health.state is not State.PARKED]
    home = here[0] if here else None
    asked: list[BackendState] = []
    passed: list[TokenizeFailure] = []
    for state in states:
        if state.backend.cloud:
            passed.append(TokenizeFailure(state, "lacking", "is a cloud"))
        elif state.traits.counts.tokenizer is None:
            passed.append(TokenizeFailure(state, "lacking", f"has no tokenizer that can be asked ({state.server})"))
        elif home is not None and state is not home and not same_model(state, home):
            passed.append(TokenizeFailure(state, "lacking", f"serves another model than {home.name}"))
        elif not state.health.usable(now):
            passed.append(TokenizeFailure(state, *unavailable(state, now)))
        else:
            asked.append(state)
    return asked, passed


def refusal(alias: Alias, path: str, passed: Sequence[TokenizeFailure], now: float) -> GatewayError:
    """The error where no backend has answered."""
    why = "; ".join(f"{one.state.name} {one.reason}" for one in passed)
    failed = [one for one in passed if one.kind == "failed"]
    if failed:
        code = "upstream_timeout" if failed[-1].timeout else "upstream_error"
        return GatewayError(code, f"Every backend of alias '{alias.name}' that was tried failed: {why}")
    away = [one for one in passed if one.kind != "lacking"]
    if not away:
        return GatewayError("input_unsupported", f"No backend of alias '{alias.name}' takes {path}: {why}")
    code = "no_backend_available" if {one.kind for one in away}.isdisjoint(COMING) else "backend_warming"
    wait = min(expected_wait(one.state.health, now) for one in away)
    return GatewayError(code, f"No healthy backend for alias '{alias.name}': {why}", retry_after=wait)
