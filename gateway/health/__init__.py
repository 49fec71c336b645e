"""Probes, canaries and verdicts: what is known of a backend without a request of a client."""
