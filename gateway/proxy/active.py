"""The requests under way: how they are ended from outside, and what they show about the backends that serve them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from gateway.accounting.record import AttemptRecord, RequestRecord
from gateway.domain.backend import BackendState
from gateway.domain.progress import IDLE, Work
from gateway.domain.reason import kind_of
from gateway.domain.request_timer import RequestTimer, Stopping
from gateway.domain.upstream import ResetFailure, SilenceFailure


class ActiveRequest(Protocol):
    """One request under way (handler.py)."""

    @property
    def timer(self) -> RequestTimer: ...

    @property
    def record(self) -> RequestRecord: ...

    def has_elsewhere(self) -> bool:
        """Is there another backend that can serve it now?"""
        ...


class ActiveRequests:
    """The requests under way of one gateway, each from its head to its end."""

    def __init__(self) -> None:
        self._requests: set[ActiveRequest] = set()
        self.add = self._requests.add
        self.discard = self._requests.discard

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ActiveRequest]:
        return iter(list(self._requests))

    def interrupt_all(self) -> None:
        """End all requests, because the gateway stops."""
        for request in self:
            request.timer.interrupt(Stopping())

    def leave_closed(self, state: BackendState) -> None:
        """The backend's port is closed. A stopping vLLM may keep its sockets open for minutes without sending
        anything: attempts that have received nothing since are ended, and their requests go to other backends if
        possible."""
        for timer, _ in self._asking(state):
            if timer.heard < state.evidence.refused_since:
                timer.interrupt(ResetFailure("silent, and its port is closed"))

    def leave_stalled(self, state: BackendState) -> None:
        """The backend's engine has stalled: its attempts are ended, and their requests go to other backends if
        possible."""
        for timer, _ in self._asking(state):
            timer.interrupt(SilenceFailure(kind_of(state.health.reason)))

    def leave_mute(self, state: BackendState) -> None:
        """The backend takes connections and answers nothing new (a server that drains): attempts that were sent since
        it last answered a health check are ended, and their requests go to other backends if possible."""
        idle = state.backend.timeouts.idle
        for timer, _ in self._asking(state):
            if timer.budget != idle and timer.heard >= state.evidence.alive_at:  # after the first token it is `idle`
                timer.interrupt(SilenceFailure("silent, as is its health check"))

    def leave_silent(self, state: BackendState) -> None:
        """The backend's health check got no answer: attempts without a byte are ended, where another backend can serve
        their requests now."""
        idle = state.backend.timeouts.idle
        for request in self._waiting_for(state):
            if request.timer.budget != idle and request.has_elsewhere():  # after the first token it is `idle`
                request.timer.interrupt(SilenceFailure("silent, as is its health check"))

    def work_of(self, state: BackendState) -> Work:
        """Our requests at this backend, as evidence that its engine should be making progress."""
        if not state.engine_inflight:
            return IDLE
        waiting = without_token = tokens = 0
        since, newest = time.monotonic(), 0.0
        idle = state.backend.timeouts.idle
        for timer, attempt in self._asking(state):
            waiting += 1
            since = min(since, timer.heard)
            if timer.budget != idle:  # waits for its first token; afterwards its budget is the idle timeout
                without_token += 1
                newest = max(newest, timer.heard)
                tokens += state.ratio.probably(attempt.request.known_text_bytes)
        return Work(waiting, since, newest, without_token, tokens, state.engine_inflight, state.engine_event)

    def _asking(self, state: BackendState) -> list[tuple[RequestTimer, AttemptRecord]]:
        """The timers and attempts of `_waiting_for`."""
        asking = self._waiting_for(state)
        return [(one.timer, attempt) for one in asking if (attempt := one.record.trying) is not None]

    def _waiting_for(self, state: BackendState) -> list[ActiveRequest]:
        """The requests that wait for this backend. A request whose client does not read its answer is left out: it
        is no evidence about the backend."""
        return [
            request
            for request in self
            if (attempt := request.record.trying) is not None
            and (attempt.state is state or attempt.state in state.siblings)
            and not request.timer.writing
        ]
