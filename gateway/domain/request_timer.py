"""One timer for everything that may interrupt a request: a silent backend, the total timeout, a client that does not
read or has left, the gateway's shutdown. It also sends heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from gateway.domain.upstream import SilenceFailure
from gateway.large_bodies import is_apart
from gateway.supervision import Failures

TICK = 0.1  # seconds
UNREAD = 120.0  # seconds after which a client that reads nothing of its answer is cut off, where no timeout is set


class Stopping(Exception):
    """The gateway is shutting down and this request's time is up."""


class ReaderStalled(Exception):
    """The client has not taken a byte for longer than the idle timeout."""


class Pulse:
    """One timer of the event loop for all requests: every `TICK` it checks what is due. A timer per request would cost
    more than the request's other bookkeeping, and the timeouts are seconds long."""

    __slots__ = ("_failures", "_handle", "_loop", "_timers")

    def __init__(self, failures: Failures | None = None) -> None:
        self._failures = failures or Failures()
        self._timers: set[RequestTimer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None

    def add(self, timer: RequestTimer) -> None:
        self._timers.add(timer)
        if self._handle is None:
            self._begin()

    def discard(self, timer: RequestTimer) -> None:
        self._timers.discard(timer)

    def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        assert self._loop is not None
        self._handle = self._loop.call_later(TICK, self._tick) if self._timers else None
        now = self._loop.time()
        for timer in list(self._timers):
            try:
                timer.check(now)
            except Exception:  # the other requests still have to be checked
                self._timers.discard(timer)
                self._failures.note("pulse", "the look at a request's time")


class RequestTimer:
    """Times one request. An interruption cancels the request's task; `reason` is the cause.

    Nothing happens per chunk: `heard` and `writing` are plain assignments, and the pulse reads them.
    """

    __slots__ = (
        "_beat",
        "_pulse",
        "_task",
        "beat_at",
        "budget",
        "excuse",
        "heard",
        "now",
        "reason",
        "total_at",
        "worked",
        "writing",
    )

    def __init__(self, pulse: Pulse, task: asyncio.Task[object], beat: Callable[[], None]) -> None:
        self._pulse = pulse
        self._task = task
        self._beat = beat
        self.now = task.get_loop().time
        self.heard = self.now()  # when the backend last sent something that counts
        self.budget: float | None = None  # seconds that the backend may be silent
        self.excuse: Callable[[], float] | None = None  # a later time than `heard` that counts as well
        self.worked = 0.0  # when the gateway itself was last seen at work on a large body of this request
        self.beat_at = inf  # when the next heartbeat is due
        self.total_at = inf
        self.writing = 0.0  # since when a write waits for the client; 0 = no write is waiting
        self.reason: BaseException | None = None
        pulse.add(self)

    def expect(self, budget: float | None) -> None:
        """From now on the backend may be silent for `budget` seconds (None = for ever)."""
        self.heard = self.now()
        self.budget = budget

    def check(self, now: float) -> None:
        """Do what is due by now: interrupt the request, or send a heartbeat. While the gateway itself is at work on the
        request nothing is: neither the backend nor the client keeps it waiting."""
        if is_apart(self._task):
            self.worked = now
        elif (reason := self._overdue(now)) is not None:
            self.interrupt(reason)
        elif now >= self.beat_at:
            self.beat_at = inf  # the beat sets the next one
            self._beat()

    def _overdue(self, now: float) -> BaseException | None:
        """What took too long. That the backend works for others excuses its silence, but neither a client that does not
        read nor the total timeout."""
        budget = self.budget
        if self.writing:
            if now >= max(self.heard, self.writing, self.worked) + (UNREAD if budget is None else budget):
                return ReaderStalled()
        elif budget is not None and now >= self._last_sign() + budget:
            return SilenceFailure(f"silent for {budget:.0f} s")
        return SilenceFailure("took longer than its total timeout") if now >= self.total_at else None

    def _last_sign(self) -> float:
        """Since when the backend alone is waited for."""
        return max(self.heard, self.worked, self.excuse() if self.excuse else 0.0)

    def interrupt(self, reason: BaseException) -> None:
        """Cancel the request's task; the first reason counts. Only a SilenceFailure, after which the next backend would
        be tried, is replaced by a later reason, which may end the request."""
        if self.reason is None:
            self.reason = reason
            self._task.cancel()
        elif isinstance(self.reason, SilenceFailure):
            self.reason = reason

    def take_reason(self) -> BaseException | None:
        """After a CancelledError: the reason if this timer caused it (the task is then uncancelled), else None."""
        reason, self.reason = self.reason, None
        if reason is not None:
            self._task.uncancel()
        return reason

    def last_write(self) -> None:
        """The last bytes are being written. From now on only the client's reading of them is timed, by the budget."""
        self.writing = self.now()
        self.beat_at = self.total_at = inf

    def rest(self) -> None:
        """Stop all timing until the next `expect`."""
        self.writing = 0.0
        self.budget = None
        self.beat_at = self.total_at = inf

    def attempt_ended(self) -> None:
        """What was timed of its backend is timed no more: the search for the next one is no silence."""
        self.writing = 0.0  # an interrupted write is over
        self.budget = self.excuse = None
        self.total_at = inf

    def close(self) -> None:
        """The request is over. Its parts, which refer to each other through `_beat`, are freed at once without it, and
        not by a garbage collection."""
        self._pulse.discard(self)
        self._beat = _nothing


def _nothing() -> None:
    pass
