"""What clients may use and spend, and what they have used: limits, prices, budgets and the ledger of one gateway."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from pathlib import Path

from gateway.accounting.budgets import Account, Budgets
from gateway.accounting.ledger import Ledger
from gateway.accounting.ledger_file import DAY
from gateway.accounting.limits import RateLimits
from gateway.accounting.prices import FREE, Prices, costs_money, pictures_usd
from gateway.config.snapshot import Backend, Budget, Client, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.request import InferenceRequest
from gateway.domain.usage import Tokens
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
