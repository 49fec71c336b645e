"""What the engine tests share: a backend's state, a call, and a client that answers from a script."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from gateway.config.snapshot import Backend
from gateway.domain.backend import BackendState
from gateway.domain.endpoints import CHAT, Endpoint
from gateway.domain.health_machine import Health
from gateway.domain.upstream import UpstreamClient, UpstreamFailure
from gateway.engines.base import EngineRequest


def state_of(backend: Backend, client: UpstreamClient | None = None, version: str | None = None) -> BackendState:
    now = time.monotonic()
    health = Health(backend.name, backend.health, False, since=now, born=now)
    state = BackendState(backend, client, health)
    state.saw_version(version)
    return state


def call_of(fields: Mapping[str, Any], endpoint: Endpoint = CHAT) -> EngineRequest:
    raw = {name: Raw(msgspec.json.encode(value)) for name, value in fields.items()}
    headers = [("content-type", "application/json"), ("x-request-id", "r1")]
    return EngineRequest(endpoint, fields.get("stream") is True, raw, headers, "r1")


def events_of(body: bytes) -> list[Any]:
    """The data of a stream's events; `[DONE]` as it is."""
    assert body.endswith(b"\n\n") or not body
    datas = [event.removeprefix(b"data: ") for event in body.split(b"\n\n")[:-1]]
    return [data.decode() if data == b"[DONE]" else msgspec.json.decode(data) for data in datas]


class ScriptedResponse:
    """A seam's answer whose body arrives in the given pieces; an exception among them is raised."""

    def __init__(self, status: int, pieces: Sequence[bytes | UpstreamFailure]) -> None:
        self.status = status
        self.headers: Mapping[str, str] = {"content-type": "application/x-ndjson"}
        self.pieces = list(pieces)
        self.aborted: list[object] = []
        self.released = 0

    async def read_some(self) -> bytes:
        piece = self.pieces.pop(0) if self.pieces else b""
        if isinstance(piece, UpstreamFailure):
            raise piece
        return piece

    async def read_all(self, limit: int) -> bytes:
        parts = []
        while part := await self.read_some():
            parts.append(part)
        return b"".join(parts)

    def abort(self, reason: UpstreamFailure | None = None) -> None:
        self.aborted.append(reason)

    def release(self) -> None:
        self.released += 1


class ScriptedClient:
    """Keeps what was sent; gives the scripted answers in their order."""

    connect_timeout = 3.0

    def __init__(self, *answers: ScriptedResponse) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def send(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | memoryview,
        *,
        fresh: bool = False,
    ) -> ScriptedResponse:
        self.sent.append((path, msgspec.json.decode(body)))
        self.headers.append(dict(headers))
        return self.answers.pop(0)

    async def close(self) -> None:
        pass
