"""The one error a client gets when no backend has answered: which obstacle counts, in words for the operator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import GatewayError, context_length_exceeded
from gateway.fleet import BackendState
from gateway.health.state import Health, State
from gateway.routing.plan import TEMPORARY, Plan, tokens
from gateway.routing.request import InferenceRequest

# Words of a backend that an agent would act on wrongly, so they are not repeated (docs/errors.md).
MISLEADING = re.compile(
    r"context|max_tokens|token limit|too many tokens|exceeds the limit|input token|prompt length|prompt is too long"
    r"|reduce the length|overloaded|at capacity|not found",
    re.IGNORECASE,
)

LONGEST_WAIT = 120.0  # seconds that a client is asked to wait for a backend that is not there


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt that did not answer. `kind` is a key of plan.KINDS; `timeout` = it was silent; `gone` = there was
    nothing to connect to."""

    backend: str
    kind: str
    reason: str
    timeout: bool = False
    window: int | None = None
    prompt_tokens: int | None = None
    gone: bool = False


def refusal(plan: Plan, tried: Sequence[Tried], request: InferenceRequest, now: float) -> GatewayError:
    """What stood in the way, in this order: what failed, what may pass by itself, what this request is to blame for.
    A backend that has just gone is no failure to report but something to wait for, whether its health check or this
    request found out: agents spend their few attempts within seconds on a 502, and wait on a 429."""
    alias = plan.alias
    skipped = plan.skipped
    told = [f"{t.backend} {t.reason}" for t in tried] + [f"{s.state.name} {s.reason}" for s in skipped]
    why = MISLEADING.sub("[...]", "; ".join(told)) or "it names no backend that could serve this"
    last = tried[-1] if tried else None
    gone = [c.state for c in plan.candidates if _just_gone(c.state, tried, now)]
    names = {state.name for state in gone}
    failures = [t for t in tried if t.kind in ("failed", "misconfigured") and t.backend not in names]
    kinds = {t.kind for t in tried} | {s.kind for s in skipped} | ({"warming"} if gone else set())

    if failures and last is not None:
        timeout = failures[-1].timeout
        code = "upstream_timeout" if timeout else "upstream_error"
        return GatewayError(code, f"Every backend of alias '{alias.name}' that was tried failed: {why}")
    if kinds & TEMPORARY:
        return _wait(plan, why, kinds, gone, now)
    if "too_long" in kinds:
        return _too_long(plan, tried, request)
    if "incapable" in kinds or "unserved" in kinds:
        return _incapable(alias.name, request, why, unserved="incapable" not in kinds)
    return GatewayError("no_backend_available", f"No healthy backend for alias '{alias.name}': {why}", retry_after=30)


def _just_gone(state: BackendState, tried: Sequence[Tried], now: float) -> bool:
    """Did this request find nobody there, where somebody may well be soon?"""
    if not any(t.backend == state.name and t.gone for t in tried):
        return False
    return state.health.state is not State.DOWN or state.health.starting(now)


def _wait(plan: Plan, why: str, kinds: set[str], gone: Sequence[BackendState], now: float) -> GatewayError:
    """A 429 where waiting helps (Hermes honours Retry-After only there), else 503."""
    name = plan.alias.name
    cooling = [s.state.cooldown_until - now for s in plan.skipped if s.kind == "cooldown"]
    cooling += [c.state.cooldown_until - now for c in plan.candidates if plan.met.get(c.state.name) == "cooldown"]
    if cooling:
        message = f"Every backend of alias '{name}' asked for a pause: {why}"
        return GatewayError("rate_limit_exceeded", message, retry_after=min(cooling))
    message = f"No healthy backend for alias '{name}': {why}"
    if "warming" in kinds:
        warming = [s.state.health for s in plan.skipped if s.kind == "warming"]
        warming += [state.health for state in gone]
        return GatewayError("backend_warming", message, retry_after=min(_expected(h, now) for h in warming))
    return GatewayError("no_backend_available", message, retry_after=30)


def _expected(health: Health, now: float) -> float:
    """Seconds until a backend that is not there may be: as long again as it has been away, for want of a better guess.
    (An agent has few attempts: with a fixed short wait it would spend them long before an engine has loaded.)"""
    soonest = (health.settings.every or 5.0) * health.settings.recover_after
    away = now - health.since if health.state is State.DOWN else 0.0
    return max(soonest, min(away, LONGEST_WAIT))


def _too_long(plan: Plan, tried: Sequence[Tried], request: InferenceRequest) -> GatewayError:
    """The largest window among the backends that were too small: what this request may use."""
    states = [s.state for s in plan.skipped if s.kind == "too_long"]
    states += [c.state for c in plan.candidates if plan.met.get(c.state.name) == "too_long"]
    windows = [s.context for s in states if s.context] + [t.window for t in tried if t.window]
    guesses = [tokens(s, request) for s in states] + [t.prompt_tokens for t in tried if t.prompt_tokens]
    window = max(windows, default=0)
    return context_length_exceeded(window, max(*guesses, window + 1, 1))


def _incapable(alias: str, request: InferenceRequest, why: str, *, unserved: bool) -> GatewayError:
    if not unserved and request.tools:
        return GatewayError(
            "tool_choice_unsupported", f"No backend of alias '{alias}' can call tools: {why}", param="tools"
        )
    what = request.endpoint.path if unserved else "this input"
    return GatewayError("input_unsupported", f"No backend of alias '{alias}' takes {what}: {why}")
