"""What clients may use and spend, and what they have used: limits, prices, budgets and the ledger of one gateway."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from math import ceil
from pathlib import Path
from typing import NamedTuple

from gateway.accounting.budgets import Account, Budgets
from gateway.accounting.ledger import Ledger
from gateway.accounting.ledger_file import DAY
from gateway.accounting.prices import FREE, Prices, costs_money, pictures_usd
from gateway.config.snapshot import Backend, Budget, Client, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.request import IMAGE_TOKENS, InferenceRequest
from gateway.domain.tokens import PRIOR_USUAL, Tokens
from gateway.errors import GatewayError
from gateway.routing.plan import OverBudget
from gateway.routing.window import known_tokens
from gateway.supervision import Failures

log = logging.getLogger("gateway.accounts")

# Estimated tokens of an answer: of a request without a limit of its own; the most for any request.
ANSWER_GUESS, ANSWER_MOST = 1024, 4096


Reservation = tuple[Account, float]
"""The estimated cost of a request under way, in USD, held on an account."""


class Accounts:
    """The accounts of one gateway; for the event loop's thread only. Without limits and budgets in routes.yaml a
    request costs only a few look-ups here."""

    def __init__(self, folder: str, failures: Failures | None = None) -> None:
        self.limits = RateLimits()
        self.prices = Prices()
        self.budgets = Budgets()
        self.ledger = Ledger(Path(folder), failures)
        self._looked_at: Snapshot | None = None
        self._any_budget = False
        self._logged_unpriced: set[str] = set()  # backends whose missing price was logged

    async def open(self) -> None:
        self.budgets.add_history(await asyncio.to_thread(self.ledger.open))

    async def close(self) -> None:
        """Write the remaining entries."""
        await asyncio.to_thread(self.ledger.close)

    def over_budget(self, snapshot: Snapshot, client: Client | None) -> OverBudget | None:
        """The budget check for `make_plan`. None if no budget applies to this request."""
        if snapshot is not self._looked_at:
            self._looked_at = snapshot
            self._any_budget = any(backend.budget is not None for backend in snapshot.backends.values())
        if not self._any_budget and (
            client is None or (client.budget is None and (client.parent is None or client.parent.budget is None))
        ):
            return None
        return lambda state: self.why_over_budget(state.backend, client)

    def why_over_budget(self, backend: Backend, client: Client | None) -> str | None:
        """Which budget is spent, as text for people; None if none is, or if this backend costs nothing."""
        for account, budget in _budgets_of(backend, client):
            spent = self.budgets.exhausted(account, budget, today())
            if spent is not None:
                whose = "its budget is" if account.side == "backend" else f"the budget of client '{account.name}' is"
                return f"costs money, and {whose} spent: {spent}"
        return None

    def reserve(
        self, state: BackendState, client: Client | None, request: InferenceRequest, held: list[Reservation]
    ) -> str | None:
        """Before an attempt: reserve its probable cost (added to `held`, for `release`). Returns the budget that
        forbids the attempt, as text; None if no budget does."""
        budgets = _budgets_of(state.backend, client)
        if not budgets:
            return None
        reason = self.why_over_budget(state.backend, client)
        if reason is not None:
            return reason
        usd = self.probable_cost(state, request)
        for account, _ in budgets:
            self.budgets.reserve(account, usd)
            held.append((account, usd))
        return None

    def release(self, held: Iterable[Reservation]) -> None:
        """At the end of a request: release its reservations. Its real cost is counted separately."""
        for account, usd in held:
            self.budgets.release(account, usd)

    def probable_cost(self, state: BackendState, request: InferenceRequest) -> float:
        """The estimated cost in USD; 0 if the price is unknown."""
        rates = self.prices.of(state.backend)
        pictures = pictures_usd(state.backend, request.endpoint, request.choices)
        return pictures + (0.0 if rates is None else rates.usd(self.probable_tokens(state, request)))

    def probable_tokens(self, state: BackendState, request: InferenceRequest) -> Tokens:
        """The estimated tokens of prompt and answer, before a backend has counted them."""
        answer = min(request.limit() or ANSWER_GUESS, ANSWER_MOST) * request.choices if request.endpoint.limits else 0
        return Tokens(known_tokens(state, request), answer)

    def cost(self, backend: Backend, client: Client | None, used: Tokens) -> float | None:
        """The cost of reported tokens in USD; None if unknown, which is logged once per backend if a budget depends
        on it."""
        rates = self.prices.of(backend)
        if rates is not None:
            return 0.0 if rates is FREE else rates.usd(used)
        if _budgets_of(backend, client) and backend.name not in self._logged_unpriced:
            self._logged_unpriced.add(backend.name)
            log.warning("what %s costs is unknown, so no budget counts it: write `price` there", backend.name)
        return None


def _budgets_of(backend: Backend, client: Client | None) -> list[tuple[Account, Budget]]:
    """The budgets that a request of this client to this backend draws on."""
    if backend.budget is None and (client is None or (client.budget is None and client.parent is None)):
        return []
    clients = [one for one in (client, client.parent if client else None) if one is not None and one.budget is not None]
    if (backend.budget is None and not clients) or not costs_money(backend):
        return []
    found = [(Account("backend", backend.name), backend.budget)] if backend.budget is not None else []
    found += [(Account("client", one.owner), one.budget) for one in clients if one.budget is not None]
    return found


def today() -> int:
    """UTC days since 1970-01-01."""
    return int(time.time() // DAY)


# -- limits per minute: requests (`rpm`) and tokens (`tpm`); pure, time is passed in -----------------------------------
# A window slides over the last 60 seconds, in buckets of one second, and rounds against the client: an entry counts for
# at least 60 seconds and at most 61. So no 60 seconds hold more than the limit, and the reported wait is long enough.

SECONDS = 60
KEPT_MOST = 20_000  # windows of clients and their users; beyond it the older half begins anew
COUNTED_MOST = 1024  # tokens that are counted for an answer before it is known


class Window:
    """A sum over the last minute."""

    __slots__ = ("_buckets", "_sum")

    def __init__(self) -> None:
        self._buckets: deque[list[int]] = deque()  # [second, amount], ascending, one per second in which something came
        self._sum = 0

    def used(self, now: float) -> int:
        buckets, oldest = self._buckets, int(now) - SECONDS
        while buckets and buckets[0][0] < oldest:
            self._sum -= buckets.popleft()[1]
        return self._sum

    def wait(self, limit: int, amount: int, now: float) -> float:
        """Seconds until `amount` more fits; 0 = it does now. An amount above the limit fits when the window is
        empty: otherwise it would never fit."""
        over = self.used(now) + min(amount, limit) - limit
        wait = 0.0
        for second, held in self._buckets:
            if over <= 0:
                break
            over -= held
            wait = second + SECONDS + 1 - now
        return wait

    def add(self, amount: int, now: float) -> None:
        self.used(now)  # drops old buckets, also if `wait` is never called
        second = int(now)
        if self._buckets and self._buckets[-1][0] >= second:
            self._buckets[-1][1] += amount
        else:
            self._buckets.append([second, amount])
        self._sum += amount

    def take_back(self, amount: int, at: float, now: float) -> None:
        """Correct an amount added at `at`, which was `amount` too high; one that has left the window needs no
        correction."""
        self.used(now)
        for bucket in reversed(self._buckets):
            if bucket[0] <= int(at):
                taken = min(amount, bucket[1]) if bucket[0] == int(at) else 0
                bucket[1] -= taken
                self._sum -= taken
                return


class Charge(NamedTuple):
    """The estimated tokens that were counted for a request."""

    window: Window
    tokens: int
    at: float


class RateLimits:
    """The windows of all clients with a limit, by name, so that they survive an edit of routes.yaml."""

    def __init__(self) -> None:
        self._clients: dict[str, tuple[Window, Window]] = {}  # of requests, of tokens

    def check(self, client: Client | None, request: InferenceRequest, now: float) -> Charge | None:
        """Count this request, or raise `rate_limit_exceeded` and count nothing. `now`: monotonic seconds. The
        returned charge is passed to `spent` when the request has ended."""
        if client is None:
            return None
        of_user = None
        if client.parent is not None:
            if client.rpm is not None:
                of_user, _ = self._windows(client)
                if wait := of_user.wait(client.rpm, 1, now):
                    raise limit_error(client, wait, 0.0)
            client = client.parent
        if client.rpm is None and client.tpm is None and of_user is None:
            return None
        of_requests, of_tokens = self._windows(client)
        tokens = 0 if client.tpm is None else estimate(request)
        requests_wait = 0.0 if client.rpm is None else of_requests.wait(client.rpm, 1, now)
        tokens_wait = 0.0 if client.tpm is None else of_tokens.wait(client.tpm, tokens, now)
        if requests_wait or tokens_wait:
            raise limit_error(client, requests_wait, tokens_wait)
        if of_user is not None:
            of_user.add(1, now)
        if client.rpm is not None:
            of_requests.add(1, now)
        if client.tpm is None:
            return None
        of_tokens.add(tokens, now)
        return Charge(of_tokens, tokens, now)

    def _windows(self, client: Client) -> tuple[Window, Window]:
        windows = self._clients.get(client.name)
        if windows is None:
            if len(self._clients) >= KEPT_MOST:
                self._clients = dict(list(self._clients.items())[KEPT_MOST // 2 :])
            windows = self._clients[client.name] = Window(), Window()
        return windows

    def uncount(self, client: str, at: float, now: float) -> None:
        """A request that was counted at `at` was refused by all gateways together. (`spent` corrects its tokens.)"""
        if (windows := self._clients.get(client)) is not None:
            windows[0].take_back(1, at, now)

    def spent(self, charge: Charge, tokens: int, now: float) -> None:
        """A request has ended and used `tokens` in total: tokens beyond the estimate are counted now, unused ones
        are taken back."""
        if tokens > charge.tokens:
            charge.window.add(tokens - charge.tokens, now)
        elif tokens < charge.tokens:
            charge.window.take_back(charge.tokens - tokens, charge.at, now)


def estimate(request: InferenceRequest) -> int:
    """Tokens of prompt and answer, before any backend has counted them."""
    media = request.media
    text_bytes, pictures = request.prompt_bytes - media.bytes, media.pictures * IMAGE_TOKENS
    answers = request.choices if request.endpoint.limits else 0
    return text_estimate(text_bytes, request.limit(), answers, pictures)


def text_estimate(prompt_bytes: int, limit: int | None, answers: int = 1, more: int = 0) -> int:
    """Tokens of a prompt of text and `more` of anything else, and of this many answers with this `limit` each."""
    return max(1, int(prompt_bytes / PRIOR_USUAL) + more + answers * min(limit or COUNTED_MOST, COUNTED_MOST))


def limit_error(client: Client, requests_wait: float, tokens_wait: float) -> GatewayError:
    """The error for a client over a limit. Both waits are in seconds; the longer one is reported."""
    wait = max(requests_wait, tokens_wait)
    key, what = ("rpm", "requests") if requests_wait >= tokens_wait else ("tpm", "tokens")
    had = f"Client '{client.name}' has had its {getattr(client, key)} {what} ({key}) of this minute"
    return GatewayError("rate_limit_exceeded", f"{had}: ask again in {ceil(wait)} s.", retry_after=ceil(wait))
