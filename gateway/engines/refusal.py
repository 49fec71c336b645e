"""Errors that an engine answers itself, without asking its server."""

from __future__ import annotations

import msgspec

from gateway.engines.base import WholeResponse

MESSAGE_MOST = 2000  # characters


class Refused(Exception):
    """What the client asked for cannot be said to this engine's server; becomes a 400 in OpenAI's shape."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param = message, param


def error_of(message: str, status: int, param: str | None = None) -> dict[str, str | None]:
    """An error as it stands in OpenAI's envelope and in an error event."""
    kind = "invalid_request_error" if 400 <= status < 500 else "server_error"
    return {"message": message[:MESSAGE_MOST], "type": kind, "param": param, "code": None}


def answer(status: int, message: str, *, param: str | None = None, retry_after: str | None = None) -> WholeResponse:
    """An error as an answer."""
    body = msgspec.json.encode({"error": error_of(message, status, param)})
    headers = {"content-type": "application/json"}
    if retry_after:
        headers["retry-after"] = retry_after
    return WholeResponse(status, body, headers)
