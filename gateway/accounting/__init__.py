"""What requests cost: limits, budgets, prices and the ledger."""
