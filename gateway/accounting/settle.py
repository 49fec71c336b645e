"""The end of a request in numbers: counted exactly once, whatever happened."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gateway.accounting.ledger_file import DAY, Entry
from gateway.accounting.prices import NO_TOKENS, Tokens, read_usage
from gateway.domain.usage import is_beyond_belief
from gateway.routing.window import tokens

if TYPE_CHECKING:
    from gateway.domain.backend import BackendState
    from gateway.metrics.registry import Route
    from gateway.proxy.attempt import Attempt
    from gateway.proxy.handler import Relay

_KINDS = ("prompt", "completion", "cached", "reasoning")  # in the order of Tokens


def settle(relay: Relay) -> None:
    """Count the request, its time, its tokens and what they cost."""
    metrics, accounts = relay.gateway.metrics, relay.gateway.accounts
    seconds = relay.watch.now() - relay.began
    metrics.seconds.observe(seconds)
    accounts.leave(relay.reserved)
    used = 0
    served: Attempt | None = None
    for attempt in relay.attempts:
        state = attempt.candidate.state
        if attempt.unused is not None and not attempt.answered:  # (one may be delivered after all)
            used += _count_usage(relay, _route(relay, state), state, attempt.unused, "unused", 0.0)
        if attempt.answered:
            served = attempt
    if served is None:
        used += _settle_unserved(relay, seconds)
    else:
        used += _settle_served(relay, served, seconds)
    if relay.charge is not None:
        accounts.limits.spent(relay.charge, used, time.monotonic())
        if relay.gateway.shared is not None and relay.entrance is not None:
            relay.gateway.shared.slots.settled(relay.entrance.waiter, relay.charge.tokens, used)
    writer = relay.gateway.log
    if writer is not None and writer.requests:
        writer.request_ended(relay, seconds)
    if relay.trace is not None:
        relay.trace.end(relay)


def _settle_served(relay: Relay, served: Attempt, seconds: float) -> int:
    """Returns the tokens that were used."""
    state = served.candidate.state
    route = _route(relay, state)
    route.attempt_ok.value += 1
    if relay.outcome == "200":
        route.answered.value += 1
    else:
        relay.gateway.metrics.requests.inc(_alias(relay), state.name, relay.endpoint.name, relay.outcome)
    if served.first_token:
        route.first_token.observe(served.first_token - relay.began)
    if served.usage is not None:
        return _count_usage(relay, route, state, served.usage, relay.outcome, seconds)
    _book(relay, state, NO_TOKENS, relay.outcome, seconds)
    return 0


def _settle_unserved(relay: Relay, seconds: float) -> int:
    """Returns the tokens that were used, as far as is known: of an attempt that was ended in the middle the estimate
    stays. (Else leaving early would be free of limits and budgets.)"""
    metrics, state = relay.gateway.metrics, relay.trying
    if state is not None:  # broke after content, or was ended by the client or by the gateway's stop
        metrics.attempts.inc(state.name, relay.outcome.removeprefix("stream_"))
    backend = state.name if state is not None else relay.tried[-1].backend if relay.tried else ""
    metrics.requests.inc(_alias(relay), backend, relay.endpoint.name, relay.outcome)
    if state is None:
        if relay.alias is not None:
            _record(relay, backend, NO_TOKENS, relay.outcome, seconds, 0.0)
        return 0
    estimate = Tokens(prompt=tokens(state, relay.request))
    usd = relay.gateway.accounts.cost(state.backend, relay.client.client, estimate)
    _spend(relay, state, usd)
    _record(relay, state.name, NO_TOKENS, relay.outcome, seconds, usd)
    return relay.charge.tokens if relay.charge is not None else 0


def _count_usage(
    relay: Relay, route: Route, state: BackendState, usage: dict[str, Any], outcome: str, seconds: float
) -> int:
    """Tokens as the backend reported them; they also teach how many bytes one of its tokens has. Where it reports what
    cannot be, the estimate counts that was made before: such an answer is neither free nor worth a budget."""
    if is_beyond_belief(usage):
        relay.gateway.metrics.violations.inc(state.name, "usage")
        return _book_estimate(relay, state, outcome, seconds)
    used = read_usage(usage)
    for kind, count in zip(_KINDS, used, strict=True):
        route.count_tokens(kind, count)
    sender = relay.request.sender
    if used.prompt and state.ratio.due(relay.request.prompt_bytes, sender):
        relay.request.measure_media()
        if not relay.request.images:
            state.ratio.learn(relay.request.prompt_bytes, used.prompt, sender)
    _book(relay, state, used, outcome, seconds)
    return used.total


def _book(relay: Relay, state: BackendState, used: Tokens, outcome: str, seconds: float) -> None:
    usd = relay.gateway.accounts.cost(state.backend, relay.client.client, used) if used.total else 0.0
    _spend(relay, state, usd)
    _record(relay, state.name, used, outcome, seconds, usd)


def _book_estimate(relay: Relay, state: BackendState, outcome: str, seconds: float) -> int:
    accounts = relay.gateway.accounts
    estimate = accounts.probable_tokens(state, relay.request)
    usd = accounts.cost(state.backend, relay.client.client, estimate)
    _spend(relay, state, usd)
    _record(relay, state.name, NO_TOKENS, outcome, seconds, usd)
    return relay.charge.tokens if relay.charge is not None else estimate.total


def _spend(relay: Relay, state: BackendState, usd: float | None) -> None:
    if not usd:
        return
    relay.gateway.accounts.budgets.add(state.name, relay.client.label, usd, int(time.time() // DAY))
    relay.gateway.alias_status.spent(_alias(relay), usd)
    if state.backend.cloud:
        relay.gateway.metrics.cloud_usd.child(state.name, relay.client.label).value += usd


def _record(relay: Relay, backend: str, used: Tokens, outcome: str, seconds: float, usd: float | None) -> None:
    """A line in the ledger; an answer that was not used is no request of its own."""
    requests, unpriced = int(outcome != "unused"), int(usd is None)
    client, alias, endpoint = relay.client.label, _alias(relay), relay.endpoint.name
    counts = (requests, seconds, *used, usd or 0.0, unpriced)
    relay.gateway.accounts.ledger.record(Entry(time.time(), client, alias, backend, endpoint, outcome, *counts))


def _route(relay: Relay, state: BackendState) -> Route:
    return relay.gateway.metrics.route(relay.client.label, _alias(relay), state.name, relay.endpoint.name)


def _alias(relay: Relay) -> str:
    return relay.alias.name if relay.alias is not None else ""
