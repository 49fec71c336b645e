"""How much of a budget is spent, as its alerts tell it."""

from __future__ import annotations

from gateway.accounting.budgets import Budgets, shares
from gateway.config.load import load_text


def test_only_the_running_period_counts() -> None:
    snapshot = load_text(
        "backends: {a: {engine: openai, url: 'https://x.example', cloud: true, model: m, budget: 5 USD/day}}",
        environ={},
    ).snapshot
    budgets = Budgets()
    budgets.add("a", "open", 4.0, 100)
    assert shares(snapshot, budgets, 100) == {"a": 0.8}
    assert shares(snapshot, budgets, 101) == {"a": 0.0}
