"""Errors in Anthropic's envelope, with the messages that its clients act on."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.errors import CATALOGUE
from gateway.inspection.shape import brief

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
# Claude Code compacts its history on exactly this form, and reads both numbers.
_OVERFLOW = re.compile(r"maximum context length is (\d+) tokens\D+?(\d+) input tokens")
_TOO_LONG = "prompt is too long: {tokens} tokens > {window} maximum"
_TOO_LONG_TOGETHER = "prompt is too long: {tokens} tokens and the room for an answer exceed the maximum of {window}"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Any).decode


def retry_header(status: int) -> dict[bytes, bytes]:
    """`x-should-retry: false` for errors that a retry cannot solve; without it Claude Code repeats even a 401 for
    minutes."""
    return {b"x-should-retry": b"false"} if 400 <= status < 500 and status != 429 else {}


def envelope(status: int | None, body: bytes, request_id: str) -> bytes:
    """OpenAI's envelope as Anthropic's. The gateway's `code` (docs/errors.md) is kept. Inside a stream there is no
    `status`: the code decides the type."""
    error = _error_of(body)
    text, code = error.get("message"), error.get("code")
    message = text if isinstance(text, str) else brief(text)
    if status is None:
        status = CATALOGUE[code].status if isinstance(code, str) and code in CATALOGUE else 500
    if overflow := _OVERFLOW.search(message):
        window, tokens = int(overflow[1]), int(overflow[2])
        message = (_TOO_LONG if tokens > window else _TOO_LONG_TOGETHER).format(window=window, tokens=tokens)
    elif "maximum context length is not known" in message:
        message = "prompt is too long"
    fields = {"type": _TYPES.get(status, "api_error"), "message": message, "code": code}
    return _encode({"type": "error", "error": fields, "request_id": request_id})


def _error_of(body: bytes) -> dict[str, Any]:
    """The error object in OpenAI's envelope; anything else becomes its message."""
    found = _decode(body)
    error = found.get("error") if isinstance(found, dict) else found
    return error if isinstance(error, dict) else {"message": error}
