"""What the answer itself says to a person behind a chat page (`notice: true` of an alias): a fallback, in one line at
its end, and a wait, as thoughts. A program that reads the answer is told nothing: neither a request with tools or a
form to keep to, nor a side call of Open WebUI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gateway.config.snapshot import Alias
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT
from gateway.domain.request import InferenceRequest
from gateway.routing.needs import is_task
from gateway.routing.resume import asks_for_text, same_model
from gateway.transport.sse import data_of

REASONS = {
    "warming": "is starting",
    "misconfigured": "is misconfigured",
    "parked": "is parked",
    "draining": "is being drained",
    "failed": "failed",
    "budget": "has used up its budget",
    "busy": "is busy",
    "too_long": "is too small for this conversation",
    "incapable": "cannot serve this request",
    "empty": "answered with nothing",
}
# At the end of a JSON string, with the line ends that `Notice` writes before it. Another number of them, or one that
# may be part of an escape, stays: this takes one look at each byte, and breaks no string.
_SAID = re.compile(rb'(?:(?<!\\)\\n\\n)?\*Answered by [^"*\\]{1,300}\.\*(?=")')
_EVENTS = re.compile(rb".*?(?:\n\n|\r\n\r\n|\r\r|$)", re.DOTALL)
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def may_notice(alias: Alias, request: InferenceRequest) -> bool:
    """Is there a person who reads the answer as it is?"""
    if not alias.notice or request.endpoint is not CHAT or request.choices > 1 or request.continues:
        return False
    return asks_for_text(request.fields) and not is_task(request)


def notice_of(
    alias: Alias,
    request: InferenceRequest,
    state: BackendState,
    states: Mapping[str, BackendState],
    detour: tuple[str, str],
) -> Notice | None:
    """The line for an answer of this backend; None where it is no other model's than the first step's, and no
    cloud's. `detour`: why a later step serves."""
    if not may_notice(alias, request):
        return None
    kind, reason = detour
    first = [states[name] for name in alias.steps[0] if name in states]
    cloud = state.backend.cloud
    if not cloud and (kind != "fallback" or any(same_model(state, one) for one in first)):
        return None
    names = " and ".join(one.name for one in first) or alias.name
    where = " (in the cloud)" if cloud else ""
    return Notice(f"*Answered by {state.name}{where}: {names} {REASONS.get(reason, 'is down')}.*")


def load_words(state: BackendState, now: float) -> str:
    """How far the load of its model is, for a person; "" where none is under way."""
    if state.load is None:
        return ""
    about = "" if state.load_seconds is None else f" of about {state.load_seconds:.0f}"
    return f"{state.name} loads its model, {now - state.load.since:.0f} s{about}"


def drop_notices(request: InferenceRequest) -> None:
    """Take the lines out of the history that the page sends back: the model did not write them, and would repeat
    them."""
    messages = request.fields.get("messages")
    if messages is not None and b"*Answered by " in (text := bytes(messages)):
        request.fields["messages"] = Raw(_SAID.sub(b"", text))


class Notice:
    """One line for the end of one answer, said once."""

    __slots__ = ("_line", "_said")

    def __init__(self, line: str) -> None:
        self._line = line
        self._said = False

    def put_into(self, events: bytes) -> bytes:
        """Whole events of a stream, with the line before the one that ends the answer, if that is among them."""
        if self._said or b'"finish_reason"' not in events:
            return events
        out = []
        for event in _EVENTS.findall(events):
            out += [event] if self._said else self._before(event)
        return b"".join(out)

    def _before(self, event: bytes) -> list[bytes]:
        data = data_of(event)
        try:
            chunk = _decode(data) if data else {}
            (choice,) = chunk["choices"]
            if choice["finish_reason"] is None:
                return [event]
            delta = choice.get("delta") or {}
            text = delta.get("content") or ""
        except (
            msgspec.DecodeError,
            UnicodeDecodeError,
            RecursionError,
            KeyError,
            ValueError,
            TypeError,
            AttributeError,
        ):
            return [event]  # no chunk of one choice, or none that ends
        self._said = True
        said = {**choice, "delta": {**delta, "content": f"{text}\n\n{self._line}"}, "finish_reason": None}
        last = (
            event if not delta.get("content") else b"data: " + _encode({**chunk, "choices": [{**choice, "delta": {}}]})
        )
        ending = b"" if last is event else b"\n\n"
        return [b"data: " + _encode({**chunk, "usage": None, "choices": [said]}) + b"\n\n", last + ending]

    def end(self, body: bytes) -> bytes:
        """A whole answer with the line at its end."""
        try:
            answer = msgspec.json.decode(body)
            message = answer["choices"][0]["message"]
            message["content"] = f"{message.get('content') or ''}\n\n{self._line}".lstrip()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError):
            return body
        return _encode(answer)
