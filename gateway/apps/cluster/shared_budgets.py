"""Spending of all gateways together: each sends its own totals, and the probable cost of its requests under way. Totals
are absolute, so data that Redis has lost is complete again once every gateway has sent its totals again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from gateway.accounting.budgets import LONGEST, Account, Budgets
from gateway.apps.cluster.redis_connection import Operation


class SharedBudgets:
    """`owner` identifies this gateway across restarts. `wake` is called when there is something to send
    (`pending_operations`)."""

    def __init__(self, budgets: Budgets, owner: str, wake: Callable[[], None]) -> None:
        self.owner = owner
        self._budgets = budgets
        self._wake = wake
        self._borrowed: dict[tuple[int, Account], float] = {}  # totals read from a ledger of another owner
        self._claimed = False
        self._spent: set[tuple[int, Account]] = set()  # totals to send
        self._reserved: set[Account] = set()
        self._reported: set[Account] = set()  # accounts with reservations that were sent
        self._theirs: dict[str, dict[tuple[int, Account], float]] = {}  # owner -> its totals
        self._their_reserved: dict[str, dict[Account, float]] = defaultdict(dict)  # gateway -> its reservations

    # -- operations to send ---------------------------------------------------------------------------------------

    def changed(self, account: Account, day: int | None) -> None:
        """The spending of this day has changed; without a day, the reserved amount."""
        if day is None:
            self._reserved.add(account)
        else:
            self._spent.add((day, account))
        self._wake()

    def pending_operations(self) -> list[Operation]:
        """The operations to send now."""
        if not self._claimed or not (self._spent or self._reserved):
            return []
        spent = [(day, _text(account), self._own(day, account)) for day, account in self._spent]
        reserved = [(_text(account), self._budgets.own_reserved(account)) for account in self._reserved]
        self._reported |= self._reserved
        self._spent, self._reserved = set(), set()
        return [("spend", self.owner, spent, reserved)]

    def resend_all(self) -> None:
        """Send all totals again."""
        self._spent = {(day, account) for day, account, _ in self._budgets.totals()}
        self._reserved = self._reported | set(self._budgets.accounts_reserved())

    def _own(self, day: int, account: Account) -> float:
        return max(0.0, self._budgets.own(account, day) - self._borrowed.get((day, account), 0.0))

    # -- answers and messages -------------------------------------------------------------------------------------

    def claim(self, today: int) -> list[Operation]:
        """Claim the name of this gateway, at each joining. Spending under names that end with their gateway is read
        again then: another gateway may have taken it over."""
        self._theirs = {owner: totals for owner, totals in self._theirs.items() if "/" not in owner}
        return [] if "/" in self.owner else [("claim", self.owner, days(today))]

    def claimed(self, yes: bool, gateway: str) -> None:
        """The answer to the claim. False = another running gateway has the same `server.data`: the totals read there
        belong to that gateway, and spending of this one is sent under a name of its own. Also False when this gateway
        counted as gone and has lost its name."""
        if not yes:
            self.owner = f"{self.owner}/{gateway}"
            self._borrowed = {(day, account): usd for day, account, usd in self._budgets.totals()}
        self._claimed = True

    def read(self, spent: list[tuple[int, str, str]], reserved: list[tuple[str, str, str]], gateway: str) -> None:
        """(day, owner and account, USD) of these days; (gateway, account, USD) of all gateways that are present."""
        for day, field, usd in spent:
            owner, _, account = field.partition("\t")
            self._record(owner, day, _account(account), float(usd))
        self._their_reserved.clear()
        for other, account, usd in reserved:
            if other != gateway:
                self._their_reserved[other][_account(account)] = float(usd)
        self._recompute()

    def receive(self, gateway: str, owner: str, spent: list[Any], reserved: list[Any]) -> None:
        """Spending of another gateway, as a message."""
        for day, account, usd in spent:
            self._record(owner, day, _account(account), usd)
        for account, usd in reserved:
            self._their_reserved[gateway][_account(account)] = usd
        self._recompute()

    def merged(self, owners: list[str]) -> None:
        """The totals of these owners are part of another owner's totals from now on."""
        for owner in owners:
            self._theirs.pop(owner, None)
        self._recompute()

    def _record(self, owner: str, day: int, account: Account, usd: float) -> None:
        if owner != self.owner:
            self._theirs.setdefault(owner, {})[day, account] = usd
        elif usd > self._own(day, account):  # more than the ledger has: spent by this owner before the restart
            self._budgets.add_lost(account, day, usd - self._own(day, account))

    def _recompute(self) -> None:
        spent: dict[Account, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        in_ledger = dict(self._borrowed)  # these totals are in our own already
        for owner, totals in self._theirs.items():
            same_ledger = _ledger(owner) == _ledger(self.owner)
            for (day, account), usd in totals.items():
                known = min(usd, in_ledger.get((day, account), 0.0)) if same_ledger else 0.0
                if known:
                    in_ledger[day, account] -= known
                spent[account][day] += usd - known
        reserved: dict[Account, float] = defaultdict(float)
        for theirs in self._their_reserved.values():
            for account, usd in theirs.items():
                reserved[account] += usd
        self._budgets.set_others(spent, reserved)


def days(today: int) -> list[int]:
    """The days that a running budget period may cover."""
    return list(range(today - LONGEST, today + 1))


def _ledger(owner: str) -> str:
    """The ledger that an owner writes to: OWNER of OWNER/GATEWAY."""
    return owner.partition("/")[0]


def _text(account: Account) -> str:
    return f"{account.side}\t{account.name}"


def _account(text: str) -> Account:
    side, _, name = text.partition("\t")
    return Account("backend" if side == "backend" else "client", name)
