"""The one error a client gets when no backend has answered: which obstacle counts, in words for the operator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.domain.backend import BackendState
from gateway.domain.health_machine import Health
from gateway.domain.health_state import State
from gateway.domain.request import InferenceRequest
from gateway.errors import GatewayError, context_length_exceeded
from gateway.routing.plan import TEMPORARY, Candidate, Plan
from gateway.routing.unmet_needs import parser_flags
from gateway.routing.window import prompt_estimate, window_for

# Words of a backend that an agent would act on wrongly, so they are not repeated (docs/errors.md).
MISLEADING = re.compile(
    r"context|max_tokens|token limit|too many tokens|exceeds the limit|input token|prompt length|prompt is too long"
    r"|reduce the length|overloaded|at capacity|not found",
    re.IGNORECASE,
)

# Permanent reasons; ignored when deciding whether only the budget is in the way.
PERMANENT = frozenset({"incapable", "unserved", "disobeyed", "local_only", "empty"})

LONGEST_WAIT = 120.0  # seconds that a client is asked to wait for a backend that is not there


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt that did not answer. `kind` is a key of plan.KINDS; `timeout`: it was silent; `gone`: there was
    nothing to connect to; `lack`: what it answered that it cannot do (Verdict.lack); `least`: the prompt has at least
    `prompt_tokens`."""

    backend: str
    kind: str
    reason: str
    timeout: bool = False
    window: int | None = None
    prompt_tokens: int | None = None
    least: bool = False
    gone: bool = False
    lack: str | None = None


def refusal(plan: Plan, tried: Sequence[Tried], request: InferenceRequest, now: float) -> GatewayError:
    """What stood in the way, in this order: what failed, what may pass by itself, what this request is to blame for.
    A backend that has just gone is not reported as a failure but as something to wait for, whether its health check or
    this request found out: agents spend their few attempts within seconds on a 502, and wait on a 429."""
    alias = plan.alias
    skipped = plan.skipped
    names = {t.backend for t in tried}
    reasons = [f"{t.backend} {t.reason}{_missing(plan, t)}" for t in tried]
    reasons += [f"{s.state.name} {s.reason}" for s in skipped if s.state.name not in names]
    why = MISLEADING.sub("[...]", "; ".join(reasons)) or "it names no backend that could serve this"
    last = tried[-1] if tried else None
    gone = [c.state for c in plan.candidates if _just_gone(c.state, tried, now)]
    names = {state.name for state in gone}
    failures = [t for t in tried if t.kind in ("failed", "misconfigured") and t.backend not in names]
    kinds = {t.kind for t in tried} | {s.kind for s in skipped} | ({"warming"} if gone else set())
    disobeyed = last is not None and last.kind == "disobeyed"

    if failures and not disobeyed:
        timeout = failures[-1].timeout
        code = "upstream_timeout" if timeout else "upstream_error"
        return GatewayError(code, f"Every backend of alias '{alias.name}' that was tried failed: {why}")
    if kinds & TEMPORARY:
        return _wait(plan, why, kinds, gone, now)
    if "too_long" in kinds and not disobeyed:
        return _too_long(plan, tried, request, now)
    if kinds - PERMANENT == {"budget"} and _could_be_paid(plan):
        return GatewayError("budget_exceeded", f"Only a budget keeps alias '{alias.name}' from an answer: {why}")
    if kinds & {"incapable", "unserved", "disobeyed"}:
        return _incapable(plan, tried, request, why)
    return GatewayError("no_backend_available", f"No healthy backend for alias '{alias.name}': {why}", retry_after=30)


def _could_be_paid(plan: Plan) -> bool:
    """May one of the backends that are over budget be asked at all (`cloud_when`)?"""
    spent = [Candidate(s.state, s.step) for s in plan.skipped if s.kind == "budget"]
    spent += [c for c in plan.candidates if plan.outcomes.get(c.state.name) == "budget"]
    return any(plan.may_enter(candidate) for candidate in spent)


def _just_gone(state: BackendState, tried: Sequence[Tried], now: float) -> bool:
    """Did this request find a closed port, where a server may well listen soon?"""
    if not any(t.backend == state.name and t.gone for t in tried):
        return False
    return state.health.state not in (State.DOWN, State.WARMING) or state.health.starting(now)


def _wait(plan: Plan, why: str, kinds: set[str], gone: Sequence[BackendState], now: float) -> GatewayError:
    """A 429 where waiting helps (Hermes honours Retry-After only there), else 503."""
    name = plan.alias.name
    cooling = [s.state.cooldown_until - now for s in plan.skipped if s.kind == "cooldown"]
    cooling += [c.state.cooldown_until - now for c in plan.candidates if plan.outcomes.get(c.state.name) == "cooldown"]
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
    away = now - health.since if health.state in (State.DOWN, State.WARMING) else 0.0
    return max(soonest, min(away, LONGEST_WAIT))


def _too_long(plan: Plan, tried: Sequence[Tried], request: InferenceRequest, now: float) -> GatewayError:
    """With the largest window among the backends that were too small, which is what this request may use, and the
    prompt's size as the backend of that window reported it, else as it is estimated there."""
    states = {s.state.name: s.state for s in plan.skipped if s.kind == "too_long"}
    states |= {c.state.name: c.state for c in plan.candidates if plan.outcomes.get(c.state.name) == "too_long"}
    reported = {t.backend: t for t in tried if t.kind == "too_long"}
    sizes = [_size(state, reported.get(name), request, now) for name, state in states.items()]
    sizes += [(t.window or 0, t.prompt_tokens or 0) for name, t in reported.items() if name not in states]
    window, prompt = max(sizes, default=(0, 0))
    return context_length_exceeded(window, prompt)


def _size(state: BackendState, reported: Tried | None, request: InferenceRequest, now: float) -> tuple[int, int]:
    """(its window, 0 = not known; the prompt's tokens). Of estimates the probable one counts, or, where that would fit,
    the careful one."""
    window = window_for(state, request, now) or 0
    if reported is not None and reported.window:
        window = min(window or reported.window, reported.window)
    counted = reported.prompt_tokens if reported is not None and reported.prompt_tokens else 0
    if reported is not None and counted and not reported.least:
        return window, counted
    guess = prompt_estimate(state, request)
    probable = guess.mid if guess.mid > window else guess.high if guess.high > window else guess.mid
    return window, max(probable, counted, 1)


def _incapable(plan: Plan, tried: Sequence[Tried], request: InferenceRequest, why: str) -> GatewayError:
    """What no backend can do. Where several things are missing, tools are reported before thinking before the input."""
    name = plan.alias.name
    lacks = {lack for s in plan.skipped for lack in s.lacks} | {t.lack for t in tried if t.kind == "incapable"}
    kinds = {s.kind for s in plan.skipped} | {t.kind for t in tried}
    incapable = not kinds.isdisjoint(("incapable", "disobeyed"))
    if (
        "disobeyed" in kinds
        or lacks & {"tools", "tool_choice", "tool_parser"}
        or (incapable and lacks <= {None} and request.tools)
    ):
        demanded = request.tool_choice in ("required", "named")
        what = "can be made to call a tool" if demanded else "can call tools"
        param = "tool_choice" if demanded else "tools"
        return GatewayError("tool_choice_unsupported", f"No backend of alias '{name}' {what}: {why}", param=param)
    if "thinking" in lacks:
        return GatewayError("thinking_unsupported", f"No backend of alias '{name}' can think so: {why}")
    what = "this input" if incapable else request.endpoint.path
    return GatewayError("input_unsupported", f"No backend of alias '{name}' takes {what}: {why}")


def _missing(plan: Plan, attempt: Tried) -> str:
    """The flags that this model needs, where an attempt was refused for want of them."""
    if attempt.kind != "incapable" or "--tool-call-parser" not in attempt.reason:
        return ""
    state = next((c.state for c in plan.candidates if c.state.name == attempt.backend), None)
    return "" if state is None else f" (start vLLM with {parser_flags(state)})"
