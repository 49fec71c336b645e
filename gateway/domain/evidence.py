"""Evidence of one backend's health: what checks, requests, canaries and operators found of it, as it comes in.

Each method takes the time of now, feeds the health machine (which is pure), and has the record report what changed.
"""

from __future__ import annotations

import time
from typing import Protocol

from gateway.domain.health_machine import Health
from gateway.domain.health_state import State, Transition

COOLDOWN_FIRST, COOLDOWN_MOST = 60.0, 600.0  # seconds
BODIES_TO_AGREE = 2  # different request bodies that have to fail before a cloud is considered down
BLAMED_MOST = 16  # keys of failed bodies that are remembered


class Owner(Protocol):
    """The record of the backend (`BackendState`)."""

    health: Health
    cooldown_until: float

    def forget(self) -> None: ...
    def report_transition(self, transition: Transition, verdict: str, *, announce: bool = True) -> None: ...
    def report_gone(self) -> None: ...
    def report_stalled(self) -> None: ...


class Evidence:
    """Times are monotonic seconds. `answered_at`: when a request last got its whole answer. `refused_since`: since when
    its port refuses connections; 0 = it does not."""

    __slots__ = ("_blamed_by", "_owner", "_paused_at", "answered_at", "refused_since")

    def __init__(self, owner: Owner) -> None:
        self.answered_at = 0.0
        self.refused_since = 0.0
        self._owner = owner
        self._blamed_by: tuple[bytes, ...] = ()  # keys of the bodies that failed there since, where nothing else tells
        self._paused_at = 0.0  # when it last asked for a pause

    def alive(self) -> None:
        """A health check was good."""
        self.refused_since = 0.0
        self._report(self._owner.health.alive(time.monotonic()))

    def dead(self, reason: str, *, refused: bool = False, answered: bool = False) -> None:
        """A health check failed. `refused`: nobody listens there, so the engine is being started anew; `answered`: it
        says itself that it is not well."""
        now = time.monotonic()
        if refused:
            self._owner.forget()
        if refused and not self.refused_since:
            self.refused_since = now
        self._report(self._owner.health.dead(reason, now, refused=refused, answered=answered))
        if refused and self._owner.health.state in (State.DOWN, State.WARMING, State.PARKED):
            self._owner.report_gone()

    def succeeded(self) -> None:
        """A request was answered whole."""
        health = self._owner.health
        self.answered_at = time.monotonic()
        if self._blamed_by:
            self._blamed_by = ()
        if health.fails or health.state is not State.READY:
            self._report(health.succeeded(time.monotonic()))

    def failed(self, reason: str, *, disputed: bool = False) -> None:
        """A request failed there. `disputed`: the request itself may be to blame."""
        self._report(self._owner.health.failed(reason, time.monotonic(), disputed=disputed))

    def failed_by(self, body: bytes, reason: str) -> None:
        """A request failed at a cloud, which is asked no harmless requests: other bodies have to fail too before it is
        down, and the same body again (known by its key) adds nothing."""
        if body in self._blamed_by:
            return
        self._blamed_by = (*self._blamed_by[-BLAMED_MOST:], body)
        self.failed(reason, disputed=len(self._blamed_by) < BODIES_TO_AGREE)

    def unanswered(self, reason: str) -> None:
        """A harmless request was not answered."""
        transition = self._owner.health.unanswered(reason, time.monotonic())
        proof = transition is not None and transition.after is State.DOWN
        self._report(transition, "disproved" if proof else "")

    def cleared(self) -> None:
        """A harmless request was answered."""
        self._report(self._owner.health.cleared(time.monotonic()))

    def misconfigured(self, reason: str) -> None:
        """It refuses our credential, or does not serve the model."""
        self._report(self._owner.health.misconfigured(reason, time.monotonic()), "misconfigured")

    def configured(self) -> None:
        """Its list of models is right (again)."""
        self._report(self._owner.health.configured(time.monotonic()))

    def stalled(self, reason: str) -> None:
        """Its engine stands still: nothing that runs there will end."""
        self._report(self._owner.health.stalled(reason, time.monotonic()), "stalled")
        self._owner.report_stalled()

    def load(self, *, full: bool) -> None:
        """`full`: all its slots are taken."""
        self._report(self._owner.health.load(full, time.monotonic()))

    def proved(self, reason: str = "passed its canary") -> None:
        """A canary was answered rightly."""
        self._report(self._owner.health.proved(time.monotonic(), reason), "proved")

    def disproved(self, reason: str) -> None:
        """A canary was not answered."""
        self._report(self._owner.health.disproved(reason, time.monotonic()), "disproved")

    def doubted(self, reason: str) -> None:
        """A canary was answered wrongly."""
        self._report(self._owner.health.doubted(reason, time.monotonic()), "doubted")

    def drain(self, *, announce: bool = True) -> None:
        """An operator wants nothing new to be sent there. `announce`: other gateways are to drain it too."""
        self._report(self._owner.health.drain(time.monotonic()), "drained", announce=announce)

    def resume(self) -> None:
        """An operator ends the drain."""
        self._report(self._owner.health.resume(time.monotonic()), "resumed")

    def cool_down(self, seconds: float, now: float) -> None:
        """It asked for a pause. The first pause may be meant for a single request (too large for a limit of its own),
        so it is kept short; a backend that asks again and answered nobody in between is believed."""
        until = self._owner.cooldown_until
        first = self.answered_at >= self._paused_at or now < until
        self._paused_at = now
        most = COOLDOWN_FIRST if first else COOLDOWN_MOST
        self._owner.cooldown_until = max(until, now + min(seconds, most))

    def _report(self, transition: Transition | None, verdict: str = "", *, announce: bool = True) -> None:
        """Report a change of health. `verdict`: the kind of proof behind it, where other gateways may rely on that."""
        if transition is None:
            return
        if transition.after is State.DOWN:
            self._owner.forget()  # it may come back with other flags
        self._owner.report_transition(transition, verdict, announce=announce)
