"""What was spent in the running UTC day, week and month, and whether that is all of a budget. Pure: the day is passed
in, as the number of days since 1970-01-01.

Requests under way count with an estimate until they are settled, so that parallel requests do not all count on the
same remaining amount.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, timedelta
from math import isfinite
from typing import Literal, NamedTuple

from gateway.config.snapshot import Budget, Snapshot

Side = Literal["backend", "client"]

EPOCH = date(1970, 1, 1)
LONGEST = 31  # days of the longest period
ROUNDING = 1e-9  # USD: ten times 0.1 is less than 1


class Account(NamedTuple):
    """An account: a backend (all clients together) or a client (all backends together)."""

    side: Side
    name: str


def first_day(per: Literal["day", "week", "month"], today: int) -> int:
    """The day on which the running period began. Weeks begin on Monday."""
    if per == "day":
        return today
    here = EPOCH + timedelta(days=today)
    return today - (here.weekday() if per == "week" else here.day - 1)


def next_day(per: Literal["day", "week", "month"], today: int) -> int:
    """The day on which the next period begins."""
    first = first_day(per, today)
    if per == "day":
        return first + 1
    return first + 7 if per == "week" else first_day("month", first + LONGEST)


class Budgets:
    """Spent and reserved USD of each account: this gateway's own, and what other gateways have reported. `on_change`
    is called with the account that has changed and the day (None: its reservations have)."""

    def __init__(self) -> None:
        self._spent: dict[Account, dict[int, float]] = defaultdict(dict)  # account -> day -> USD
        self._reserved: dict[Account, float] = {}
        self._spent_elsewhere: Mapping[Account, Mapping[int, float]] = {}
        self._reserved_elsewhere: Mapping[Account, float] = {}
        self.on_change: Callable[[Account, int | None], None] = lambda *_: None

    def add_history(self, rows: Iterable[tuple[int, str, str, float]]) -> None:
        """Add spending from before the start: rows (day, backend, client, USD)."""
        for day, backend, client, usd in rows:
            self.add(backend, client, usd, day)

    def add(self, backend: str, client: str, usd: float, day: int) -> None:
        """Count `usd`; a value that is not an amount of money is ignored."""
        if not (isfinite(usd) and usd >= 0.0):
            return
        self._add(Account("backend", backend), usd, day)
        for name in dict.fromkeys((client, client.partition("/")[0])):  # of a user (CLIENT/USER): its client's too
            self._add(Account("client", name), usd, day)

    def _add(self, account: Account, usd: float, day: int) -> None:
        days = self._spent[account]
        days[day] = days.get(day, 0.0) + usd
        if len(days) > 2 * LONGEST:
            for old in [d for d in days if d <= day - LONGEST]:
                del days[old]
        self.on_change(account, day)

    def reserve(self, account: Account, usd: float) -> None:
        self._reserved[account] = self._reserved.get(account, 0.0) + usd
        self.on_change(account, None)

    def release(self, account: Account, usd: float) -> None:
        """Give back a reservation; an account without reservations is exactly 0 again, without rounding errors."""
        rest = self._reserved.get(account, 0.0) - usd
        if rest > ROUNDING:
            self._reserved[account] = rest
        else:
            self._reserved.pop(account, None)
        self.on_change(account, None)

    def spent(self, account: Account, budget: Budget, today: int) -> float:
        """USD of the running period; reservations not counted."""
        first = first_day(budget.per, today)
        found = sum(usd for day, usd in self._spent.get(account, {}).items() if day >= first)
        if self._spent_elsewhere:
            found += sum(usd for day, usd in self._spent_elsewhere.get(account, {}).items() if day >= first)
        return found

    def reserved(self, account: Account) -> float:
        return self.own_reserved(account) + self._reserved_elsewhere.get(account, 0.0)

    def exhausted(self, account: Account, budget: Budget, today: int) -> str | None:
        """Why nothing more may be spent now, as text for people; None if spending is allowed."""
        spent, reserved = self.spent(account, budget, today), self.reserved(account)
        if spent + reserved < budget.usd - ROUNDING:
            return None
        until = EPOCH + timedelta(days=next_day(budget.per, today))
        running = f" and {reserved:.2f} under way" if reserved and spent < budget.usd else ""
        return f"{spent:.2f} USD{running} of {budget.usd:g} USD/{budget.per} until {until} 00:00 UTC"

    # -- with other gateways --------------------------------------------------------------------------------------

    def own(self, account: Account, day: int) -> float:
        """USD that this gateway has spent on this day."""
        return self._spent.get(account, {}).get(day, 0.0)

    def own_reserved(self, account: Account) -> float:
        return self._reserved.get(account, 0.0)

    def totals(self) -> Iterator[tuple[int, Account, float]]:
        """All spending of this gateway, as (day, account, USD)."""
        for account, days in self._spent.items():
            for day, usd in days.items():
                yield day, account, usd

    def accounts_reserved(self) -> Iterable[Account]:
        return self._reserved

    def add_lost(self, account: Account, day: int, usd: float) -> None:
        """Count spending of this gateway that its ledger has lost."""
        days = self._spent[account]
        days[day] = days.get(day, 0.0) + usd

    def set_others(self, spent: Mapping[Account, Mapping[int, float]], reserved: Mapping[Account, float]) -> None:
        """Set the spending and the reservations of the other gateways."""
        self._spent_elsewhere, self._reserved_elsewhere = spent, reserved


def shares(snapshot: Snapshot, budgets: Budgets, day: int) -> dict[str, float]:
    """Name of a budget, for people -> share of it that is spent in the running period (1 = all; reservations do not
    count). `day`: UTC days since 1970-01-01."""
    found: dict[str, float] = {}
    for backend in snapshot.backends.values():
        if backend.budget is not None and backend.budget.usd > 0:
            spent = budgets.spent(Account("backend", backend.name), backend.budget, day)
            found[backend.name] = spent / backend.budget.usd
    for client in snapshot.clients.values():
        if client.budget is not None and client.budget.usd > 0:
            spent = budgets.spent(Account("client", client.owner), client.budget, day)
            found[f"client {client.owner}"] = spent / client.budget.usd
    return found
