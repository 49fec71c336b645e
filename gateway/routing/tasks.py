"""Open WebUI's side calls: titles, tags, follow-up questions. They are chats that differ only in how they begin."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.config.snapshot import Client
from gateway.domain.request import InferenceRequest

MARK = "### Task:"

_decode = msgspec.json.Decoder(Any).decode


def task_alias(request: InferenceRequest, client: Client | None) -> str | None:
    """The alias for this client's side calls, if this request is one; else None."""
    if client is None or client.tasks is None or not is_task(request):
        return None
    return client.tasks.alias


def is_task(request: InferenceRequest) -> bool:
    """True for a request without tools whose last user message begins with the mark of a side call. Streams are chats:
    Open WebUI puts the mark before a question to documents too, and side calls do not stream."""
    messages = request.fields.get("messages")
    if request.tools or request.stream or messages is None or MARK.encode() not in bytes(messages):
        return False
    try:
        parsed = _decode(messages)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    for message in reversed(parsed if isinstance(parsed, list) else []):
        if isinstance(message, dict) and message.get("role") == "user":
            return _text(message.get("content")).lstrip().startswith(MARK)
    return False


def _text(content: Any) -> str:
    """A message's content as text: a string, or the first text among its parts."""
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text")
        content = next(texts, None)
    return content if isinstance(content, str) else ""
