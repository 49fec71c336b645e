"""The error envelope, and the words that it may not have."""

from __future__ import annotations

import re
from typing import Any

from gateway.errors import CATALOGUE
from tests.scripted import RawReply

# An agent that reads one of these throws its history away; only the overflow may say them.
TRIGGERS = (
    "context",
    "max_tokens",
    "token limit",
    "too many tokens",
    "exceeds the limit",
    "input token",
    "prompt length",
    "prompt is too long",
    "reduce the length",
)
NOT_IN_A_429 = ("overloaded", "at capacity")


def is_error(reply: RawReply, code: str, *, status: int | None = None) -> dict[str, Any]:
    """The reply is the envelope of `code`, whole, with the catalogue's status. Returns the error."""
    assert set(reply.json) == {"error"}
    error: dict[str, Any] = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["type"]) == (code, CATALOGUE[code].type)
    assert reply.status == (status or CATALOGUE[code].status)
    assert (reply.headers["content-type"], reply.ended) == ("application/json", True)
    assert re.fullmatch(r"[\w.-]{1,128}", reply.headers["x-request-id"])
    if code != "context_length_exceeded":
        assert not [word for word in TRIGGERS if word in error["message"].lower()]
    if reply.status == 429:
        assert not [word for word in NOT_IN_A_429 if word in error["message"].lower()]
    assert ("retry-after" in reply.headers) == (reply.status in (401, 402, 403, 429, 503))
    return error
