"""The record of one request: what is counted, logged and traced of it. The request path writes it, stage by stage;
`settle` and the observers read it when the request has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import astuple

from gateway.accounting.accounts import Accounts, Charge, Reservation
from gateway.accounting.ledger_file import DAY, Entry
from gateway.accounting.prices import costs_money, pictures_usd
from gateway.config.snapshot import OPEN, Client
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import SPEECH, Endpoint
from gateway.domain.prefill import PromptUnderWay
from gateway.domain.privacy import NO_MARKS, Privacy
from gateway.domain.request import InferenceRequest
from gateway.domain.tokens import NO_TOKENS, Tokens, is_beyond_belief, read_usage
from gateway.errors import CATALOGUE
from gateway.inspection.stream_track import StreamTrack
from gateway.inspection.whole import WholeAnswer
from gateway.metrics.registry import Metrics, Route
from gateway.routing.plan import Plan
from gateway.routing.refusal import FailedAttempt
from gateway.routing.window import known_tokens


@dataclass(slots=True, eq=False)
class AttemptRecord:
    """One attempt on one backend. `number` counts from 1 within its request. `detour`: why a later step was asked,
    ("fallback" | "routed", reason). The defaults are those of an attempt that has not begun."""

    state: BackendState
    request: InferenceRequest
    number: int
    detour: tuple[str, str] | None
    adapted: Sequence[str] = ()  # what was changed to ask this backend
    unsent: bool = False  # not a byte of it went to the backend
    answered: bool = False  # the client has the answer, or its end is being sent
    first_token: float = 0.0  # when the first content was sent to the client, in the loop's seconds; 0 = none
    pictures: int = 0  # that were made
    usage: dict[str, Any] | None = None  # reported with the answer that the client got
    tokens: Tokens = NO_TOKENS  # of the usage that was counted
    audio_seconds: float = 0.0  # of speech that was read or spoken, as far as it is known
    unused: dict[str, Any] | None = None  # of an answer that was not used, or went on elsewhere
    answer: WholeAnswer | StreamTrack | None = None  # the one that the client got
    prompt: PromptUnderWay | None = None  # until the backend has computed it; None: nothing depends on it
    track: StreamTrack | None = None  # of a stream that has begun, whatever becomes of it


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request. Every field has a neutral value from the beginning, which stays if the request is refused before
    that stage. Observers must read the record at once: the bytes of the request are released afterwards."""

    id: str
    endpoint: Endpoint  # of the client's path; `request.endpoint` is the one after translation
    began: float  # in the loop's seconds
    client_label: str = OPEN  # for metrics: the client's name, where routes.yaml has `clients`
    client: Client | None = None
    request: InferenceRequest | None = None  # None: the body could not be read
    alias: str = ""  # "" = none was found
    privacy: Privacy = NO_MARKS  # what the request says about it, once it was read
    charge: Charge | None = None  # tokens that were counted against the client's tpm
    reserved: list[Reservation] = field(default_factory=list)  # the probable cost of its attempts
    attempts: list[AttemptRecord] = field(default_factory=list)
    trying: AttemptRecord | None = None  # the latest attempt, unless it has failed before content
    tried: list[FailedAttempt] = field(default_factory=list)  # the backends that did not answer, and why
    queued: float | None = None  # seconds that it has waited for slots; None if it did not get that far
    described: int = 0  # pictures in whose place a description stands
    resumed: str = ""  # the backend that went on with the stream after it had broken at another one
    committed: bool = False  # the status of a stream was sent
    outcome: str = "200"  # the HTTP status of an answer, an error code, "client_gone" or "client_stalled"
    error: str = ""  # the message of the error that the client got
    plan: Plan | None = None  # the latest one; None: none was made, because the first choice served
    usd: float | None = 0.0  # what its tokens cost; None: not known for all of them
    seconds: float = 0.0  # from its beginning to its end

    @property
    def spender(self) -> str:
        """For the ledger: the client, with its user where it has one."""
        client = self.client
        return self.client_label if client is None or client.parent is None else client.name

    def release_bytes(self) -> None:
        """Release the request's bytes now. Its parts form cycles, which would wait for a garbage collection."""
        self.attempts.clear()
        self.trying = None
        if self.request is not None:
            self.request.fields.clear()

    def served_by(self) -> AttemptRecord | None:
        """The attempt whose answer, or beginning of an answer, the client got."""
        attempts = self.attempts
        for attempt in attempts:
            if attempt.answered:
                return attempt
        return attempts[-1] if any(attempt.first_token for attempt in attempts) else None


class RequestLine(msgspec.Struct, frozen=True, gc=False):
    """A request that has ended. `at`: Unix seconds. `backend`: the one that answered, else the last one that was
    tried; "" = none. `left`: the failed attempts. `detour`: ("fallback" | "routed", reason).
    `queued`, `first_token` (None without a token) and `total` in seconds. `resumed`: the backend that went on with a
    stream that broke at another one. `skipped`: (backend, reason) of those that could not serve, where it
    mattered. `mended`, `left_out`: as in the headers of the answer. `translated`: it was asked in another form than a
    chat's. `error`: the message that the client got. `usd`: None where not all of it is known."""

    at: float
    id: str
    client: str
    alias: str
    endpoint: str
    stream: bool
    backend: str
    attempts: int
    outcome: str
    detour: tuple[str, str] | None
    adapted: Sequence[str]
    left: Sequence[FailedAttempt]
    tokens: Tokens
    queued: float
    first_token: float | None
    total: float
    resumed: str = ""
    audio_seconds: float = 0.0
    skipped: Sequence[tuple[str, str]] = ()
    mended: Collection[str] = ()
    left_out: Sequence[str] = ()
    translated: bool = False
    local_only: bool = False
    error: str = ""
    usd: float | None = 0.0

    @property
    def level(self) -> int:
        """The level of the line: warning for a request that was not served as configured."""
        return logging.WARNING if is_failure(self.outcome) or self.detour is not None else logging.INFO

    def shown(self) -> dict[str, Any]:
        """The fields of the log's line (docs/logs.md) that need no more than this record; what has nothing to say is
        left out."""
        tokens = self.tokens
        found: dict[str, Any] = {
            "id": self.id,
            "client": self.client,
            "alias": self.alias,
            "endpoint": self.endpoint,
            "stream": self.stream,
            "backend": self.backend,
            "attempts": self.attempts,
            "outcome": self.outcome,
            "tokens_in": tokens.prompt,
            "tokens_out": tokens.completion,
            "tokens_cached": tokens.cached,
            "tokens_reasoning": tokens.reasoning,
            "queued_ms": round(self.queued * 1000) if self.queued else 0,
            "total_ms": round(self.total * 1000),
        }
        if self.first_token is not None:
            found["first_token_ms"] = round(self.first_token * 1000)
        if self.detour is not None:
            kind, why = self.detour
            found[kind] = why
        if self.audio_seconds:
            found["audio_seconds"] = round(self.audio_seconds, 2)
        if self.resumed:
            found["resumed"] = self.resumed
        if self.adapted:
            found["adapted"] = self.adapted
        return found


def is_failure(outcome: str) -> bool:
    """Is the outcome a failure of the gateway or of a backend, not of the client?"""
    code = CATALOGUE.get(outcome)
    return code is not None and code.status >= 500


def request_line(record: RequestRecord, at: float) -> RequestLine:
    """The line of a request that ended at `at`."""
    served, request, trying = record.served_by(), record.request, record.trying
    answer = served.answer if served is not None else None
    detour = served.detour if served is not None else None
    plan = record.plan if detour is not None or record.tried or record.error else None
    if served is not None:
        backend = served.state.name
        tokens = served.tokens
        token = served.first_token
        if len(record.attempts) > 1:
            token = max([attempt.first_token for attempt in record.attempts])  # content is begun once
        first = token - record.began if token else None
    else:
        backend = trying.state.name if trying is not None else record.tried[-1].backend if record.tried else ""
        tokens, first = NO_TOKENS, None
    return RequestLine(
        at,
        record.id,
        record.client_label,
        record.alias,
        record.endpoint.name,
        request.stream if request is not None else False,
        backend,
        len(record.attempts),
        record.outcome,
        detour,
        served.adapted if served is not None else (),
        record.tried,
        tokens,
        record.queued or 0.0,
        first,
        record.seconds,
        record.resumed,
        served.audio_seconds if served is not None else 0.0,
        [(skip.state.name, skip.reason) for skip in plan.skipped] if plan is not None and plan.skipped else (),
        answer.mended if answer is not None else (),
        request.own.left_out if request is not None and request.own is not None else (),
        record.endpoint.becomes is not None,
        record.privacy.local_only,
        record.error,
        record.usd,
    )


# -- counting a finished request, exactly once, however it ended -------------------------------------------------------


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
