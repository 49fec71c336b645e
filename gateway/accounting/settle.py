"""Counts a finished request, exactly once, however it ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import astuple

from gateway.accounting.accounts import Accounts
from gateway.accounting.ledger_file import DAY, Entry
from gateway.accounting.prices import costs_money, pictures_usd
from gateway.accounting.record import AttemptRecord, RequestRecord
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import SPEECH
from gateway.domain.usage import NO_TOKENS, Tokens, is_beyond_belief, read_usage
from gateway.metrics.registry import Metrics, Route
from gateway.routing.window import known_tokens


class Settler:
    """Counts the finished requests of one gateway. `on_spent` is called with the alias and the cost in USD."""

    def __init__(self, accounts: Accounts, metrics: Metrics, on_spent: Callable[[str, float], None]) -> None:
        self._accounts = accounts
        self._metrics = metrics
        self._on_spent = on_spent

    def settle(self, record: RequestRecord) -> int:
        """Count the request, its time, its tokens and their cost. Returns the tokens that count against limits."""
        self._metrics.seconds.observe(record.seconds)
        self._accounts.release(record.reserved)
        used = 0
        served: AttemptRecord | None = None
        for attempt in record.attempts:
            if attempt.unused is not None and not attempt.answered:  # an unused answer may have been delivered later
                route = self._route(record, attempt.state)
                used += self._count_usage(record, route, attempt, unused=True)
                if attempt.first_token:  # its stream went on elsewhere
                    route.first_token.observe(attempt.first_token - record.began)
            if attempt.answered:
                served = attempt
        used += self._settle_unserved(record) if served is None else self._settle_served(record, served)
        if record.charge is not None:
            self._accounts.limits.spent(record.charge, used, time.monotonic())
        return used

    def _settle_served(self, record: RequestRecord, served: AttemptRecord) -> int:
        """Returns the tokens that were used."""
        state = served.state
        route = self._route(record, state)
        route.attempt_ok.value += 1
        if record.outcome == "200":
            route.answered.value += 1
        else:
            self._metrics.requests.inc(record.alias, state.name, record.endpoint.name, record.outcome)
        if served.first_token:
            route.first_token.observe(served.first_token - record.began)
        if served.audio_seconds:
            labels = record.client_label, record.alias, state.name, record.endpoint.name
            self._metrics.audio_seconds.child(*labels).value += served.audio_seconds
        if served.usage is not None:
            return self._count_usage(record, route, served)
        # Its tokens are not known, as of speech: nor is its cost, unless it is free, or its pictures have a price.
        unknown = None if costs_money(state.backend) else 0.0
        usd = pictures_usd(state.backend, record.endpoint, served.pictures) or unknown
        self._spend(record, state, usd)
        self._enter(record, state.name, NO_TOKENS, record.outcome, record.seconds, usd, served.audio_seconds)
        return 0

    def _settle_unserved(self, record: RequestRecord) -> int:
        """Returns the tokens that were used, as far as they are known. For an attempt that was interrupted the
        estimate counts, and what has come of its stream; otherwise a client could avoid limits and budgets by leaving
        early."""
        trying, outcome = record.trying, record.outcome
        if trying is not None:  # broke after content, or was ended by the client or by the gateway's stop
            self._metrics.attempts.inc(trying.state.name, outcome.removeprefix("stream_"))
        backend = trying.state.name if trying is not None else record.tried[-1].backend if record.tried else ""
        self._metrics.requests.inc(record.alias, backend, record.endpoint.name, outcome)
        if trying is None:
            if record.alias:
                self._enter(record, backend, NO_TOKENS, outcome, record.seconds, 0.0)
            return 0
        state = trying.state
        sent = trying.track.output_tokens(state.ratio.probably) if trying.track is not None else 0
        used = Tokens(known_tokens(state, trying.request), sent)
        usd = self._accounts.cost(state.backend, record.client, used)
        if pictures := pictures_usd(state.backend, record.endpoint, trying.request.choices):
            usd = (usd or 0.0) + pictures
        self._spend(record, state, usd)
        if sent:
            trying.tokens = Tokens(completion=sent)  # those of the prompt were not reported
            self._route(record, state).count_tokens(trying.tokens)
        self._enter(record, state.name, trying.tokens, outcome, record.seconds, usd)
        return max(record.charge.tokens, used.total if sent else 0) if record.charge is not None else 0

    def _count_usage(self, record: RequestRecord, route: Route, attempt: AttemptRecord, *, unused: bool = False) -> int:
        """Tokens as the backend reported them; they also show how many bytes one of its tokens has. If the reported
        numbers are impossible, the estimate counts instead, so that such an answer is neither free nor uses up a
        budget."""
        usage = (attempt.unused if unused else attempt.usage) or {}
        outcome, seconds = ("unused", 0.0) if unused else (record.outcome, record.seconds)
        state, request = attempt.state, attempt.request
        used = attempt.tokens = read_usage(usage)
        if not (used.prompt and used.completion) and is_beyond_belief(usage):  # both were read: both are plausible
            self._metrics.violations.inc(state.name, "usage")
            return self._book_estimate(record, attempt, outcome, seconds)
        route.count_tokens(used)
        counted = used.prompt and not usage.get("estimated")  # an estimate teaches nothing
        if counted and state.ratio.due(request.known_text_bytes, request.sender) and not request.media.pictures:
            state.ratio.learn(request.known_text_bytes, used.prompt, request.sender)
        usd = self._accounts.cost(state.backend, record.client, used) if used.total else 0.0
        if attempt.pictures and (pictures := pictures_usd(state.backend, record.endpoint, attempt.pictures)):
            usd = (usd or 0.0) + pictures
        if usd:
            self._spend(record, state, usd)
        self._enter(record, state.name, used, outcome, seconds, usd, attempt.audio_seconds)
        return used.total

    def _book_estimate(self, record: RequestRecord, attempt: AttemptRecord, outcome: str, seconds: float) -> int:
        accounts, state = self._accounts, attempt.state
        estimate = accounts.probable_tokens(state, attempt.request)
        usd = accounts.cost(state.backend, record.client, estimate)
        self._spend(record, state, usd)
        self._enter(record, state.name, NO_TOKENS, outcome, seconds, usd, attempt.audio_seconds)
        return record.charge.tokens if record.charge is not None else estimate.total

    def _spend(self, record: RequestRecord, state: BackendState, usd: float | None) -> None:
        if not usd:
            return
        self._accounts.budgets.add(state.name, record.spender, usd, int(time.time() // DAY))
        self._on_spent(record.alias, usd)
        if state.backend.cloud:
            self._metrics.cloud_usd.child(state.name, record.client_label).value += usd

    def _enter(
        self,
        record: RequestRecord,
        backend: str,
        used: Tokens,
        outcome: str,
        seconds: float,
        usd: float | None,
        audio_seconds: float = 0.0,
    ) -> None:
        """Add an entry to the ledger; an unused answer does not count as a request."""
        requests, unpriced = int(outcome != "unused"), int(usd is None)
        if usd is None or record.usd is None:
            record.usd = None
        elif usd:
            record.usd += usd
        alias, endpoint = record.alias, record.endpoint.name
        audio = (0.0, audio_seconds) if record.endpoint is SPEECH else (audio_seconds, 0.0)
        counts = requests, seconds, *astuple(used), usd or 0.0, unpriced, *audio
        self._accounts.ledger.put(Entry(time.time(), record.spender, alias, backend, endpoint, outcome, *counts))

    def _route(self, record: RequestRecord, state: BackendState) -> Route:
        return self._metrics.route(record.client_label, record.alias, state.name, record.endpoint.name)
