"""How much of each budget is spent, for the budget alerts. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.accounting.budgets import Account, Budgets
from gateway.config.snapshot import Budget, Snapshot


def shares(snapshot: Snapshot, budgets: Budgets, day: int) -> dict[str, float]:
    """Name of a budget, for people -> share of it that is spent in the running period (1 = all; reservations do not
    count). `day`: UTC days since 1970-01-01."""
    return {name: budgets.spent(account, budget, day) / budget.usd for name, account, budget in _budgets(snapshot)}


def _budgets(snapshot: Snapshot) -> Iterator[tuple[str, Account, Budget]]:
    for backend in snapshot.backends.values():
        if backend.budget is not None and backend.budget.usd > 0:
            yield backend.name, Account("backend", backend.name), backend.budget
    for client in snapshot.clients.values():
        if client.budget is not None and client.budget.usd > 0:
            yield f"client {client.name}", Account("client", client.name), client.budget
