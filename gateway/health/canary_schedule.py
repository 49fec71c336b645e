"""When canaries are sent. A canary is a short form of the checks, run against a backend in the background. On a
recovery its outcome decides; on first contact and when the backend is idle it confirms, and shows where the backend
differs from what routes.yaml declares."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from gateway.domain.backend import BackendState
from gateway.domain.drift import drift
from gateway.domain.engine_traits import TRAITS
from gateway.domain.events import Event
from gateway.domain.facts import Observation
from gateway.domain.health_state import SERVING, WELL, State
from gateway.domain.reason import joined, prefixed, quoting
from gateway.health.checks import NO_ANSWER, Reply
from gateway.health.probes import probe
from gateway.inspection.error_replies import judge
from gateway.supervision import Failures

log = logging.getLogger("gateway.canary")

WARM_UP = "plain"  # the first request after a start may take long, and says nothing but that it was answered
SHORT = ("arithmetic", "reasoning", "tool_auto")

IsLoaded = Callable[[BackendState], Awaitable[bool]]


class Outcome(NamedTuple):
    """`kind`: ok | lost (no answer) | wrong (another answer) | misconfigured | busy (not asked, or refused for now)
    | unasked (the gateway itself could not)."""

    kind: Literal["ok", "lost", "wrong", "misconfigured", "busy", "unasked"]
    reason: str


class CanarySchedule:
    """At most one canary per backend at a time. `is_loaded`: does a backend that loads models on demand hold its model
    in memory? Where it does not, a canary would make it load. `on_proved` is called when a canary brings a backend
    back."""

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
        self._tasks: dict[BackendKey, asyncio.Task[None]] = {}
        self._last_run: dict[BackendKey, float] = {}  # when its last canary was begun (monotonic seconds)
        self._drift: dict[BackendKey, str] = {}
        self._proved: dict[BackendKey, float] = {}  # when another gateway's canary was passed (monotonic seconds)

    def run_if_due(self, state: BackendState) -> None:
        """Start a canary if one is due. Called after each health check."""
        task = self._tasks.get(key_of(state))
        if task is not None and not task.done():
            return
        now = time.monotonic()
        suspect = state.health.state is State.SUSPECT
        if state.health.proof_due(now) and self._proved.get(key_of(state), 0.0) > state.health.since:
            self._on_proved(state)
            state.evidence.proved("passed the canary of another gateway")
        elif state.health.proof_due(now) and not (suspect and state.inflight):  # else the requests under way decide
            state.health.trial = True
            self._tasks[key_of(state)] = self._failures.once("canary", self._decide(state), f"canary {state.name}")
        elif self._due(state, now):
            self._tasks[key_of(state)] = self._failures.once("canary", self._confirm(state), f"canary {state.name}")

    def seen_elsewhere(self, state: BackendState, at: float) -> None:
        """Another gateway has run a canary at `at` (monotonic seconds), and has passed on what it saw."""
        self._last_run[key_of(state)] = max(at, self._last_run.get(key_of(state), at))

    def proved_elsewhere(self, state: BackendState, at: float) -> None:
        """Another gateway's canary has brought the backend back at `at` (monotonic seconds): it counts where one is
        due."""
        self._proved[key_of(state)] = at

    def _due(self, state: BackendState, now: float) -> bool:
        """Is a confirming canary due? Only of a backend that is well and idle, `health.canary` after the last one."""
        every = state.backend.health.canary
        if every is None or not TRAITS[state.backend.engine].chats or state.health.state not in (*WELL, State.UNKNOWN):
            return False
        if state.under_way or state.foreign or state.cooldown_until > now:
            return False
        return now - self._last_run.get(key_of(state), float("-inf")) >= every

    def keep_only(self, backends: Collection[BackendKey]) -> None:
        """Canaries go only to these from now on; what is known of others is dropped."""
        for key in self._tasks.keys() - backends:
            self._tasks.pop(key).cancel()
        for known in (self._last_run, self._drift, self._proved):
            for key in known.keys() - backends:
                del known[key]

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def _decide(self, state: BackendState) -> None:
        """The backend is there again: a warm-up and a canary, whose outcome decides."""
        try:
            if TRAITS[state.backend.engine].loads_on_demand and not await self._is_loaded(state):
                outcome = Outcome("ok", "answers its health check; its model is not loaded")
            else:
                outcome = await self._run(state, (WARM_UP, *SHORT), now=True)
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

    async def _confirm(self, state: BackendState) -> None:
        """A canary of a backend that is well or unknown."""
        if TRAITS[state.backend.engine].loads_on_demand and not await self._is_loaded(state):
            return
        outcome = await self._run(state, SHORT, now=False)
        if state.health.state not in SERVING:
            return
        if outcome.kind == "misconfigured":
            state.evidence.misconfigured(outcome.reason)
        elif outcome.kind == "wrong":
            state.evidence.doubted(outcome.reason)
        elif outcome.kind == "lost":
            state.evidence.failed(outcome.reason)

    async def _run(self, state: BackendState, checks: tuple[str, ...], *, now: bool) -> Outcome:
        self._last_run[key_of(state)] = time.monotonic()
        replies: dict[bytes, Reply] = {}
        seen = await probe(state, checks, now=now, replies=replies)
        self._show_drift(state)
        return outcome_of(seen, replies.values())

    def _show_drift(self, state: BackendState) -> None:
        found = joined(drift(state, time.monotonic()))
        if found != self._drift.get(key_of(state), ""):
            self._drift[key_of(state)] = found
            if found:
                log.warning("%s is not what routes.yaml says: %s", state.name, found)
            self._emit(Event(time.time(), "drift", state.name, found))


BackendKey = tuple[str, str, str | None]


def key_of(state: BackendState) -> BackendKey:
    return state.backend.identity


def outcome_of(seen: Mapping[str, Observation], replies: Iterable[Reply]) -> Outcome:
    """What a canary shows of a backend's health. A check that the backend fails for want of a capability is drift, and
    no matter of health."""
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
    for check, observation in seen.items():
        if observation.seen.startswith(NO_ANSWER):
            return Outcome("lost", quoting(f"canary ({check})", observation.seen))
    arithmetic = seen["arithmetic"]
    if arithmetic.result == "no":
        return Outcome("wrong", quoting("canary (arithmetic)", arithmetic.seen))
    if any(observation.seen.startswith("busy") for observation in seen.values()):
        return Outcome("busy", "was busy with requests")
    return Outcome("ok", "passed its canary")
