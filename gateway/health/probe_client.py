"""The HTTP client of the health checks. It is separate from the client for requests (and uses httpx), so that a probe
never shares a connection or a limit with a request. It sends the backend's own key. Responses are limited in bytes and
seconds, and their content is not trusted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from gateway.config.snapshot import Backend
from gateway.domain.reason import quoting
from gateway.engines.base import authorized
from gateway.shortage import Kind, OwnShortage, shortage_of
from gateway.transport.bounded import Oversized, async_client, fetch

PROBE_TIMEOUT = 3.0  # seconds for one probe, from its start to the last byte of the response
PAGE_MOST = 4 * 1024 * 1024  # bytes of a response
ALIVE_MOST = 64 * 1024  # bytes of a response of which only the status is used
VALUES_MOST = 200_000  # values in the JSON of a response: decoding more would block the event loop


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A probe without a response. `refused` = no connection could be made, so no server is running there. `own` = this
    process lacked files or memory, so the probe shows nothing about the backend."""

    reason: str
    refused: bool = False
    own: bool = False


class ProbeClient:
    """Sends probes to backends and exporters. `on_short` is called with the resource that this process lacks when a
    probe fails for that reason."""

    def __init__(self, on_short: Callable[[Kind], object] = lambda _: None) -> None:
        self._on_short = on_short
        self._client: httpx.AsyncClient | None = None
        self._under_way: set[asyncio.Task[httpx.Response]] = set()

    def open(self) -> None:
        self._client = async_client(PROBE_TIMEOUT)

    async def close(self) -> None:
        for task in list(self._under_way):
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def _finish_request(self, request: Coroutine[None, None, httpx.Response]) -> httpx.Response:
        """The response to `request`, which runs to its end even when the caller is cancelled (as when an edit of
        routes.yaml removes a backend): httpx 0.28 never releases the pool slot of a cancelled request, and once no slot
        is left every probe times out. Raises httpx's errors, `OwnShortage`."""
        task = asyncio.ensure_future(request)
        self._under_way.add(task)
        task.add_done_callback(self._note_finished)
        try:
            return await asyncio.shield(task)
        except Exception as error:
            url = error.request.url if isinstance(error, httpx.RequestError) else None
            kind = shortage_of(error, address=(url.host, url.port or 80) if url is not None else None)
            if kind is None:
                raise
            self._on_short(kind)
            raise OwnShortage(kind) from error

    def _note_finished(self, task: asyncio.Task[httpx.Response]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: asyncio would log it when the caller was cancelled

    async def get(self, backend: Backend, path: str, most: int = PAGE_MOST) -> httpx.Response | NoAnswer:
        """The response, or why there is none. A response of more than `most` bytes is returned without its body. A
        probe whose connection breaks is sent once more, because a server may close an idle connection at any time.
        Raises nothing."""
        assert self._client is not None
        headers, url = headers_of(backend), probe_url(backend, path)
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type((httpx.RemoteProtocolError, httpx.ReadError)),
                stop=stop_after_attempt(2),
                wait=wait_fixed(0.1),
                reraise=True,
            ):
                with attempt:
                    return await self._finish_request(self._fetch("GET", url, most, headers=headers))
        except Oversized as error:
            return httpx.Response(error.status, request=httpx.Request("GET", url))
        except OwnShortage as error:
            return NoAnswer(f"{path}: {error}", own=True)
        except httpx.TimeoutException:
            return NoAnswer(f"no answer to {path} within {PROBE_TIMEOUT:.0f} s")
        except httpx.HTTPError as error:
            refused = isinstance(error, httpx.ConnectError)
            name, text = type(error).__name__, str(error)
            reason = f"{path}: {text}" if refused and text else quoting(f"{path}: {name}", text)
            return NoAnswer(reason, refused=refused)
        raise AssertionError("unreachable: the retries end in a response or an error")

    async def _fetch(
        self, method: str, url: str, most: int = PAGE_MOST, seconds: float = PROBE_TIMEOUT, **options: Any
    ) -> httpx.Response:
        assert self._client is not None
        return await fetch(self._client, method, url, most=most, seconds=seconds, **options)

    async def page(self, url: str) -> bytes | NoAnswer:
        """The body at `url`, which does not belong to a backend; b"" for an error status or a body that is too large.
        Raises nothing."""
        try:
            response = await self._finish_request(self._fetch("GET", url))
        except Oversized:
            return b""
        except OwnShortage as error:
            return NoAnswer(str(error), own=True)
        except httpx.HTTPError as error:
            refused = isinstance(error, httpx.ConnectError)
            return NoAnswer(f"{error or type(error).__name__}", refused=refused)
        return response.content if response.status_code == 200 else b""

    async def post(self, backend: Backend, path: str, body: Mapping[str, Any], seconds: float) -> httpx.Response:
        """The response to a POST of `body` as JSON, within `seconds`. Raises httpx's errors, `OwnShortage`."""
        url, headers = probe_url(backend, path), headers_of(backend)
        return await self._finish_request(
            self._fetch("POST", url, seconds=seconds, json=body, headers=headers, timeout=seconds)
        )


def headers_of(backend: Backend) -> dict[str, str]:
    return dict(authorized([], backend))


def probe_url(backend: Backend, path: str) -> str:
    """The URL of a path of `Probe`: a path with a leading slash (`/health`) is relative to the server's root, any other
    (`models`) to its API."""
    scheme, host, port = backend.origin
    base = backend.root_path if path.startswith("/") else backend.api_path + "/"
    authority = f"[{host}]" if ":" in host else host
    return f"{scheme}://{authority}:{port}{base}{path}"


def decoded(response: httpx.Response, default: Any) -> Any:
    """The response's body decoded from JSON; `default` when it is not JSON, is nested too deeply or has more than
    `VALUES_MOST` values."""
    body = response.content
    if body.count(b",") + body.count(b"[") + body.count(b"{") > VALUES_MOST:
        return default
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return default
