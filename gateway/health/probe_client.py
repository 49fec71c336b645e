"""The client of the health checks. It uses connections of its own, so that a probe never shares a connection or a limit
with a request. It sends the backend's own key. Responses are limited in bytes and seconds, and their content is not
trusted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from gateway.config.snapshot import Backend
from gateway.domain.reason import quoting
from gateway.domain.upstream import (
    ConnectFailure,
    OwnFailure,
    ResetFailure,
    StaleConnection,
    TooLarge,
    UpstreamClient,
    UpstreamFailure,
)
from gateway.engines.base import authorized
from gateway.shortage import Kind, OwnShortage, shortage_of
from gateway.transport.h1 import open_client

PROBE_TIMEOUT = 3.0  # seconds for one probe, from its start to the last byte of the response
PAGE_MOST = 4 * 1024 * 1024  # bytes of a response
ALIVE_MOST = 64 * 1024  # bytes of a response of which only the status is used
VALUES_MOST = 200_000  # values in the JSON of a response: decoding more would block the event loop
AGAIN = 0.1  # seconds until a probe whose connection has broken is sent once more
_ACCEPT = ("accept", "*/*")
_PATH = "/?&=:;,+@%!$'()*~[]"  # what a path may contain beside letters, digits and -._

Origin = tuple[str, str, int]  # scheme, host, port
Headers = list[tuple[str, str]]

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ProbeResponse:
    """The response to a probe. `headers`: names in lower case. `body`: decoded; b"" where it was too large."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ProbeFailure:
    """A probe without a response. `refused` = no connection could be made, so no server is running there. `own` = this
    process lacked files or memory, so the probe shows nothing about the backend. `silent` = nothing came in time."""

    reason: str
    refused: bool = False
    own: bool = False
    silent: bool = False


class ProbeClient:
    """Sends probes to backends and exporters. `on_short` is called with the resource that this process lacks when a
    probe fails for that reason. Its methods raise nothing."""

    def __init__(self, on_short: Callable[[Kind], object] = lambda _: None) -> None:
        self._on_short = on_short
        self._clients: dict[Origin, UpstreamClient] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        self.keep(())
        await asyncio.gather(*self._closing)

    def keep(self, origins: Collection[Origin]) -> None:
        """Close the connections to all other origins."""
        for origin in self._clients.keys() - set(origins):
            task = asyncio.ensure_future(self._clients.pop(origin).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def get(self, backend: Backend, path: str, most: int = PAGE_MOST) -> ProbeResponse | ProbeFailure:
        """The response, or why there is none. A response of more than `most` bytes is returned without its body. A
        probe whose connection breaks is sent once more, because a server may close a connection at any time."""
        return await self._ask(backend.origin, "GET", target_of(backend, path), headers_of(backend), path, most=most)

    async def page(self, url: str) -> bytes | ProbeFailure:
        """The body at `url`, which is no backend's; b"" for an error status or a body that is too large."""
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        answer = await self._ask(origin_of(url), "GET", target, [_ACCEPT], url)
        if isinstance(answer, ProbeFailure):
            return answer
        return answer.body if answer.status == 200 else b""

    async def post(
        self, backend: Backend, path: str, content: Mapping[str, Any], seconds: float
    ) -> ProbeResponse | ProbeFailure:
        """The response to a POST of `content` as JSON, within `seconds`."""
        headers = [*headers_of(backend), ("content-type", "application/json")]
        target, body = target_of(backend, path), _encode(content)
        return await self._ask(backend.origin, "POST", target, headers, path, body, seconds=seconds)

    async def _ask(
        self,
        origin: Origin,
        method: str,
        target: str,
        headers: Headers,
        name: str,
        body: bytes = b"",
        *,
        most: int = PAGE_MOST,
        seconds: float | None = None,
    ) -> ProbeResponse | ProbeFailure:
        """`name` stands in the reasons of a failure."""
        seconds = PROBE_TIMEOUT if seconds is None else seconds
        for sends_again in (True, False):
            try:
                async with asyncio.timeout(seconds):
                    return await self._send(origin, method, target, headers, body, most, fresh=not sends_again)
            except TimeoutError:
                return ProbeFailure(f"no answer to {name} within {seconds:.0f} s", silent=True)
            except (StaleConnection, ResetFailure) as failure:
                # Nothing was done with a request whose connection was closed already.
                if not sends_again or (method != "GET" and not isinstance(failure, StaleConnection)):
                    return ProbeFailure(f"{name}: {failure}")
                await asyncio.sleep(AGAIN)
            except ConnectFailure as failure:
                return ProbeFailure(f"{name}: {failure}", refused=True)
            except OwnFailure as failure:
                return self._short(name, failure.shortage)
            except UpstreamFailure as failure:
                return ProbeFailure(quoting(f"{name}: {failure.kind}", str(failure)))
            except Exception as error:
                if (kind := shortage_of(error)) is None:
                    raise
                return self._short(name, kind)
        raise AssertionError("unreachable: the second time ends in an answer or a failure")

    async def _send(
        self, origin: Origin, method: str, target: str, headers: Headers, body: bytes, most: int, *, fresh: bool
    ) -> ProbeResponse:
        client = self._clients.get(origin)
        if client is None:  # a probe's own time limit is shorter than the one for the connection
            client = self._clients[origin] = open_client(origin, connect_timeout=2 * PROBE_TIMEOUT)
        response = await client.send(method, target, headers, body, fresh=fresh)
        try:
            content = b""
            with suppress(TooLarge):
                content = await response.read_all(most)
            return ProbeResponse(response.status, response.headers, content)
        finally:
            response.release()

    def _short(self, name: str, kind: Kind) -> ProbeFailure:
        self._on_short(kind)
        return ProbeFailure(f"{name}: {OwnShortage(kind)}", own=True)


def headers_of(backend: Backend) -> Headers:
    return authorized([_ACCEPT], backend)


def origin_of(url: str) -> Origin:
    """(scheme, host, port) of a checked URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def target_of(backend: Backend, path: str) -> str:
    """The target of a request: a path of `Probe` with a leading slash (`/health`) is relative to the server's root, any
    other (`models`) to its API."""
    base = backend.root_path if path.startswith("/") else backend.api_path + "/"
    return quote(base + path, safe=_PATH)


def decoded(answer: ProbeResponse, default: Any) -> Any:
    """The decoded body; `default` when it is no JSON, too deep or has more than `VALUES_MOST` values."""
    body = answer.body
    if body.count(b",") + body.count(b"[") + body.count(b"{") > VALUES_MOST:
        return default
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return default
