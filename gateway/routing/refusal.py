"""The one error a client gets when no backend has answered: which obstacle is reported, with a text for the
operator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT, COMPLETIONS, ENDPOINTS, UPLOADS
from gateway.domain.health_machine import Health
from gateway.domain.health_state import State
from gateway.domain.request import InferenceRequest
from gateway.errors import GatewayError, context_length_exceeded
from gateway.inspection.known_errors import LEAST_WINDOW
from gateway.routing.plan import TEMPORARY, Candidate, Plan
from gateway.routing.why_not import STARTING, parser_flags
from gateway.routing.window import prompt_estimate

# Texts of a backend on which an agent would act wrongly, so they are not repeated (docs/errors.md).
MISLEADING = re.compile(
    r"context|max_tokens|token limit|too many tokens|exceeds the limit|input token|prompt length|prompt is too long"
    r"|reduce the length|overloaded|at capacity|not found",
    re.IGNORECASE,
)

# Permanent reasons; ignored when deciding whether only the budget is in the way.
PERMANENT = frozenset({"incapable", "unserved", "disobeyed", "local_only", "empty", "outside"})

GENERATING = (CHAT.name, COMPLETIONS.name)
UNKNOWN_WAIT = 30.0  # seconds of Retry-After where nothing tells a better number
LONGEST_WAIT = 120.0  # seconds of Retry-After for a backend that is not reachable


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt that did not answer. `kind` is a key of plan.KINDS. `timeout`: the backend was silent. `gone`: its
    port was closed. `lack`: what the backend reported that it cannot do (Verdict.lack). `least`: the prompt has at
    least `prompt_tokens`."""

    backend: str
    kind: str
    reason: str
    timeout: bool = False
    window: int | None = None
    prompt_tokens: int | None = None
    least: bool = False
    gone: bool = False
    lack: str | None = None


def refusal(plan: Plan, tried: Sequence[FailedAttempt], request: InferenceRequest, now: float) -> GatewayError:
    """The error to report, by the first of: failed attempts, temporary obstacles, obstacles in the request itself. A
    backend that has just gone away is reported as temporary, not as failed, whether its health check or this request
    noticed: agents use up their few attempts within seconds on a 502, and wait on a 429."""
    alias = plan.alias
    skipped = plan.skipped
    members = [skip.state for skip in skipped] + [candidate.state for candidate in plan.candidates]
    untranslatable = None if request.own is None else request.own.untranslatable
    if untranslatable is not None and not any(state.capabilities(now).hosted for state in members):
        return untranslatable
    names = {t.backend for t in tried}
    reasons = [f"{t.backend} {t.reason}{_missing(plan, t)}" for t in tried]
    reasons += [f"{s.state.name} {s.reason}" for s in skipped if s.state.name not in names]
    why = MISLEADING.sub("[...]", "; ".join(reasons)) or "it names no backend that could serve this"
    last = tried[-1] if tried else None
    gone = [c.state for c in plan.candidates if _just_gone(c.state, tried, now)]
    names = {state.name for state in gone} | _stopped(plan, tried)
    failures = [t for t in tried if t.kind in ("failed", "misconfigured", "empty") and t.backend not in names]
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
    if kinds - PERMANENT == {"budget"} and _would_serve_if_paid(plan):
        return GatewayError("budget_exceeded", f"Only a budget keeps alias '{alias.name}' from an answer: {why}")
    if kinds & {"incapable", "unserved", "disobeyed"}:
        return _incapable(plan, tried, request, why, now)
    waits = [skip.wait for skip in skipped if skip.wait is not None]  # of backends that only requests start
    retry_after = max(1.0, min(waits, default=UNKNOWN_WAIT))
    return GatewayError(
        "no_backend_available", f"No healthy backend for alias '{alias.name}': {why}", retry_after=retry_after
    )


def _would_serve_if_paid(plan: Plan) -> bool:
    """Could one of the backends that are over budget serve otherwise (`cloud_when`)?"""
    spent = [Candidate(s.state, s.step) for s in plan.skipped if s.kind == "budget"]
    spent += [c for c in plan.candidates if plan.outcomes.get(c.state.name) == "budget"]
    return any(plan.may_enter(candidate) for candidate in spent)


def _stopped(plan: Plan, tried: Sequence[FailedAttempt]) -> set[str]:
    """The backends whose closed port this request found after they had left the mode in force: they were stopped, which
    is no failure."""
    outside = {c.state.name for c in plan.candidates if c.state.health.outside}
    return {t.backend for t in tried if t.gone and t.backend in outside}


def _just_gone(state: BackendState, tried: Sequence[FailedAttempt], now: float) -> bool:
    """True if this request found a closed port of a backend that is expected back."""
    if not any(t.backend == state.name and t.gone for t in tried):
        return False
    if state.health.outside:
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
    if kinds & {"warming", STARTING}:
        warming = [s.state.health for s in plan.skipped if s.kind in ("warming", STARTING)]
        warming += [state.health for state in gone]
        return GatewayError("backend_warming", message, retry_after=min(expected_wait(h, now) for h in warming))
    return GatewayError("no_backend_available", message, retry_after=UNKNOWN_WAIT)


def expected_wait(health: Health, now: float) -> float:
    """Estimated seconds until an absent backend is back: as long again as it has been away, since nothing better is
    known. (With a fixed short wait an agent would use up its few attempts long before an engine has loaded.)"""
    soonest = (health.settings.every or 5.0) * health.settings.recover_after
    away = now - health.since if health.state in (State.DOWN, State.WARMING) else 0.0
    return max(soonest, min(away, LONGEST_WAIT))


def _too_long(plan: Plan, tried: Sequence[FailedAttempt], request: InferenceRequest, now: float) -> GatewayError:
    """The overflow error. It names the largest window among the backends that were too small, and the prompt's size
    as the backend with that window reported it, else its estimate there."""
    states = {s.state.name: s.state for s in plan.skipped if s.kind == "too_long"}
    states |= {c.state.name: c.state for c in plan.candidates if plan.outcomes.get(c.state.name) == "too_long"}
    reported = {t.backend: t for t in tried if t.kind == "too_long"}
    sizes = [_size(state, reported.get(name), request, now) for name, state in states.items()]
    sizes += [(t.window or 0, t.prompt_tokens or 0) for name, t in reported.items() if name not in states]
    window, prompt = max(sizes, default=(0, 0))
    return context_length_exceeded(window, prompt)


def _size(
    state: BackendState, reported: FailedAttempt | None, request: InferenceRequest, now: float
) -> tuple[int, int]:
    """(the backend's window, 0 = not known; the prompt's tokens). The probable estimate is used, or the cautious one
    if the probable one would fit."""
    window = state.window(now) or 0
    if reported is not None and reported.window and reported.window >= LEAST_WINDOW:
        window = min(window or reported.window, reported.window)
    counted = reported.prompt_tokens if reported is not None and reported.prompt_tokens else 0
    if reported is not None and counted and not reported.least:
        return window, counted
    guess = prompt_estimate(state, request)
    probable = guess.mid if guess.mid > window else guess.high if guess.high > window else guess.mid
    return window, max(probable, counted, 1)


def _incapable(
    plan: Plan, tried: Sequence[FailedAttempt], request: InferenceRequest, why: str, now: float
) -> GatewayError:
    """The error for a request that no backend can serve. Of several lacks, tools are reported first, then thinking,
    then the input."""
    name = plan.alias.name
    lacks = {lack for s in plan.skipped for lack in s.lacks} | {t.lack for t in tried if t.kind == "incapable"}
    kinds = {s.kind for s in plan.skipped} | {t.kind for t in tried}
    incapable = not kinds.isdisjoint(("incapable", "disobeyed"))
    demanded = request.tool_choice in ("required", "named")
    if "disobeyed" in kinds and request.json_schema and not demanded:
        return GatewayError("upstream_error", f"Every backend of alias '{name}' that was tried failed: {why}")
    if (
        "disobeyed" in kinds
        or lacks & {"tools", "tool_choice", "tool_parser"}
        or (incapable and lacks <= {None} and request.tools)
    ):
        what = "can be made to call a tool" if demanded else "can call tools"
        param = "tool_choice" if demanded else "tools"
        return GatewayError("tool_choice_unsupported", f"No backend of alias '{name}' {what}: {why}", param=param)
    if "thinking" in lacks:
        return GatewayError("thinking_unsupported", f"No backend of alias '{name}' can think so: {why}")
    if "pdf" in lacks and request.file_at:
        return pdf_refused(request, name, f": {why}")
    what = "this input" if incapable else request.endpoint.path
    served = "" if incapable else _served(plan, now)
    return GatewayError("input_unsupported", f"No backend of alias '{name}' takes {what}: {why}{served}")


def _served(plan: Plan, now: float) -> str:
    """The endpoints that the alias is known to serve instead, as a sentence to follow the reasons."""
    states = [*(c.state for c in plan.candidates), *(s.state for s in plan.skipped)]
    found = [one.path for one in (*ENDPOINTS, *UPLOADS) if any(_serves(state, one.name, now) for state in states)]
    return f". It serves {', '.join(found)}" if found else ""


def _serves(state: BackendState, endpoint: str, now: float) -> bool:
    """Is it known to serve this endpoint? A server of models is expected to generate text until it shows otherwise, to
    embed, rank or score only once it has."""
    if endpoint not in state.traits.endpoints and endpoint not in state.backend.serves:
        return False
    if state.backend.serves or endpoint in state.facts.pooled.served:
        return not state.facts.is_lacking("endpoint:" + endpoint, now)
    silent = any(state.facts.is_lacking("endpoint:" + name, now) for name in GENERATING)
    return endpoint in GENERATING and not silent and not state.facts.pooled.served


def pdf_refused(request: InferenceRequest, alias: str, why: str = ".") -> GatewayError:
    """The error for a request with a PDF that no backend of the alias takes. `why` ends the message."""
    where = request.file_at
    message = f"`{where}` is a PDF, and no backend of alias '{alias}' takes it{why}"
    return GatewayError("input_unsupported", message, param=where)


def _missing(plan: Plan, attempt: FailedAttempt) -> str:
    """The launch flags that this model needs, if an attempt was refused because they are missing."""
    if attempt.kind != "incapable" or "--tool-call-parser" not in attempt.reason:
        return ""
    state = next((c.state for c in plan.candidates if c.state.name == attempt.backend), None)
    return "" if state is None else f" (start vLLM with {parser_flags(state)})"
