"""A stream that broke after content goes on at another backend (routing/resume.py decides whether it may)."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from gateway.accounting.record import AttemptRecord
from gateway.admission.slots import Lease
from gateway.engines.tokenize import count_tokens
from gateway.errors import GatewayError
from gateway.proxy.failures import StreamBroken
from gateway.proxy.stages import AdmittedRequest, PlannedRequest, RequestContext
from gateway.routing.plan import Candidate
from gateway.routing.resume import BrokenStream, alias_for_continuation, can_continue, can_resume, continuation
from gateway.routing.window import known_tokens

log = logging.getLogger("gateway.relay")


async def lease_to_resume(
    context: RequestContext, planned: PlannedRequest, left: Candidate, broken: StreamBroken, *, suspected: bool
) -> Lease | None:
    """The slots of a backend that can go on with the stream that broke at `left`, after a wait where none are free.
    None = the stream cannot go on. `suspected`: the request may be the cause of another failure."""
    if broken.off is None or not can_resume(broken.off, suspected=suspected):
        return None
    failover, record = planned.failover, context.record
    failover.mark_failed(left, "failed")
    failover.restrict(lambda state: can_continue(state, left.state), time.monotonic())
    lease: Lease | None = None
    trying, record.trying = record.trying, None  # what happens to the backend that was left is no news to the request
    try:
        lease = await planned.slots.admit(returning=True)
    except GatewayError as error:  # of the queue: the client has had its 200
        log.info("request %s finds no slot to go on: %s", record.id, error)
    finally:
        if lease is None:
            record.trying = trying
    first = _broken_attempt(context)
    if lease is not None and first.unused is None:  # from here on it is settled by itself
        context.services.metrics.attempts.inc(first.state.name, "interrupted")
        _count(first, known_tokens(first.state, first.request), broken.off)
    return lease


def _broken_attempt(context: RequestContext) -> AttemptRecord:
    """The attempt that sent content and broke."""
    return next(attempt for attempt in context.record.attempts if attempt.first_token)


def _count(first: AttemptRecord, prompt: int, off: BrokenStream) -> None:
    first.unused = {"prompt_tokens": prompt, "completion_tokens": off.sent.tokens}


async def resume(
    context: RequestContext,
    planned: PlannedRequest,
    admitted: AdmittedRequest,
    broken: StreamBroken,
    attempt: Callable[[AdmittedRequest], Awaitable[None]],
) -> None:
    """Go on with the stream at the admitted backend. Raises what `attempt` raises."""
    assert broken.off is not None
    record, request, state = context.record, planned.received.request, admitted.candidate.state
    goes_on = continuation(request, broken.off)
    if goes_on.prompt is None:
        goes_on = goes_on._replace(prompt=await count_tokens(state, request))
    if goes_on.prompt is not None:
        _count(_broken_attempt(context), goes_on.prompt, broken.off)
    admitted.goes_on = goes_on
    admitted.alias = alias_for_continuation(admitted.alias)
    admitted.record.request = goes_on.request
    log.warning("request %s goes on at %s: %s", record.id, state.name, broken)
    await attempt(admitted)
