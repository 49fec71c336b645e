"""The last requests: what happened to each, and what those do that run."""
