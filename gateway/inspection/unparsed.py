"""What a server's parser could not read, and the server tells in the words of an error: llama-server answers 500 with
the rest of what its model wrote."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.inspection.finder import CallFinder
from gateway.inspection.policy import InspectionPolicy
from gateway.inspection.segments import Call
from gateway.inspection.shape import error_in

_UNPARSED = re.compile(r"Failed to parse input at pos \d{1,9}: (.+)", re.DOTALL)
_MARK = b"Failed to parse input at pos"

_encode = msgspec.json.Encoder().encode


def calls_told(body: bytes, policy: InspectionPolicy | None) -> str | None:
    """The calls of offered tools in this error, as they are written; None: it is another error, or has none. The text
    around them is left out: the parser has stumbled over it."""
    if policy is None or policy.tools is None or _MARK not in body:
        return None
    error: Any = error_in(body)
    message = error.get("message") if isinstance(error, dict) else error
    found = _UNPARSED.match(message) if isinstance(message, str) else None
    if found is None:
        return None
    finder = CallFinder(policy.formats, policy.tools)
    segments = [*finder.feed(found[1]), *finder.finish()]
    return "".join(segment.raw for segment in segments if isinstance(segment, Call)) or None


def as_answer(text: str) -> bytes:
    """A whole chat that says this."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": ""}
    return _encode({**head, "choices": [choice]})
