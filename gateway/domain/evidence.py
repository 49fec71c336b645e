"""Evidence of one backend's health: the results of checks, requests and canaries, and what operators do.

Each method reads the clock, feeds the health machine (which is pure), and reports a change through the record.
"""

from __future__ import annotations

import time
from typing import Literal, Protocol

from gateway.domain.health_machine import Health
from gateway.domain.health_state import READY, State, Transition

COOLDOWN_FIRST, COOLDOWN_MOST = 60.0, 600.0  # seconds
TO_AGREE = 2  # different bodies (of different clients, if there are several) that fail before a cloud counts as down
BLAMED_MOST = 16  # keys of failed bodies that are remembered, and one of each further client


class Owner(Protocol):
    """The record of the backend (`BackendState`)."""

    health: Health
    cooldown_until: float

    def forget(self) -> None: ...
    def report_transition(self, transition: Transition, verdict: str, *, announce: bool = True) -> None: ...
    def report(self, what: Literal["gone", "stalled"]) -> None: ...
    def announce(self, news: str) -> None: ...


class Evidence:
    """Times are monotonic seconds. `answered_at`: when a request last got its whole answer. `alive_at`: when a health
    check was last good. `refused_since`: since when its port refuses connections; 0 = it does not. `mute`: it answers
    nothing new, though what it has begun may end well."""

    __slots__ = ("_blamed_by", "_owner", "_paused_at", "alive_at", "answered_at", "mute", "refused_since")

    def __init__(self, owner: Owner) -> None:
        self.alive_at = 0.0
        self.mute = False
        self.answered_at = 0.0
        self.refused_since = 0.0
        self._owner = owner
        # key of a body that failed since the last success -> its client; clouds only
        self._blamed_by: dict[bytes, str] = {}
        self._paused_at = 0.0  # when it last answered 429

    def alive(self) -> None:
        """A health check succeeded."""
        self.refused_since = 0.0
        self.alive_at, self.mute = time.monotonic(), False
        self._report(self._owner.health.alive(self.alive_at))

    def dead(self, reason: str, *, refused: bool = False, answered: bool = False, silent: bool = False) -> None:
        """A health check failed. `refused`: its port refuses connections, so the engine is stopped or restarting;
        `answered`: it answered with an error status; `silent`: it got no answer, and nothing else came either."""
        now = time.monotonic()
        if refused:
            self._owner.forget()
        if refused and not self.refused_since:
            self.refused_since = now
        self._report(self._owner.health.dead(reason, now, refused=refused, answered=answered, silent=silent))
        if refused and self._owner.health.state in (State.DOWN, State.WARMING, State.PARKED):
            self._owner.report("gone")

    def succeeded(self) -> None:
        """A request got its complete answer."""
        health = self._owner.health
        self.answered_at = time.monotonic()
        if self._blamed_by:
            self._blamed_by = {}
        if (health.fails or health.state is not READY) and not self.mute:
            self._report(health.succeeded(time.monotonic()))

    def failed(self, reason: str, *, disputed: bool = False) -> None:
        """A request failed. `disputed`: the request itself may be the cause."""
        self._report(self._owner.health.failed(reason, time.monotonic(), disputed=disputed))

    def failed_by(self, body: bytes, client: str, reason: str, *, several: bool) -> None:
        """A cloud answered a request with an error. Clouds get no harmless test requests, so a cloud is down only after
        requests with different bodies failed, of different clients where there are `several`; the same body again
        (recognised by its key) does not count."""
        known = self._blamed_by
        if body in known:
            return
        if len(known) < BLAMED_MOST or client not in known.values():
            known[body] = client
        agreed = len(set(known.values())) if several else len(known)
        self.failed(reason, disputed=agreed < TO_AGREE)

    def unanswered(self, reason: str) -> None:
        """A harmless request was not answered."""
        transition = self._owner.health.unanswered(reason, time.monotonic())
        proof = transition is not None and transition.after is State.DOWN
        self._report(transition, "disproved" if proof else "")

    def cleared(self) -> None:
        """A harmless request was answered."""
        self._report(self._owner.health.cleared(time.monotonic()))

    def misconfigured(self, reason: str) -> None:
        """The backend refuses our credential, or does not serve the model."""
        self._report(self._owner.health.misconfigured(reason, time.monotonic()), "misconfigured")

    def configured(self) -> None:
        """Its list of models contains the configured model (again)."""
        self._report(self._owner.health.configured(time.monotonic()))

    def stalled(self, reason: str) -> None:
        """Its engine makes no progress: the requests running on it will not end."""
        self._report(self._owner.health.stalled(reason, time.monotonic()), "stalled")
        self._owner.report("stalled")

    def load(self, *, full: bool) -> None:
        """`full`: all its slots are taken."""
        self._report(self._owner.health.load(full, time.monotonic()))

    def proved(self, reason: str = "passed its canary") -> None:
        """A canary got the right answer."""
        self._report(self._owner.health.proved(time.monotonic(), reason), "proved")

    def disproved(self, reason: str) -> None:
        """A canary got no answer."""
        self._report(self._owner.health.disproved(reason, time.monotonic()), "disproved")

    def doubted(self, reason: str) -> None:
        """A canary got a wrong answer."""
        self._report(self._owner.health.doubted(reason, time.monotonic()), "doubted")

    def drain(self, *, announce: bool = True, reason: str = "drained by an operator") -> None:
        """No new requests are sent to the backend from now on. `announce`: other gateways drain it too."""
        health = self._owner.health
        news = announce and health.outside and not health.drained
        self._report(health.drain(time.monotonic(), reason), "drained", announce=announce)
        if news:  # it stays parked, so there is no transition that would tell it
            self._owner.announce("drained")

    def resume(self) -> None:
        """An operator ends the drain."""
        health = self._owner.health
        news = health.outside and health.drained
        self._report(health.resume(time.monotonic()), "resumed")
        if news:
            self._owner.announce("resumed")

    def follow_mode(self, parked: str | None) -> None:
        """The mode in force parks the backend for this reason; None = it contains the backend. Every gateway finds that
        out by itself, so the others need not hear of it."""
        health, now = self._owner.health, time.monotonic()
        self._report(health.park(parked, now) if parked is not None else health.unpark(now), announce=False)

    def asleep(self, reason: str) -> None:
        """Its engine is asleep; `reason` begins with "asleep". What was sent to it waits in vain."""
        self._report(self._owner.health.sleeps(time.monotonic(), reason), announce=False)
        self._owner.report("stalled")

    def awake(self) -> None:
        """Its engine is not asleep."""
        self._report(self._owner.health.awake(time.monotonic()), announce=False)

    def stopped(self) -> None:
        """The gateway has had its engine stopped."""
        self._owner.health.stopped()
        self._owner.forget()

    def started(self) -> None:
        """The gateway has had its engine started: it is warming, and no longer drained."""
        self.refused_since = 0.0
        self._report(self._owner.health.started(time.monotonic()), "resumed")

    def summon(self, reason: str) -> None:
        """The gateway starts it for a request."""
        self._report(self._owner.health.summon(reason, time.monotonic()), announce=False)

    def dismiss(self, reason: str) -> None:
        """It was stopped, or its start for a request has failed: the next request may have it started again."""
        health = self._owner.health
        drained = health.drained
        self._report(health.dismiss(reason, time.monotonic()), announce=False)
        if drained:
            self._owner.announce("resumed")

    def cool_down(self, seconds: float, now: float) -> None:
        """The backend answered 429. The first pause may be due to a single request that is too large for its rate
        limit, so it is capped at COOLDOWN_FIRST; a second 429 without a success in between is capped at
        COOLDOWN_MOST."""
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
