"""Traces of requests, exported over OTLP."""
