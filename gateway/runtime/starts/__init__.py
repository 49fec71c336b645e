"""Backends that requests start (`run: on_request`): when one is started, and when it is stopped again."""
