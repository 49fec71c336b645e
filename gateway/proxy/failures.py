"""How an attempt fails: before the client has content, or behind it."""

from __future__ import annotations

from typing import Protocol

from gateway.domain.upstream import ConnectFailure, EngineDied, SilenceFailure, UpstreamFailure
from gateway.inspection.error_replies import Verdict
from gateway.routing.resume import BrokenStream


class Spare(Protocol):
    """An attempt with a complete but empty answer."""

    async def deliver(self) -> None:
        """Send that answer, because no other backend had a better one."""
        ...


class AttemptFailed(Exception):
    """The attempt failed before content was sent: the next candidate is tried. `timeout`: the backend was silent;
    `gone`: its port is closed; `died`: its engine is dead. `spare`: it, if its empty answer can be delivered."""

    def __init__(self, verdict: Verdict, failure: UpstreamFailure | None = None, spare: Spare | None = None) -> None:
        super().__init__(verdict.reason)
        self.verdict, self.spare = verdict, spare
        self.timeout = isinstance(failure, SilenceFailure)
        self.gone = isinstance(failure, ConnectFailure)
        self.died = isinstance(failure, EngineDied)


class StreamBroken(Exception):
    """The stream broke after content had been sent. `timeout`: because the backend was silent. `off`: what another
    backend needs to go on with it; None = it may not."""

    def __init__(
        self, message: str, verdict: Verdict | None = None, *, timeout: bool = False, off: BrokenStream | None = None
    ) -> None:
        super().__init__(message)
        self.verdict = verdict or Verdict("failed", message)
        self.timeout = timeout
        self.off = off
