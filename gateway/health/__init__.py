"""Finds out how healthy a backend is without waiting for a client's request: probes, canaries and their results."""
