"""Ollama, by its native API."""
