"""From what the user named to the ways that are measured: which URL, which backend behind it, and what to say of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlsplit

from gateway.benching.results import GATEWAY
from gateway.benching.ways import Direct, NotThere, Url, Way, window_of
from gateway.config.snapshot import Alias, Snapshot

LOCAL_ONLY = ("x-gateway-local-only", "1")
SETTLE_MOST = 12.0  # seconds; the gateway looks at a backend every `health.every`, 5 s by default
LOOK = 0.2


@dataclass
class Subject:
    """What is measured. `window`: tokens, None = not told; `slots` of the backend behind an alias; `elsewhere`: it is
    not the one that the alias' first step names."""

    title: str
    ways: list[Way]
    window: int | None = None
    notes: list[str] = field(default_factory=list)


class Through(Url):
    """The gateway, asked for an alias. Clouds cost money: unless they are asked for, no request leaves the LAN."""

    def __init__(self, url: str, alias: str, key: str | None, *, cloud: bool) -> None:
        super().__init__(GATEWAY, url, alias, key, () if cloud else (LOCAL_ONLY,))

    async def window(self) -> int | None:
        """Of the alias. Raises NotThere, also when there is no such alias."""
        name = quote(self.model or "", safe="")
        return window_of(await self.get(f"{self.at.api_path}/models/{name}"))

    async def status(self) -> dict[str, Any]:
        """/status; nothing where it is not told."""
        try:
            told = await self.get(self.at.root_path + "/status")
        except NotThere:
            return {}
        return told if isinstance(told, dict) else {}

    async def others(self, backend: str) -> int | None:
        """Sequences under way at a backend, ours left out when we have none; None = not known."""
        told = backend_of(await self.status(), backend)
        counts = [told.get(name) for name in ("inflight", "foreign", "queue")]
        return sum(count for count in counts if isinstance(count, int)) if told else None

    async def settle(self, backend: str | None) -> None:
        """Wait until the gateway has seen that what we sent to the backend ourselves is over: until then it takes
        those slots for somebody else's, and would let our next requests wait."""
        if backend is None:
            return
        until = time.monotonic() + SETTLE_MOST
        while time.monotonic() < until:
            if not backend_of(await self.status(), backend).get("foreign"):
                return
            await asyncio.sleep(LOOK)

    async def told_url(self, backend: str) -> str | None:
        """Where the gateway reaches a backend, for its operators only; None = not told, or not to be reached there
        from here."""
        try:
            found = await self.post(self.at.root_path + "/admin/explain", {"alias": self.model})
        except NotThere:
            return None
        steps = found.get("steps") if isinstance(found, dict) else None
        members = [b for step in steps or [] if isinstance(step, dict) for b in step.get("backends") or []]
        url = next((b.get("url") for b in members if isinstance(b, dict) and b.get("backend") == backend), None)
        return url if isinstance(url, str) and means_the_same_here(url, self.at.url or "") else None


def backend_of(status: dict[str, Any], name: str) -> dict[str, Any]:
    backends = status.get("backends")
    told = backends.get(name) if isinstance(backends, dict) else None
    return told if isinstance(told, dict) else {}


def means_the_same_here(url: str, gateway: str) -> bool:
    """An address as the gateway at `gateway` knows it: 127.0.0.1 is its own machine."""
    return not _is_loopback(url) or _is_loopback(gateway)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


async def at_url(url: str, model: str | None, key: str | None) -> Subject:
    """Any OpenAI-compatible server. Raises NotThere."""
    way = Url("url", url, model, key)
    try:
        cards = await way.models()
        if model is None:
            if not cards:
                raise NotThere(f"{url} lists no model: name one with --model")
            model = way.model = str(cards[0]["id"])
    except NotThere:
        await way.close()
        raise
    card = next((card for card in cards if card["id"] == model), None)
    return Subject(f"{model} at {url}", [way], window_of(card))


async def at_alias(url: str, alias: str, key: str | None, *, cloud: bool) -> tuple[Subject, Through]:
    """An alias of the gateway at `url`; as yet without the direct way. Raises NotThere."""
    way = Through(url, alias, key, cloud=cloud)
    try:
        window = await way.window()
    except NotThere:
        await way.close()
        raise
    return Subject(f"{alias} at {url}", [way], window), way


async def open_direct(snapshot: Snapshot, alias: Alias, name: str, through: Through) -> Direct:
    """The backend that answers for the alias. Raises NotThere."""
    if name not in snapshot.backends:
        raise NotThere(f"the gateway was answered by '{name}', which {snapshot.source} does not know")
    backend = snapshot.backends[name]
    url = await through.told_url(name) or backend.url
    direct = Direct(snapshot, alias, replace(backend, url=url))
    try:
        await direct.look()
    except NotThere:
        await direct.close()
        raise
    return direct
