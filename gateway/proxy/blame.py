"""The failed attempts of one request that the request itself may have caused, until it is known who is to blame
(routing/culprits.py).

Until then no failure counts against a backend. If another backend answers the request, the backend that failed is
suspected. Otherwise a harmless request is sent to the backends that failed. Clouds get none, because it would cost
money: their evidence is whether they have answered other requests lately, and a cloud counts as down only after
several different bodies have failed, of different clients where there are several.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from gateway.domain.backend import BackendState
from gateway.domain.health_state import SERVING
from gateway.domain.request import InferenceRequest
from gateway.errors import GatewayError
from gateway.health.suspect_probes import RunningProbe, SuspectProbes
from gateway.inspection.error_replies import Verdict
from gateway.routing.culprits import Culprit, Culprits, Failure, fault_of, has_broken_them, key_of
from gateway.routing.refusal import MISLEADING

PATIENCE = 5.0  # seconds that a failing request waits for the harmless one
KEY_PATIENCE = 1.0  # the same after a refused key, when the next backend is tried in any case
SETTLED = 0.2  # seconds from a broken stream until its backend is probed: by then a dying server has died
LATELY = 60.0  # seconds after an answer to another request in which a cloud counts as alive


@dataclass(slots=True)
class HeldFailure:
    """One failed attempt. `alone`: the backend ran no other request of ours. `at`: monotonic seconds."""

    state: BackendState
    verdict: Verdict
    alone: bool
    at: float
    asking: RunningProbe | None = None
    counted: bool = False  # against its backend

    def failure(self) -> Failure:
        """The failure with what is known by now. Without other evidence, a backend that has answered other requests
        since is alive."""
        state, asking = self.state, self.asking
        since = True if max(state.evidence.answered_at, state.last_event) > self.at else None
        if asking is None and not state.backend.cloud:
            return Failure(state.name, since if state.health.state in SERVING else False)
        if asking is None:
            return Failure(state.name, True if _answered_lately(state) else None)
        if not asking.done() or asking.cancelled() or asking.exception() is not None:
            return Failure(state.name, since)
        found = asking.result()
        lives = since if found.lives is None else found.lives
        return Failure(state.name, lives, broke=found.gone and self.alone)


class Blame:
    """Created when the first attempt fails, or for a body that failed before. `alias`, `client`: names; `several`:
    there are other clients, so one alone does not take a cloud from them."""

    def __init__(
        self,
        culprits: Culprits,
        suspicion: SuspectProbes,
        request: InferenceRequest,
        alias: str,
        client: str,
        *,
        several: bool,
    ) -> None:
        self._culprits = culprits
        self._suspicion = suspicion
        self._request = request
        self._key = key_of(request, alias, client)
        self._client = client
        self._several = several
        self._held: list[HeldFailure] = []
        self._weighed = 0  # how many of them were weighed
        self._trying: RunningProbe | None = None  # tests whether the backend refuses other requests too
        self._before: tuple[Failure, ...] = ()  # failures of this body in earlier requests
        self._known = False  # this body is a proven culprit

    def recall(self, culprit: Culprit) -> None:
        """This body failed before."""
        self._before, self._known = culprit.failures, culprit.proven

    @property
    def suspects(self) -> bool:
        """May the request be the cause of a failure, of this request or an earlier one with the same body?"""
        return bool(self._held or self._before or self._known)

    def hold(self, state: BackendState, verdict: Verdict) -> None:
        """An attempt failed in a way that the request may have caused."""
        self._held.append(HeldFailure(state, verdict, state.inflight <= self._request.choices, time.monotonic()))

    def refused(self, state: BackendState) -> None:
        """A backend refused our key, or did not know the model: only a harmless request can show whether that is so."""
        self._trying = self._suspicion.probe_credential(state)

    def unserved(self, state: BackendState) -> None:
        """A backend answered that it does not serve this endpoint: only a harmless request can show whether that is
        so."""
        self._trying = self._suspicion.probe_endpoint(state, self._request.endpoint)

    def broke(self, state: BackendState, verdict: Verdict) -> None:
        """A backend's stream broke after content: no other backend can be asked, so this one is suspected at once."""
        self.hold(state, verdict)
        self._count(self._held[-1])
        self._ask(self._held[-1], after=SETTLED)

    def answered(self) -> None:
        """Another backend answers this request, so it is no culprit: the backends that failed are suspected."""
        for held in self._held:
            if not held.counted:
                self._count(held)
                self._ask(held)
        if self._known or self._before:
            self._culprits.acquit(self._key)

    async def weigh(self, *, last: bool = False) -> None:
        """After a failed attempt (`last`: no backend is left to ask). Raises the backend's error where the request is
        to blame; a failure that a backend is to blame for is counted against it."""
        if self._trying is not None:
            await asyncio.wait({self._trying}, timeout=KEY_PATIENCE)
            self._trying = None
        if len(self._held) == self._weighed and not last:
            return
        self._weighed = len(self._held)
        if self._known or len(self._before) + len(self._held) >= 2 or last:
            await self._ask_all(wait=not self._known)
        failures = [held.failure() for held in self._held]
        fault = fault_of([*self._before, *failures], known=self._known and bool(failures))
        if fault == "request":
            broke = has_broken_them(failures)
            self._culprits.convict(self._key, self._request.prompt_bytes, time.monotonic(), broke=broke)
            raise error_of(self._held[-1].verdict)
        for held in self._held:
            if last and held.asking is None and not held.counted:  # no harmless request is sent to decide it
                self._count(held)
        if last and (mine := [Failure(failure.backend) for failure in failures if failure.lives is not False]):
            self._culprits.suspect(self._key, self._request.prompt_bytes, mine, time.monotonic())

    def close(self) -> None:
        """The request has ended. For failures that are still undecided, harmless requests are sent in the
        background."""
        for held in self._held:
            if not held.counted:
                self._ask(held)

    async def _ask_all(self, *, wait: bool) -> None:
        for held in self._held:
            self._ask(held)
        asking = {held.asking for held in self._held if held.asking is not None and not held.asking.done()}
        if asking and wait:
            await asyncio.wait(asking, timeout=PATIENCE)

    def _ask(self, held: HeldFailure, *, after: float = 0.0) -> None:
        if held.asking is not None or held.state.backend.cloud or held.state.health.state not in SERVING:
            return
        endpoint, stream = self._request.endpoint, self._request.stream
        held.asking = self._suspicion.probe(held.state, endpoint, stream=stream, after=after)

    def _count(self, held: HeldFailure) -> None:
        held.counted = True
        if held.state.backend.cloud:
            held.state.evidence.failed_by(self._key, self._client, held.verdict.reason, several=self._several)
        else:
            held.state.evidence.failed(held.verdict.reason, disputed=True)


def _answered_lately(state: BackendState) -> bool:
    return state.evidence.answered_at > 0 and time.monotonic() - state.evidence.answered_at < LATELY


def earlier_failures(
    culprits: Culprits, request: InferenceRequest, alias: str, client: str, now: float
) -> Culprit | None:
    """What is known of earlier failures of this body. Raises an error while it gets no backend at all."""
    culprit = culprits.find(request, alias, client, now)
    if culprit is not None and culprit.shunned_until > now:
        raise shunned(culprit.shunned_until - now)
    return culprit


def shunned(seconds: float) -> GatewayError:
    """The error for a body that backends have died of."""
    message = "The backends that got this very request broke on it, so it is sent to nobody for a while."
    return GatewayError("no_backend_available", message, retry_after=seconds)


def error_of(verdict: Verdict) -> GatewayError:
    """The backend's own error in our envelope; for an answer with another fault, a description of the fault."""
    own = 500 <= verdict.status < 600
    message = MISLEADING.sub("[...]", verdict.message if own and verdict.message else verdict.reason)
    status = verdict.status if own else None
    return GatewayError("upstream_error", message, status=status, retry_after=1.0 if status == 503 else None)
