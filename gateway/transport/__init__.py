"""Connections to backends, and how bytes are framed on them. Knows nothing of models or routes."""
