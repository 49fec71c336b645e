"""The health of one backend: a small state machine, with time passed in and no effects.

unknown -> warming -> ready <-> busy -> suspect -> down -> warming -> ...      draining, misconfigured, parked

What an operator (`drain`) or the mode in force (`park`) decided about a backend, or that its engine was put to sleep
(`sleeps`), wins over all evidence, which is still counted: it tells how the backend is when that ends.

Evidence changes the state: liveness (the prober's checks), outcomes of real requests, progress (`stalled`: the engine
makes none) and canaries (`proved`, `disproved`, `doubted`). A state that requests caused is not cleared by a good
health check alone, since a broken engine answers `/health` too. After good checks a canary decides, or, where there are
no canaries, one trial request at a time (half-open).
"""

from __future__ import annotations

from gateway.domain.health_state import BACKOFF_LEAST as BACKOFF_LEAST
from gateway.domain.health_state import SERVING, WELL, HealthRecord, State, Transition, is_steady, pause_after

# Seconds for which a failed backend gets no requests. Each pause is twice the one before.
BACKOFF_MOST = 30.0  # until one trial request is sent to a backend that failed requests
ASLEEP = "asleep: somebody has put its engine to sleep"
MISCONFIGURED_FOR = 600.0  # until one trial request is sent to an unprobed backend that refuses our key


class Health(HealthRecord):
    """The transitions. Each method takes one piece of evidence or one order, and gives the change of state, if any."""

    __slots__ = ()

    # -- liveness -------------------------------------------------------------------------------------------------

    def alive(self, now: float) -> Transition | None:
        """A liveness check was good."""
        self.oks += 1
        self.hopeless = self.silent = False
        if self.oks == 1:
            self.good_since = now
        if self.state in WELL and not self.from_requests:
            self.fails = 0
        if self.state in WELL or self.set_aside:
            return None
        if self.state is State.UNKNOWN or (self.state is State.PARKED and not self.canaried):
            return self._ready("answers its health check", now)
        if self.state is State.PARKED:
            return self._warm("answers its health check; a canary decides", now)
        if self.oks < self._checks_needed() or not self.quiet(now):
            return None
        return self._good_for_long(now)

    def _checks_needed(self) -> int:
        return 1 if self.state is State.WARMING and not self.ever_ready else self.settings.recover_after

    def _good_for_long(self, now: float) -> Transition | None:
        """Handle enough good checks in a row: decide whether checks alone are enough evidence."""
        if self.state is State.WARMING:
            return None if self.canaried else self._ready(f"{self.oks} good health checks", now)
        if self.from_requests:
            if self.state is State.DOWN and now >= self.retry_at and not self.canaried:
                return self._trial("answers its health check again; one request decides", now)
            return None
        if self.state is State.DOWN and self.canaried:
            return self._warm(f"{self.oks} good health checks; a canary decides", now)
        if self.state in (State.DOWN, State.SUSPECT):
            return self._ready(f"{self.oks} good health checks", now)
        return None

    def dead(
        self, reason: str, now: float, *, refused: bool = False, answered: bool = False, silent: bool = False
    ) -> Transition | None:
        """A liveness check failed. `refused`: its port refuses connections; `answered`: it answered with an error
        status; neither: it timed out. `silent`: nothing else came from it either."""
        self.oks = 0
        self.fails += 1
        self.silent = silent
        self.gone = self.gone or refused
        if self.asleep and refused:
            return self._up("its engine was asleep, and is gone", now)
        if self.held or self.summoned:
            return None
        if self.on_demand and (not self.ever_ready or self.state in (State.DOWN, State.WARMING)):
            self.ever_ready = False
            return self._move(State.PARKED, self._away(), now)
        if self.state not in SERVING:
            return self._still_away(reason, now, refused=refused, answered=answered)
        if self.state is State.UNKNOWN:
            return self._warm(reason, now) if now - self.born < self.settings.start_grace else self._down(reason, now)
        if refused or answered:
            self._fall(now)
        if self.fails < self.settings.fail_after:
            return self._move(State.SUSPECT, reason, now)
        if self.on_demand:
            self.ever_ready = self.well = False
            return self._move(State.PARKED, self._away(reason), now)
        return self._down(reason, now)

    def _away(self, gone: str = "") -> str:
        """Why it is parked. `gone`: why its checks fail where it was there before."""
        how = "starts on request" if self.on_request else "run: on_demand"
        return f"{how} and gone: {gone}" if gone else how if self.on_request else f"{how} and not there"

    def _still_away(self, reason: str, now: float, *, refused: bool, answered: bool) -> Transition | None:
        """Handle a failed check of a backend that was not in use."""
        if self.state is State.WARMING:
            since = self.since if self.ever_ready else self.born
            self.hopeless = now - since >= self.settings.start_grace
            if self.hopeless or (refused and self.ever_ready):
                return self._down(reason, now)
        elif self.state is State.DOWN and self.gone and answered and not self.hopeless:
            return self._warm(reason, now)  # a new process, which loads its model
        elif self.state is not State.DOWN and not self.on_demand:
            return self._down(reason, now)
        self.reason = reason
        return None

    # -- requests -------------------------------------------------------------------------------------------------

    def succeeded(self, now: float) -> Transition | None:
        """A request was answered."""
        self.fails = 0
        self.backoff = BACKOFF_LEAST
        if self.state in WELL:
            self.from_requests = False
            return None
        if self.held or (self.hold and not self.trial and self.state in (State.DOWN, State.WARMING)):
            return None  # a request that was sent before the backend went down
        return self._ready("answered a request", now)

    def failed(self, reason: str, now: float, *, disputed: bool = False) -> Transition | None:
        """A request failed: a connection failure, a 5xx, silence, a broken answer. `disputed`: the request itself may
        be the cause, so the backend only becomes suspect, unless a harmless request failed too."""
        if self.state in (State.PARKED, State.DRAINING, State.WARMING):
            return None  # a request that was sent before the backend was stopped or went down
        self.fails += 1
        self.from_requests = True
        self.oks = 0
        if self.state is State.DOWN and now < self.retry_at:
            return None  # it was sent before the backend went down: part of the same incident, not a failed trial
        if disputed and not self.unanswered_lately and self.state is not State.DOWN:
            self.retry_at = now + self.backoff
            return self._move(State.SUSPECT, reason, now)
        if self.half_open or self.state is State.DOWN or self.fails >= self.settings.fail_after:
            self._pause(now)
            return self._down(reason, now)
        self.retry_at = now + self.backoff
        return self._move(State.SUSPECT, reason, now)

    def unanswered(self, reason: str, now: float) -> Transition | None:
        """A harmless request to a suspected backend was not answered."""
        self.unanswered_lately = True
        return self.failed(reason, now)

    def cleared(self, now: float) -> Transition | None:
        """A harmless request was answered: the requests that failed before caused their own failures."""
        self.unanswered_lately = False
        if self.state in (*WELL, State.UNKNOWN):
            self.fails = 0
            self.from_requests = False
            return None
        if self.state is State.SUSPECT and not self.wrong:
            return self._ready("answers a harmless request", now)
        if self.state is State.DOWN and self.settings.every is None:
            return self._ready("answers a harmless request", now)
        return None

    def misconfigured(self, reason: str, now: float) -> Transition | None:
        """The backend answers, but refuses our credential or does not know the model."""
        if self.state is State.DRAINING:
            return None
        self.oks = 0
        if self.set_aside:
            return None
        self.from_requests = True
        if self.half_open:  # the trial request was refused although the list of models is right
            self.half_open = False
            self._pause(now)
        if self.settings.every is None:  # unprobed: no check would notice that it is right again
            self.retry_at = now + MISCONFIGURED_FOR
        return self._move(State.MISCONFIGURED, reason, now)

    def configured(self, now: float) -> Transition | None:
        """The list of models accepts our credential and contains our model: one trial request decides."""
        if self.state is State.MISCONFIGURED and now >= self.retry_at:
            return self._trial("its model list is right again; one request decides", now)
        return None

    # -- progress -------------------------------------------------------------------------------------------------

    def stalled(self, reason: str, now: float) -> Transition | None:
        """The engine makes no progress: the backend is down at once, and each stall doubles the pause."""
        if self.state in (State.PARKED, State.DRAINING):
            return None
        forgotten = self.well and is_steady(now - self.well_since, self.settings.every)
        self.stalls = 1 if forgotten else self.stalls + 1
        self.from_requests = True
        self.oks = 0
        self.retry_at = now + pause_after(self.stalls)
        return self._down(reason, now)

    def load(self, full: bool, now: float) -> Transition | None:
        """A check found all slots in use (`full`) or not. Two full checks in a row make the backend busy."""
        self.full = self.full + 1 if full else 0
        if self.state is State.READY and self.full >= 2:
            return self._move(State.BUSY, "every slot is in use", now)
        if self.state is State.BUSY and not full:
            return self._move(State.READY, "has a free slot", now)
        return None

    # -- canaries -------------------------------------------------------------------------------------------------

    def proof_due(self, now: float) -> bool:
        """Is a canary due that decides whether the backend has recovered?"""
        if not self.canaried or self.trial or now < self.retry_at:
            return False
        if self.state is State.WARMING:
            return self.oks >= self._checks_needed() and self.quiet(now)
        if self.state in (State.DOWN, State.SUSPECT) and self.from_requests:
            return self.oks >= self.settings.recover_after and self.quiet(now)
        return False

    def proved(self, now: float, reason: str = "passed its canary") -> Transition | None:
        """The canary got the right answer."""
        if self.held:
            return None
        self.backoff = BACKOFF_LEAST
        if self.state in WELL:
            self.fails = 0
            self.from_requests = False
            return None
        return self._ready(reason, now)

    def disproved(self, reason: str, now: float) -> Transition | None:
        """The canary got no answer."""
        if self.state in WELL or self.state is State.UNKNOWN:
            return self.failed(reason, now)
        if self.state in (State.DRAINING, State.PARKED):
            return None
        self.oks = 0
        self._pause(now)
        if self.state is State.WARMING and self.starting(now):
            self.reason = reason
            return None
        self.from_requests = True
        return self._down(reason, now)

    def doubted(self, reason: str, now: float) -> Transition | None:
        """The canary got a wrong answer: until the next canary the backend is used only when no other can be."""
        if self.state in (State.DRAINING, State.PARKED):
            return None
        self.from_requests = self.wrong = True
        self.half_open = False
        self.oks = 0
        self.retry_at = now + (self.settings.canary or BACKOFF_MOST)
        return self._move(State.SUSPECT, reason, now)

    # -- an operator, and the mode in force -----------------------------------------------------------------------

    def drain(self, now: float, reason: str = "drained by an operator") -> Transition | None:
        """A backend outside the mode, or asleep, stays parked; it is drained when that ends."""
        self.half_open = self.summoned = False
        self.drained = True
        return None if self.set_aside else self._move(State.DRAINING, reason, now)

    def remove(self, now: float) -> None:
        """The backend was removed from routes.yaml. Returns no transition: the edit itself is already an event."""
        self.half_open = self.outside = self.asleep = self.summoned = False
        self._move(State.DRAINING, "taken out of routes.yaml", now)

    def resume(self, now: float) -> Transition | None:
        """An operator ends the drain. The backend is used at once only if no check or request failed meanwhile."""
        self.drained = False
        if self.state is not State.DRAINING:
            return None
        if self.settings.every is None:
            return self._move(State.UNKNOWN, "resumed by an operator", now)
        if self.oks and not self.gone and not self.from_requests:
            return self._ready("resumed by an operator", now)
        return self._warm("resumed by an operator; not seen well yet", now)

    def park(self, reason: str, now: float) -> Transition | None:
        """The mode in force does not contain the backend: it is parked until `unpark`."""
        self.half_open = self.summoned = False
        self.outside = True
        return self._move(State.PARKED, reason, now)

    def unpark(self, now: float) -> Transition | None:
        """The mode in force contains the backend (again)."""
        if not self.outside:
            return None
        self.outside = False
        if self.asleep:
            return self._move(State.PARKED, ASLEEP, now)
        return self._begin_anew("in the mode in force", now)

    def sleeps(self, now: float, reason: str = ASLEEP) -> Transition | None:
        """Its engine answers, and is asleep: it is parked until it is awake."""
        self.half_open = False
        self.asleep = True
        self.oks += 1  # it answers: it is there, and holds its memory
        return None if self.outside else self._move(State.PARKED, reason, now)

    def awake(self, now: float) -> Transition | None:
        """Its engine is not asleep (any more)."""
        return self._up("has woken up", now) if self.asleep else None

    def _up(self, why: str, now: float) -> Transition | None:
        self.asleep = False
        return None if self.outside else self._begin_anew(why, now)

    def _begin_anew(self, why: str, now: float) -> Transition | None:
        """It is no longer parked. Falls from before do not count: it is another start."""
        self.ever_ready = self.well = self.gone = self.hopeless = False
        self.from_requests = self.unanswered_lately = self.wrong = False
        self.falls = self.stalls = self.fails = 0
        self.retry_at, self.backoff, self.born = 0.0, BACKOFF_LEAST, now
        if self.drained:
            return self._move(State.DRAINING, "drained by an operator", now)
        if self.settings.every is None:
            return self._move(State.UNKNOWN, why, now)
        if self.oks and not self.canaried:
            return self._ready(f"{why}, and answers its health check", now)
        return self._warm(f"{why}; {'a canary decides' if self.oks else 'not seen well yet'}", now)

    def stopped(self) -> None:
        """The gateway has had the engine stopped. That is no fall, and what was seen of the engine counts no more."""
        self.oks = self.fails = 0
        self.gone = True
        self.asleep = self.ever_ready = self.well = False
        self.from_requests = self.unanswered_lately = self.wrong = False
        if self.state is State.DRAINING:
            self.reason = "stopped by the gateway"

    def started(self, now: float) -> Transition | None:
        """The gateway has had the engine started: it has `start_grace` from now on. Ends a drain. What is parked
        stays so until it is seen."""
        self.stopped()
        self.drained = False
        self.hopeless = self.half_open = False
        self.born, self.retry_at = now, 0.0
        if self.state is State.PARKED:
            return None
        if self.settings.every is None:
            self.summoned = False
            return self._move(State.UNKNOWN, "started by the gateway", now)
        return self._warm("started by the gateway", now)

    # -- starts for requests --------------------------------------------------------------------------------------

    def summon(self, reason: str, now: float) -> Transition | None:
        """The gateway starts a parked backend for a request. Until it is ready, or `dismiss` says that the start has
        failed, checks that it does not answer are no news."""
        if not self.startable:
            return None
        self.summoned = True
        self.ever_ready = self.well = self.hopeless = self.from_requests = self.wrong = False
        self.oks, self.born, self.retry_at = 0, now, 0.0
        return self._move(State.WARMING, reason, now)

    def dismiss(self, reason: str, now: float) -> Transition | None:
        """It is parked, and a request may have it started again: it was stopped, or its start has failed. What another
        order has decided about it stays."""
        if self.outside or self.state in WELL:
            return None
        self.stopped()
        self.drained = self.summoned = self.half_open = False
        return self._move(State.PARKED, reason, now)

    # -- moves ----------------------------------------------------------------------------------------------------

    def _ready(self, reason: str, now: float) -> Transition | None:
        self.fails = self.full = 0
        self.from_requests = self.half_open = self.gone = self.hopeless = self.summoned = False
        self.unanswered_lately = self.wrong = False
        self.ever_ready = self.well = True
        self.well_since = now
        return self._move(State.READY, reason, now)

    def _warm(self, reason: str, now: float) -> Transition | None:
        self.half_open = self.from_requests = False
        return self._move(State.WARMING, reason, now)

    def _trial(self, reason: str, now: float) -> Transition | None:
        self.half_open = True
        return self._move(State.SUSPECT, reason, now)

    def _pause(self, now: float) -> None:
        self.retry_at = now + self.backoff
        self.backoff = min(BACKOFF_MOST, self.backoff * 2)

    def _down(self, reason: str, now: float) -> Transition | None:
        self._fall(now)
        self.half_open = False
        return self._move(State.DOWN, reason, now)
