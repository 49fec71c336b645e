"""The health of one backend: a small state machine, with time passed in and no effects.

    unknown -> warming -> ready <-> busy -> suspect -> down -> warming -> ...      draining, misconfigured, parked

Evidence moves it: liveness (the prober's answers), outcomes (what real requests met), progress (an engine that stands
still: `stalled`) and canaries (`proved`, `disproved`, `doubted`). A verdict that came from requests is not cleared by a
liveness 200 alone, since a broken engine answers `/health` too: after good checks a canary decides, or, where none is
asked, one request at a time that is let through (half-open).
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config.snapshot import HealthSettings
from gateway.domain import pauses
from gateway.domain.health_state import SERVING, WELL, State, Transition


@dataclass(slots=True)
class Health:
    """`since` and all times are the caller's monotonic seconds."""

    backend: str
    settings: HealthSettings
    on_demand: bool = False
    state: State = State.UNKNOWN
    reason: str = "not checked yet"
    since: float = 0.0
    born: float = 0.0
    canaried: bool = False  # canaries are put to it: they decide when it is back
    ever_ready: bool = False
    fails: int = 0  # failures in a row, of either kind
    oks: int = 0  # good liveness checks in a row
    good_since: float = 0.0  # when that row began
    from_requests: bool = False  # the verdict stands on real requests
    unanswered_lately: bool = False  # a harmless request was not answered either, since it was last well
    wrong: bool = False  # its last canary was answered wrongly
    half_open: bool = False  # suspect on trial: one request at a time
    trial: bool = False  # that request, or a canary, is under way
    retry_at: float = 0.0  # not on trial before
    backoff: float = pauses.BACKOFF_LEAST
    gone: bool = False  # nobody listened there since it was last well
    hopeless: bool = False  # it has not come within `start_grace`
    well: bool = False  # ready, and not fallen since
    well_since: float = 0.0
    falls: int = 0  # in a row, with less than STEADY of being well between them
    stalls: int = 0  # likewise
    full: int = 0  # looks in a row that found every slot in use

    def usable(self, now: float) -> bool:
        """May a request be sent there at all?"""
        if self.state in SERVING:
            return not (self.half_open and self.trial)
        unprobed = self.state in (State.DOWN, State.MISCONFIGURED) and self.settings.every is None
        return unprobed and now >= self.retry_at and not self.trial

    def due(self, now: float) -> bool:
        """Suspect because of requests, well by its health checks since: one request at a time may find out, and that
        one goes there before its siblings. Without this a replica that failed once would never be asked again."""
        if self.state is not State.SUSPECT or self.trial or now < self.retry_at:
            return False
        return self.settings.every is None or self.oks >= self.settings.recover_after

    def starting(self, now: float) -> bool:
        """Not there, but it may well come: it is starting, or has only just gone."""
        if self.state not in (State.DOWN, State.WARMING) or self.hopeless:
            return False
        since = self.since if self.ever_ready else self.born
        return now - since < self.settings.start_grace

    def quiet(self, now: float) -> bool:
        """Has it been well by its checks for long enough? One that keeps coming and going is watched ever longer."""
        return self.oks > 0 and now - self.good_since >= self.hold

    @property
    def hold(self) -> float:
        """Seconds without a bad check that it takes to be used again."""
        return pauses.quiet_needed(self.falls, self.settings.every)

    # -- liveness -------------------------------------------------------------------------------------------------

    def alive(self, now: float) -> Transition | None:
        """A liveness check was good."""
        self.oks += 1
        self.hopeless = False
        if self.oks == 1:
            self.good_since = now
        if self.state in WELL:
            if not self.from_requests:
                self.fails = 0
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
        """Its good checks are enough; are checks enough?"""
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

    def dead(self, reason: str, now: float, *, refused: bool = False, answered: bool = False) -> Transition | None:
        """A liveness check failed. `refused` = nobody listens there; `answered` = somebody says that it is not well
        (neither = it took too long)."""
        self.oks = 0
        self.fails += 1
        self.gone = self.gone or refused
        if self.state is State.DRAINING:
            return None
        if self.on_demand and (not self.ever_ready or self.state in (State.DOWN, State.WARMING)):
            self.ever_ready = False
            return self._move(State.PARKED, "run: on_demand and not there", now)
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
            return self._move(State.PARKED, f"run: on_demand and gone: {reason}", now)
        return self._down(reason, now)

    def _still_away(self, reason: str, now: float, *, refused: bool, answered: bool) -> Transition | None:
        """A bad check of one that was not used before either."""
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
        self.backoff = pauses.BACKOFF_LEAST
        if self.state in WELL:
            self.from_requests = False
            return None
        if self.state is State.DRAINING or (self.hold and not self.trial and self.state in (State.DOWN, State.WARMING)):
            return None  # the last of what ran there before
        return self._ready("answered a request", now)

    def failed(self, reason: str, now: float, *, disputed: bool = False) -> Transition | None:
        """A request failed there: a connection failure, a 5xx, silence, a broken answer. `disputed`: the request itself
        may be to blame, so it is only suspected, unless a harmless request failed too."""
        if self.state in (State.PARKED, State.DRAINING, State.WARMING):
            return None  # the last requests of what was stopped, or has gone
        self.fails += 1
        self.from_requests = True
        self.oks = 0
        if self.state is State.DOWN and now < self.retry_at:
            return None  # begun before: the same incident, not another failed trial
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
        """A harmless request was answered: what failed there before was to blame itself."""
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
        """It answers, but refuses our credential or does not know the model."""
        if self.state is State.DRAINING:
            return None
        self.from_requests = True
        self.oks = 0
        if self.half_open:  # its model list was right, the request was refused all the same
            self.half_open = False
            self._pause(now)
        if self.settings.every is None:  # nobody else would notice that it is right again
            self.retry_at = now + pauses.MISCONFIGURED
        return self._move(State.MISCONFIGURED, reason, now)

    def configured(self, now: float) -> Transition | None:
        """Its model list now takes our credential and holds our model: one request decides."""
        if self.state is State.MISCONFIGURED and now >= self.retry_at:
            return self._trial("its model list is right again; one request decides", now)
        return None

    # -- progress -------------------------------------------------------------------------------------------------

    def stalled(self, reason: str, now: float) -> Transition | None:
        """Its engine stands still, whatever `/health` says: out at once, and the longer the oftener it happens."""
        if self.state in (State.PARKED, State.DRAINING):
            return None
        forgotten = self.well and pauses.is_steady(now - self.well_since, self.settings.every)
        self.stalls = 1 if forgotten else self.stalls + 1
        self.from_requests = True
        self.oks = 0
        self.retry_at = now + pauses.after_stalls(self.stalls)
        return self._down(reason, now)

    def load(self, full: bool, now: float) -> Transition | None:
        """A look at how much runs there: busy when two looks in a row find it full."""
        self.full = self.full + 1 if full else 0
        if self.state is State.READY and self.full >= 2:
            return self._move(State.BUSY, "every slot is in use", now)
        if self.state is State.BUSY and not full:
            return self._move(State.READY, "has a free slot", now)
        return None

    # -- canaries -------------------------------------------------------------------------------------------------

    def proof_due(self, now: float) -> bool:
        """Is it time for a canary to decide whether it is back?"""
        if not self.canaried or self.trial or now < self.retry_at:
            return False
        if self.state is State.WARMING:
            return self.oks >= self._checks_needed() and self.quiet(now)
        if self.state in (State.DOWN, State.SUSPECT) and self.from_requests:
            return self.oks >= self.settings.recover_after and self.quiet(now)
        return False

    def proved(self, now: float, reason: str = "passed its canary") -> Transition | None:
        """The canary was answered, and rightly."""
        if self.state is State.DRAINING:
            return None
        self.backoff = pauses.BACKOFF_LEAST
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
        """The canary was answered wrongly: it may be used where nobody else is, and is asked again in due course."""
        if self.state in (State.DRAINING, State.PARKED):
            return None
        self.from_requests = self.wrong = True
        self.half_open = False
        self.oks = 0
        self.retry_at = now + (self.settings.canary or pauses.BACKOFF_MOST)
        return self._move(State.SUSPECT, reason, now)

    # -- an operator ----------------------------------------------------------------------------------------------

    def drain(self, now: float) -> Transition | None:
        self.half_open = False
        return self._move(State.DRAINING, "drained by an operator", now)

    def remove(self, now: float) -> None:
        """It is in routes.yaml no longer. No event: the edit is one."""
        self.half_open = False
        self._move(State.DRAINING, "taken out of routes.yaml", now)

    def resume(self, now: float) -> Transition | None:
        """Used again; at once only if nothing has happened to it meanwhile."""
        if self.state is not State.DRAINING:
            return None
        if self.settings.every is None:
            return self._move(State.UNKNOWN, "resumed by an operator", now)
        if self.oks and not self.gone and not self.from_requests:
            return self._ready("resumed by an operator", now)
        return self._warm("resumed by an operator; not seen well yet", now)

    # -- moves ----------------------------------------------------------------------------------------------------

    def _ready(self, reason: str, now: float) -> Transition | None:
        self.fails = self.full = 0
        self.from_requests = self.half_open = self.gone = self.hopeless = False
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
        self.backoff = pauses.longer_backoff(self.backoff)

    def _fall(self, now: float) -> None:
        """It was well, and is no more."""
        if not self.well:
            return
        self.well = False
        forgotten = pauses.is_steady(now - self.well_since, self.settings.every)
        self.falls = 1 if forgotten else self.falls + 1

    def _down(self, reason: str, now: float) -> Transition | None:
        self._fall(now)
        self.half_open = False
        return self._move(State.DOWN, reason, now)

    def _move(self, state: State, reason: str, now: float) -> Transition | None:
        before = self.state
        self.reason = reason
        if state is before:
            return None
        self.state = state
        self.since = now
        return Transition(self.backend, before, state, reason, now)
