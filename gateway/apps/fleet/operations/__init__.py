"""`gateway fleet switch`, `start`, `stop` and `status`."""
