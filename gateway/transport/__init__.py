"""Connections to backends and the framing of bytes on them. Independent of models and routes."""
