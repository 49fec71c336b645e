"""The waiting set of a gateway with its timer, and the leases on slots that it grants."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

from gateway.admission.backend_queue import SlotGrant, Waiter
from gateway.admission.scheduler import Scheduler
from gateway.config.snapshot import Alias, Client
from gateway.domain.backend import BackendState
from gateway.domain.health_state import StartDecision, State
from gateway.domain.request import InferenceRequest
from gateway.errors import fresh
from gateway.metrics.registry import Metrics
from gateway.routing.plan import Candidate

log = logging.getLogger("gateway.admission")

TICK = 0.05  # seconds; the timer runs only while a request waits
_TRIED_AGAIN = (State.DOWN, State.MISCONFIGURED)  # if never probed, one request tests them after a pause
FRESH = 1.0  # seconds after a look, or a sign of life, for which it may refuse a request
EVERY = 0.5  # seconds between two looks while requests wait
LOOK_MOST, CHECK_MOST = 1.0, 4.0  # seconds that a request which would be refused waits for looks, for checks
# Begins a look at the backend's engine, or joins the one under way; None = its server shows nothing of its engine.
Look = Callable[[BackendState], Awaitable[None] | None]


class Lease:
    """The slots of one backend that one attempt holds, until its upstream body has ended or its socket is closed. A
    second release does nothing. `served` False: the attempt was not answered, so its duration is no measure for
    others."""

    __slots__ = ("_held", "_scheduler", "_tokens", "_trial", "candidate", "served")

    def __init__(
        self,
        scheduler: Scheduler,
        candidate: Candidate,
        held: SlotGrant,
        request: InferenceRequest,
    ) -> None:
        state = candidate.state
        self.candidate = candidate
        self.served = True
        self._scheduler = scheduler
        self._held: SlotGrant | None = held
        self._tokens = state.ratio.probably(request.known_text_bytes)
        state.prompt_tokens += self._tokens
        health = state.health
        # On trial: half-open, or due for it, or down and (never probed) tried again after its pause.
        self._trial = health.state is not State.READY and (
            health.half_open or health.state in _TRIED_AGAIN or health.due(held.since)
        )
        if self._trial:
            health.trial = True

    def release(self) -> None:
        held = self._held
        if held is None:
            return
        self._held = None
        state = held.state
        state.prompt_tokens -= self._tokens
        if self._trial:
            state.health.trial = False
        self._scheduler.release(held, time.monotonic(), served=self.served)


class Starts(Protocol):
    """Starts parked backends for requests (apps/control/). `client` None = routes.yaml has no `clients`."""

    def decision(self, state: BackendState, client: Client | None, alias: Alias) -> StartDecision:
        """Whether a request of this client and alias has the backend started now."""
        ...

    def begin(self, state: BackendState, client: Client | None, alias: Alias) -> bool:
        """Begin to start it, once for all requests. False = it is not started."""
        ...

    @property
    def unstarted(self) -> Mapping[str, str]:
        """Backends whose last start has failed -> why."""
        ...

    def idle(self, name: str) -> float | None:
        """Seconds for which a backend that requests start has been idle; None = it does not run, or is no such one."""
        ...


class Admission:
    """The one waiting set of a gateway. Code that changes a backend may call `changed`; without a call the change is
    noticed within a tick. `starts` None = nothing is started for requests. `look` and `check` None = no engine is
    looked at, no server is checked."""

    def __init__(self, metrics: Metrics) -> None:
        self.scheduler = Scheduler()
        self.starts: Starts | None = None
        self.look: Look | None = None
        self.check: Look | None = None
        self.seconds = metrics.queue_seconds.child()
        self._timer: asyncio.TimerHandle | None = None

    def try_acquire(
        self,
        candidate: Candidate,
        request: InferenceRequest,
        client: str = "",
        limit: int | None = None,
        *,
        tokens: int = 0,
        asks: bool = False,
        within: int | None = None,
    ) -> Lease | None:
        """A lease, if slots are free and no request waits for this backend. `tokens`: what the request reserves of the
        memory that its slots share. `asks`: the other gateways have to count the request too. `within`:
        `max_inflight` of the client whose user it is."""
        if asks and not self.scheduler.decides:
            return None
        held = self.scheduler.try_acquire(
            candidate.state, request.choices, time.monotonic(), client, limit, tokens, within
        )
        if held is None:
            return None
        self.seconds.observe(0.0)
        return Lease(self.scheduler, candidate, held, request)

    async def wait(self, waiter: Waiter) -> float:
        """Wait until slots are granted, the deadline passes, or no backend is left; the fields of the waiter show
        which. Returns the seconds waited. Raises `QueueFull`, and the limits that gateways check together. A
        cancelled wait leaves the set and gives back what was granted."""
        began = time.monotonic()
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.wake = partial(_wake, woken)
        try:
            if await self._looked_first(waiter, began) and not waiter.replan(time.monotonic()):
                return time.monotonic() - began
            if not self.scheduler.enqueue(waiter, time.monotonic()):
                self._tick_soon()
                await woken
        except asyncio.CancelledError:
            self.scheduler.withdraw(waiter, time.monotonic())
            raise
        if waiter.refused is not None:
            raise fresh(waiter.refused)
        seconds = time.monotonic() - began
        self.seconds.observe(seconds)
        return seconds

    async def _looked_first(self, waiter: Waiter, now: float) -> bool:
        """Before a request is refused because others take slots, their engine is looked at: that may be over. Before it
        is refused where another backend may serve it, one from which nothing has come lately is checked: it may hang.
        True = that was done, and the request has to be planned again. What no look confirms counts no more."""
        aged = [state for state in waiter.choices if may_be_over(state, now)]
        has_others = len(waiter.watches) > len(waiter.choices)
        quiet = [state for state in waiter.choices if may_hang(state, now)] if has_others else []
        if waiter.place or not (aged or quiet) or not self.scheduler.refuses(waiter, now):
            return False
        begun = [self.look(state) for state in aged] if self.look is not None else []
        begun += [self.check(state) for state in quiet] if self.check is not None else []
        if not begun:
            return False
        if tasks := [asyncio.ensure_future(one) for one in begun if one is not None]:
            await asyncio.wait(tasks, timeout=CHECK_MOST if quiet else LOOK_MOST)
        now = time.monotonic()
        for state in aged:
            if may_be_over(state, now):
                state.foreign = 0
        return True

    def changed(self, state: BackendState) -> None:
        """The backend went away, came back, has more capacity or has ended a pause."""
        self.scheduler.changed(state, time.monotonic())

    def forget(self, state: BackendState) -> None:
        """The backend was removed from routes.yaml, and its last request has ended."""
        self.scheduler.forget(state)

    def _tick_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = time.monotonic()
        self.scheduler.tick(now)
        if self.look is not None:
            for state in self.scheduler.waited_for():
                if look_due(state, now):
                    self.look(state)
        if self.scheduler.waiters:
            self._tick_soon()

    def queue_depth(self) -> dict[str, int]:
        """Backend -> requests that wait for a slot there."""
        return self.scheduler.depth()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():  # its task may have been cancelled meanwhile
        woken.set_result(None)


def may_be_over(state: BackendState, now: float) -> bool:
    """Do sequences of others take slots that nobody has seen in the last second?"""
    return state.foreign > 0 and state.progress.last is not None and state.progress.age(now) > FRESH


def may_hang(state: BackendState, now: float) -> bool:
    """Has nothing come for a second from a backend that has requests of ours? A queue there may be full of requests
    that nobody answers."""
    health = state.health
    return state.engine_inflight > 0 and now - state.sign_of_life > FRESH and health.usable(now) and not health.avoided


def look_due(state: BackendState, now: float) -> bool:
    """Is a look due, now that requests wait for this backend?"""
    wanted = state.foreign > 0 or state.slots_to_find > 0
    return wanted and now - state.progress.looked_at > EVERY
