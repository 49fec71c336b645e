"""The canary schedule. A canary is a short selection of the checks, run against a backend in the background. When a
backend comes back, the outcome of its canary decides whether requests are sent there again. A canary of a new or idle
backend confirms its health and shows where it differs from routes.yaml."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from math import inf
from typing import Literal, NamedTuple

from gateway.config.machines import Identity
from gateway.domain.backend import BackendState
from gateway.domain.drift import drift
from gateway.domain.events import Event
from gateway.domain.facts import Observation
from gateway.domain.health_state import SERVING, WELL, State
from gateway.domain.reason import joined, prefixed, quoting
from gateway.health.checks import NO_ANSWER, CheckReply
from gateway.health.probes import probe
from gateway.inspection.error_replies import judge
from gateway.supervision import Failures, cancel

log = logging.getLogger("gateway.canary")

WARM_UP = "life"  # sent first to a backend that came back: the first request after a start may take long
SHORT = ("arithmetic", "reasoning", "tool_auto")

IsLoaded = Callable[[BackendState], Awaitable[bool]]


class Outcome(NamedTuple):
    """The outcome of a canary. `kind`: ok | lost (no answer) | wrong (a wrong answer) | misconfigured | busy (not sent,
    or refused for now) | unasked (the gateway itself could not send it)."""

    kind: Literal["ok", "lost", "wrong", "misconfigured", "busy", "unasked"]
    reason: str


class CanarySchedule:
    """Runs at most one canary per backend at a time. `is_loaded`: does a backend that loads models on demand hold its
    model in memory, as a canary would have it loaded? Else none is sent. `on_proved` is called when
    a canary returns a backend to service."""

    def __init__(
        self,
        is_loaded: IsLoaded,
        emit: Callable[[Event], None],
        on_proved: Callable[[BackendState], None] = lambda _: None,
        failures: Failures | None = None,
    ) -> None:
        self._failures = failures or Failures()
        self._is_loaded = is_loaded
        self._on_proved = on_proved
        self._emit = emit
        self._tasks: dict[Identity, asyncio.Task[None]] = {}
        self._last_run: dict[Identity, float] = {}  # when its last canary began (monotonic seconds)
        self._asked_until: dict[Identity, float] = {}  # Unix seconds: the expiry of a loaded model that was asked
        self._drift: dict[Identity, str] = {}
        self._passed: dict[Identity, object] = {}  # what the backend ran when it passed its last canary
        self._proved: dict[Identity, float] = {}  # when it passed another gateway's canary (monotonic seconds)

    def run_if_due(self, state: BackendState) -> None:
        """Start a canary if one is due. Called after each health check."""
        key, name = state.backend.identity, f"canary {state.name}"
        task = self._tasks.get(key)
        if task is not None and not task.done():
            return
        now = time.monotonic()
        suspect = state.health.state is State.SUSPECT
        if state.health.proof_due(now) and self._proved.get(key, 0.0) > state.health.since:
            self._on_proved(state)
            state.evidence.proved("passed the canary of another gateway")
        elif state.health.proof_due(now) and not (suspect and state.inflight):  # else the requests under way decide
            state.health.trial = True
            self._tasks[key] = self._failures.once("canary", self._decide(state), name)
        elif self._confirmation_due(state, now):
            self._tasks[key] = self._failures.once("canary", self._confirm(state), name)

    def seen_elsewhere(self, state: BackendState, at: float) -> None:
        """Another gateway ran a canary at `at` (monotonic seconds), and shared what it saw: postpone the next."""
        self._last_run[state.backend.identity] = max(at, self._last_run.get(state.backend.identity, at))

    def proved_elsewhere(self, state: BackendState, at: float) -> None:
        """It passed another gateway's canary at `at` (monotonic seconds), which replaces one that is due here."""
        self._proved[state.backend.identity] = at

    def _confirmation_due(self, state: BackendState, now: float) -> bool:
        """Is a confirming canary due, `health.canary` seconds after the last? Only what is well and idle gets one."""
        every = state.backend.health.canary
        if every is None or not state.traits.chats or state.health.state not in (*WELL, State.UNKNOWN):
            return False
        if state.under_way or state.foreign or state.cooldown_until > now:
            return False
        if time.time() < self._asked_until.get(state.backend.identity, 0.0):
            return False  # a model that others have loaded is asked once until it would be unloaded
        return now - self._last_run.get(state.backend.identity, float("-inf")) >= every

    def keep_only(self, backends: Collection[Identity]) -> None:
        """Send canaries only to these backends from now on. The records of all others are dropped."""
        for key in self._tasks.keys() - backends:
            self._tasks.pop(key).cancel()
        for records in (self._last_run, self._asked_until, self._drift, self._passed, self._proved):
            for key in records.keys() - backends:
                del records[key]

    async def close(self) -> None:
        await cancel(*self._tasks.values())
        self._tasks.clear()

    async def _decide(self, state: BackendState) -> None:
        """Run a warm-up and a canary of a backend that came back; the outcome decides about its health. Where it passed
        its last canary, and no request has failed there, the warm-up decides, and the canary runs beside requests."""
        proven = self._passed.get(state.backend.identity) == _runs(state) and not state.health.from_requests
        try:
            if state.loads_on_demand and not await self._is_loaded(state):
                outcome = Outcome("ok", "answers its health check; its model is not loaded")
            else:
                outcome = await self._run(state, (WARM_UP,) if proven else (WARM_UP, *SHORT), now=True)
        finally:
            state.health.trial = False
        if outcome.kind == "ok":
            self._on_proved(state)
            state.evidence.proved(outcome.reason)
        elif outcome.kind == "misconfigured":
            state.evidence.misconfigured(outcome.reason)
        elif outcome.kind == "wrong":
            state.evidence.doubted(outcome.reason)
        elif outcome.kind != "unasked":
            state.evidence.disproved(outcome.reason)
        if proven and outcome.kind == "ok":
            await self._confirm(state, now=True)

    async def _confirm(self, state: BackendState, *, now: bool = False) -> None:
        """Run a canary of a backend that is well or unknown. `now`: beside requests."""
        if state.loads_on_demand and not await self._is_loaded(state):
            return
        outcome = await self._run(state, SHORT, now=now)
        if state.health.state not in SERVING:
            return
        if outcome.kind == "misconfigured":
            state.evidence.misconfigured(outcome.reason)
        elif outcome.kind == "wrong":
            state.evidence.doubted(outcome.reason)
        elif outcome.kind == "lost":
            state.evidence.failed(outcome.reason)

    async def _run(self, state: BackendState, checks: tuple[str, ...], *, now: bool) -> Outcome:
        self._last_run[state.backend.identity] = time.monotonic()
        if state.held is not None and state.held.until != inf and not state.backend.exclusive:
            self._asked_until[state.backend.identity] = state.held.until
        replies: dict[bytes, CheckReply] = {}
        observations = await probe(state, checks, now=now, brief=True, replies=replies)
        self._report_drift(state)
        outcome = outcome_of(observations, replies.values())
        if outcome.kind in ("lost", "wrong", "misconfigured"):
            self._passed.pop(state.backend.identity, None)
        elif outcome.kind == "ok" and "arithmetic" in checks:
            self._passed[state.backend.identity] = _runs(state)
        return outcome

    def _report_drift(self, state: BackendState) -> None:
        """Log and emit the differences from routes.yaml when they changed."""
        differences = joined(drift(state, time.monotonic()))
        if differences != self._drift.get(state.backend.identity, ""):
            self._drift[state.backend.identity] = differences
            if differences:
                log.warning("%s is not what routes.yaml says: %s", state.name, differences)
            self._emit(Event(time.time(), "drift", state.name, differences))


def _runs(state: BackendState) -> object:
    """What tells whether a backend is started again as it was."""
    return state.backend.model, state.backend.launch


def outcome_of(observations: Mapping[str, Observation], replies: Iterable[CheckReply]) -> Outcome:
    """The outcome of a canary for the backend's health, from its observations and replies. A check that fails because
    the backend lacks a capability is drift and does not affect its health."""
    replies = list(replies)
    if any(reply.ours for reply in replies):
        return Outcome("unasked", "the gateway itself lacked something")
    for reply in replies:
        if reply.failure is None and reply.status != 200:
            verdict = judge(reply.status, reply.headers, reply.body, "chat")
            if verdict.kind == "misconfigured":
                return Outcome("misconfigured", verdict.reason)
            if verdict.kind in ("failed", "cooldown"):
                return Outcome(
                    "lost" if verdict.kind == "failed" else "busy", prefixed("its canary was ", verdict.reason)
                )
    for check, observation in observations.items():
        if observation.seen.startswith(NO_ANSWER):
            return Outcome("lost", quoting(f"canary ({check})", observation.seen))
    arithmetic = observations.get("arithmetic")
    if arithmetic is None:
        return Outcome("ok", "answers again, as it did before; its canary runs beside requests")
    if arithmetic.result == "no":
        return Outcome("wrong", quoting("canary (arithmetic)", arithmetic.seen))
    if any(observation.seen.startswith("busy") for observation in observations.values()):
        return Outcome("busy", "was busy with requests")
    return Outcome("ok", "passed its canary")
