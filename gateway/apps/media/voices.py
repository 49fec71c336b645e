"""The voices of speech servers, as the servers list them. The list is remembered, and read again in the background."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from gateway.config.machines import Backend, Identity
from gateway.config.snapshot import Snapshot
from gateway.health.probe_client import ProbeClient, ProbeFailure, decoded
from gateway.shortage import Kind
from gateway.supervision import Failures, cancel

FRESH = 60.0  # seconds until a server is asked again
WAIT = 1.0  # seconds that a client waits for servers that were not asked yet
VOICES_MOST = 1000  # of one server
NAME_MOST = 200  # characters
PAGE_MOST = 256 * 1024  # bytes of a list
PATH = "audio/voices"  # below the API path


class Voice(NamedTuple):
    id: str
    name: str


class Voices:
    """The voices of all servers. At most one request per server is under way."""

    def __init__(self, failures: Failures, on_short: Callable[[Kind], object]) -> None:
        self._client = ProbeClient(on_short)
        self._failures = failures
        self._known: dict[Identity, tuple[float, list[Voice]]] = {}  # with when they were read, in monotonic seconds
        self._reading: dict[Identity, asyncio.Task[None]] = {}

    async def of(self, backends: Iterable[Backend]) -> list[Voice]:
        """The voices of these servers, each once. Waits `WAIT` seconds at most, for servers never asked before."""
        asked, now = list(backends), time.monotonic()
        new = set()
        for backend in asked:
            at, _ = self._known.get(backend.identity, (-FRESH, []))
            if now - at >= FRESH:
                reading = self._refresh(backend)
                if backend.identity not in self._known:
                    new.add(reading)
        if new:
            await asyncio.wait(new, timeout=WAIT)
        found = {voice.id: voice for one in asked for voice in self._known.get(one.identity, (0.0, []))[1]}
        return list(found.values())

    async def follow(self, snapshot: Snapshot) -> None:
        """Forget the servers that are not in this snapshot."""
        backends = snapshot.backends.values()
        kept = {backend.identity for backend in backends}
        self._known = {identity: found for identity, found in self._known.items() if identity in kept}
        self._client.keep({backend.origin for backend in backends if backend.url})

    async def open(self) -> None: ...

    async def close(self) -> None:
        await cancel(*self._reading.values())
        await self._client.close()

    def _refresh(self, backend: Backend) -> asyncio.Task[None]:
        ask, name = partial(self._ask, backend), f"voices of {backend.name}"
        return self._failures.only(self._reading, backend.identity, "probe", ask, name)

    async def _ask(self, backend: Backend) -> None:
        path = backend.paths.get("voices", PATH)
        response = await self._client.get(backend, str(path), PAGE_MOST)
        _, before = self._known.get(backend.identity, (0.0, []))
        found = before if isinstance(response, ProbeFailure) else []
        if not isinstance(response, ProbeFailure) and response.status == 200:
            found = read_voices(decoded(response, None))
        self._known[backend.identity] = time.monotonic(), found


def read_voices(answer: Any) -> list[Voice]:
    """The voices in an untrusted answer: names or objects, by themselves or under `voices` or `data`."""
    if isinstance(answer, dict):
        answer = answer.get("voices", answer.get("data"))
    found = [_voice(one) for one in answer[:VOICES_MOST]] if isinstance(answer, list) else []
    return [voice for voice in found if voice is not None]


def _voice(one: Any) -> Voice | None:
    fields = one if isinstance(one, dict) else {"id": one}
    names = [fields.get(key) for key in ("id", "voice_id", "filename", "name", "display_name")]
    texts = [text for text in names if isinstance(text, str) and 0 < len(text) <= NAME_MOST]
    if not texts:
        return None
    shown = next((fields[key] for key in ("display_name", "name") if fields.get(key) in texts), texts[0])
    return Voice(texts[0], shown)
