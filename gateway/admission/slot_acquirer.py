"""The admit stage of one request: it acquires the slots of the next attempt, at once or after a wait."""

from __future__ import annotations

import logging
import time

from gateway.accounting.accounts import estimate
from gateway.admission.access import Identity
from gateway.admission.backend_queue import QueueFull, Quota, Waiter
from gateway.admission.capacity import is_open, tokens_needed
from gateway.admission.failover import FailoverState, is_on_trial
from gateway.admission.slots import Admission, Lease
from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.request import InferenceRequest
from gateway.domain.tokens import room_needed
from gateway.engines.tokenize import count_tokens
from gateway.errors import GatewayError
from gateway.routing.plan import Candidate
from gateway.routing.refusal import FailedAttempt, refusal
from gateway.routing.why_not import STARTING
from gateway.routing.window import fits_window, near_limit

log = logging.getLogger("gateway.admission")

RETRY_UNKNOWN = 10.0  # seconds, if it is unknown how long other requests will take
COMING = frozenset({"rate_limit_exceeded", "backend_warming"})  # refusals with a time after which a retry may succeed


class SlotAcquirer:
    """`failover` has the candidates of the request. `tried` are its failed attempts; backends whose window turns out to
    be too small before an attempt are added. `began` (the loop's seconds): the queue deadline counts from there."""

    def __init__(
        self,
        admission: Admission,
        failover: FailoverState,
        request: InferenceRequest,
        alias: Alias,
        client: Identity,
        request_id: str,
        began: float,
        tried: list[FailedAttempt],
    ) -> None:
        self.waiter: Waiter | None = None  # its entry in the waiting set, from its first wait on
        self.queued = 0.0  # seconds of waiting for slots so far
        self._pauses = 0  # that all backends asked for, and that were waited through
        self._admission = admission
        self._failover = failover
        self._request = request
        self._alias = alias
        self._client = client
        self._limit = client.client.max_inflight if client.client is not None else None
        parent = client.client.parent if client.client is not None else None
        self._within = parent.max_inflight if parent is not None else None
        self._quota = self._new_quota() if admission.scheduler.sharing is not None else None
        self._request_id = request_id
        self._began = began
        self._tried = tried

    async def admit(self, *, returning: bool) -> Lease | None:
        """The slots of the next attempt, after a wait where none are free (`returning`: an attempt has failed before).
        None = no candidate is left. Raises `queue_full`, `queue_timeout`, and the refusal of the plan when a wait for a
        backend to return did not help."""
        failover = self._failover
        while True:
            in_vain = bool(failover.plan.startable) and not self._have_started()
            candidate = failover.next_candidate()
            if candidate is not None:
                if not await self._prompt_fits(candidate):
                    failover.mark_attempted(candidate)
                    failover.mark_failed(candidate, "too_long")
                    continue
                lease = self._admission.try_acquire(
                    candidate,
                    self._request,
                    self._client.name,
                    self._limit,
                    tokens=self._tokens(candidate.state),
                    asks=self._quota is not None,
                    within=self._within,
                )
            else:
                lease = None
            if lease is None:
                lease = await self._wait(returning)
            if lease is None:
                is_over = candidate is None and failover.next_candidate() is None
                if is_over and (in_vain or not failover.plan.startable):
                    return None
                continue
            failover.mark_attempted(lease.candidate)
            if lease.candidate is candidate or await self._still_fits(lease):
                return lease

    def refusal(self, now: float) -> GatewayError:
        """The error when no backend can answer. A backend that was not reachable at its attempt, and that the plan
        skips by now, does not count as a failed attempt."""
        plan = self._failover.plan
        away = {s.state.name for s in plan.skipped}
        tried = [t for t in self._tried if not (t.gone and t.backend in away)]
        return refusal(plan, tried, self._request, now)

    def settled(self, estimate: int, tokens: int) -> None:
        """The request has ended and used `tokens` instead of the estimate: report the difference to the other
        gateways if the client has a tpm limit."""
        others = self._admission.scheduler.sharing
        if others is not None:
            others.settled(self.waiter, estimate, tokens)

    # -- starts ---------------------------------------------------------------------------------------------------

    def _have_started(self) -> bool:
        """Have the first parked backend started that comes before the next candidate. False = it could not be."""
        starts, failover = self._admission.starts, self._failover
        first, candidate = failover.plan.startable[0], failover.next_candidate()
        if candidate is not None and candidate.step <= first.step:
            return True
        begun = starts is not None and starts.begin(first.state, self._client.client, failover.plan.alias)
        failover.replan(time.monotonic())
        return begun

    def _may_wait_for_start(self, waiter: Waiter, now: float) -> bool:
        """Is a backend being started for which the request may go on to wait? A start takes longer than a slot: the
        request has the backend's `start_grace` too."""
        starting = [s.state.backend for s in self._failover.plan.skipped if s.kind == STARTING]
        for backend in starting:
            until = self._began + backend.queue.max_wait + backend.health.start_grace
            waiter.deadline = max(waiter.deadline, until)
        return bool(starting) and now < waiter.deadline

    def waits(self, now: float) -> str:
        """What the request waits for, in words for a person; "" if it does not wait."""
        waiter = self.waiter
        if waiter is None:
            return ""
        starting = [skip.state.name for skip in self._failover.plan.skipped if skip.kind == STARTING]
        if starting:
            return f"{' and '.join(starting)} is being started, {now - self._began:.0f} s so far"
        names = " or ".join(state.name for state in waiter.choices)
        if waiter.pending:
            return f"Waiting for {names} to come back"
        left = self._admission.scheduler.expected_wait(waiter, now)
        return f"Waiting for a free slot of {names}" + ("" if left is None else f", about {left:.0f} s")

    # -- waiting --------------------------------------------------------------------------------------------------

    async def _wait(self, returning: bool) -> Lease | None:
        """Wait for a candidate of the plan, or for a backend to return. None = the plan has changed, or no backend
        is left to wait for."""
        now = time.monotonic()
        if self.waiter is None:
            self.waiter = self._new_waiter()
        waiter = self.waiter
        if not self._choose(waiter, now):
            self._failover.replan(now)
            if not self._choose(waiter, now):
                return None
        waiter.returning = returning
        waiter.replan = self._replan
        put_off = self._is_put_off(waiter, now)
        try:
            self.queued += await self._admission.wait(waiter)
            self._quota = waiter.quota
            self._pauses += put_off
        except QueueFull as full:
            raise self._not_admitted(waiter, str(full), full.seconds) from None
        finally:
            waiter.replan = _replan_nobody  # else the two refer to each other, and the request stays with them
        if waiter.granted is not None:
            held = waiter.granted
            candidate = next(c for c in self._failover.remaining if c.state is held.state)
            return Lease(self._admission.scheduler, candidate, held, self._request)
        if waiter.late:
            seconds = self._admission.scheduler.expected_wait(waiter, time.monotonic())
            raise self._not_admitted(waiter, f"no slot within {self.queued:.0f} s", seconds)
        return None

    def _new_waiter(self) -> Waiter:
        waiter = Waiter(self._client.name, self._began, _wake_nobody, _replan_nobody, limit=self._limit)
        waiter.within = self._within
        own = self._client.client.priority if self._client.client is not None else None
        waiter.weight, waiter.batch = self._request.choices, (own or self._alias.priority) == "batch"
        waiter.quota = self._quota
        return waiter

    def _new_quota(self) -> Quota | None:
        """What the request counts against limits that the gateways check together; None = no such limit."""
        one = self._client.client
        if one is None:
            return None
        client, user = (one, None) if one.parent is None else (one.parent, one if one.rpm is not None else None)
        if client.rpm is None and client.tpm is None and user is None:
            return None
        return Quota(client, 0 if client.tpm is None else estimate(self._request), time.monotonic(), user)

    def _choose(self, waiter: Waiter, now: float) -> bool:
        """Set the backends that the waiter waits for: acceptable candidates, else backends that return before its
        deadline. False = there are none, or their availability has changed since the plan was made."""
        failover, scheduler = self._failover, self._admission.scheduler
        waiter.watches = failover.states()
        offered = failover.acceptable(lambda state: scheduler.is_busy(state, waiter.weight, self._tokens(state)))
        waiter.pending = not offered
        waiter.choices = tuple(c.state for c in offered) or failover.recovering(now)
        if any(state.pool is not None for state in waiter.choices):
            waiter.tokens = {id(state): self._tokens(state) for state in waiter.choices}
        if failover.has_spare and waiter.pending:
            return False
        if not waiter.place:
            waiter.deadline = self._began + max((longest_wait(s) for s in waiter.choices), default=0.0)
        if offered:
            return all(is_open(state, now) for state in waiter.choices)
        if not waiter.choices or failover.has_returned(now):
            return False
        if any(is_on_trial(state, now) for state in waiter.choices) or self._may_wait_for_start(waiter, now):
            return True
        if self._is_put_off(waiter, now) and self._pauses >= max(s.backend.queue.pauses for s in waiter.choices):
            return False
        error = self.refusal(now)
        return error.code in COMING and now + (error.retry_after or 0.0) <= waiter.deadline

    @staticmethod
    def _is_put_off(waiter: Waiter, now: float) -> bool:
        """Have all backends that the request waits for asked for a pause? A memory that is full is not meant."""
        return waiter.pending and all(state.cooldown_until > now and state.pool is None for state in waiter.choices)

    def _tokens(self, state: BackendState) -> int:
        return tokens_needed(state, self._request, self._alias)

    def _replan(self, now: float) -> bool:
        """A backend of the alias has changed while the request waits. False = no backend is left to wait for."""
        assert self.waiter is not None
        try:
            self._failover.replan(now)
            return self._choose(self.waiter, now)
        except Exception:  # called by the scheduler: it must not fail because of one request
            log.exception("request %s could not be planned again", self._request_id)
            return False

    def _not_admitted(self, waiter: Waiter, why: str, seconds: float | None) -> GatewayError:
        """The error of a request without slots. If it waited for a backend to return: the refusal of the plan."""
        if waiter.pending:
            return self.refusal(time.monotonic())
        code = "queue_timeout" if waiter.late else "queue_full"
        names = ", ".join(state.name for state in waiter.choices)
        message = f"Every slot of alias '{self._alias.name}' is taken ({names}): {why}"
        return GatewayError(code, message, retry_after=RETRY_UNKNOWN if seconds is None else seconds)

    # -- near the limit of a window -------------------------------------------------------------------------------

    async def _prompt_fits(self, candidate: Candidate) -> bool:
        """Near the limit of its window the backend counts the tokens of the prompt. False = the prompt is too long."""
        state, request, now = candidate.state, self._request, time.monotonic()
        room = room_needed(request, self._alias.min_max_tokens)
        if not near_limit(state, request, room, now):
            return True
        tokens = await count_tokens(state, request)
        if tokens is None:
            return True
        request.exact[state.name] = tokens
        if fits_window(state, request, room, now):
            return True
        reason = "is too small for this prompt"
        self._tried.append(
            FailedAttempt(state.name, "too_long", reason, window=state.window(now), prompt_tokens=tokens)
        )
        return False

    async def _still_fits(self, lease: Lease) -> bool:
        """The granted slots are of another backend than the one whose window was checked: check this window too."""
        try:
            fits = await self._prompt_fits(lease.candidate)
        except BaseException:
            lease.release()
            raise
        if not fits:
            lease.release()
            self._failover.mark_failed(lease.candidate, "too_long")
        return fits


def longest_wait(state: BackendState) -> float:
    """Seconds for which a request waits for its slots; a load of its model, which holds one of them, comes on top."""
    return state.backend.queue.max_wait + (state.backend.timeouts.load if state.load is not None else 0.0)


def _wake_nobody() -> None:
    """The `wake` of a waiter that does not wait yet."""


def _replan_nobody(now: float) -> bool:
    """The `replan` of a waiter that does not wait."""
    return False
