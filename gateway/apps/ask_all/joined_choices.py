"""One answer out of the answers of several backends (`ask_all`): one choice from each, their usage added up. Pure.

A choice's `x_gateway` row names its backend and model: `x_gateway.choices[i]` belongs to `choices[i]`. The choice of a
backend that failed has `finish_reason: "error"`, and its row has the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.domain.body import value_of
from gateway.domain.endpoints import COMPLETIONS, Endpoint
from gateway.transport.sse import DONE, Framer, data_of

LOST = {
    "message": "The backend's answer ended before it was complete.",
    "type": "server_error",
    "param": None,
    "code": "upstream_error",
}


@dataclass(frozen=True, slots=True)
class Member:
    """One of the backends that are asked. `index`: of its choice."""

    index: int
    backend: str
    model: str

    def row(self, error: Mapping[str, Any] | None = None) -> dict[str, Any]:
        named = {"backend": self.backend, "model": self.model}
        return named if error is None else {**named, "error": error}


@dataclass(frozen=True, slots=True)
class Shared:
    """The fields that all parts of one joined answer have. `created` in seconds since 1970."""

    endpoint: Endpoint
    id: str
    created: int
    model: str

    def chunk(self, choices: Sequence[Any], rows: Sequence[Any] = (), **more: Any) -> bytes:
        """One event of a stream."""
        return b"data: " + msgspec.json.encode(self._body(self.endpoint.chunk_object, choices, rows) | more) + b"\n\n"

    def whole(self, choices: Sequence[Any], rows: Sequence[Any], usage: Mapping[str, Any]) -> bytes:
        name = "text_completion" if self.endpoint is COMPLETIONS else "chat.completion"
        return msgspec.json.encode(self._body(name, choices, rows) | {"usage": usage})

    def failed(self, member: Member, *, stream: bool) -> dict[str, Any]:
        """The choice of a backend without an answer."""
        if self.endpoint is COMPLETIONS:
            stated: dict[str, Any] = {"text": ""}
        else:
            stated = {"delta": {}} if stream else {"message": {"role": "assistant", "content": None}}
        return {"index": member.index, **stated, "logprobs": None, "finish_reason": "error"}

    def _body(self, name: str, choices: Sequence[Any], rows: Sequence[Any]) -> dict[str, Any]:
        body = {"id": self.id, "object": name, "created": self.created, "model": self.model, "choices": choices}
        return {**body, "x_gateway": {"choices": rows}} if rows else body


def error_in(body: bytes) -> dict[str, Any] | None:
    """The error of an answer in OpenAI's envelope; None where there is none."""
    value = _object(body)
    error = value.get("error") if value is not None else None
    return error if isinstance(error, dict) else None


def choice_in(body: bytes, index: int) -> tuple[dict[str, Any], Any] | None:
    """(the first choice, as the one with this index; the usage) of a whole answer; None where it has no choice."""
    value = _object(body)
    choices = value.get("choices") if value is not None else None
    if value is None or not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    return {**choices[0], "index": index}, value.get("usage")


def added(usages: Sequence[Any]) -> dict[str, Any]:
    """The sum of several usages, field by field; what is no number is left out."""
    total: dict[str, Any] = {}
    for usage in usages:
        if isinstance(usage, dict):
            _add(total, usage)
    return total


def _add(total: dict[str, Any], usage: Mapping[str, Any]) -> None:
    for key, value in usage.items():
        if isinstance(value, dict):
            inner = total.setdefault(key, {})
            if isinstance(inner, dict):
                _add(inner, value)
        elif type(value) is int and type(total.get(key, 0)) is int:
            total[key] = total.get(key, 0) + value


@dataclass(slots=True)
class MemberStream:
    """The stream of one backend, as a part of the joined one. `usage`: the last one that it reported; `error`: why it
    broke; `finished`: its choice has its finish_reason."""

    shared: Shared
    member: Member
    usage: Any = None
    error: dict[str, Any] | None = None
    finished: bool = False
    _named: bool = False  # the client knows which backend this choice is from
    _framer: Framer = field(default_factory=Framer)

    def feed(self, data: bytes) -> bytes:
        """The events for the client. Comments, usage and the end are not passed on."""
        return b"".join(map(self._event, self._framer.feed(data)))

    def conclude(self, error: dict[str, Any]) -> bytes:
        """The last event of a stream that broke, or of a backend that never answered."""
        self.error, self.finished = error, True
        return self.shared.chunk([self.shared.failed(self.member, stream=True)], [self.member.row(error)])

    def _event(self, event: bytes) -> bytes:
        data = data_of(event)
        if data is None or data == DONE:
            return b""
        chunk = _object(data)
        if chunk is None:
            return b""
        if isinstance(error := chunk.get("error"), dict):
            self.error = error
            return b""
        self.usage = chunk.get("usage") or self.usage
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return b""
        ends = choices[0].get("finish_reason") is not None
        rows = [self.member.row()] if ends or not self._named else []
        self._named, self.finished = True, self.finished or ends
        return self.shared.chunk([{**choices[0], "index": self.member.index}], rows)


def _object(data: bytes) -> dict[str, Any] | None:
    value = value_of(data)
    return value if isinstance(value, dict) else None
