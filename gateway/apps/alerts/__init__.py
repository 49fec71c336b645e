"""Alerts: who is told when a backend fails or comes back, and over which channel."""
