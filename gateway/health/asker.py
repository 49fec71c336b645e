"""How the control plane asks backends: on a client of its own (httpx), so that a probe never shares a connection or a
limit with a request, and with the backend's own key. An answer has a bound of bytes and of seconds, and what is in it
may be anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from gateway.config.snapshot import Backend
from gateway.domain.backend import BackendState
from gateway.domain.reason import quoting
from gateway.engines.base import told_name
from gateway.engines.ollama.engine import window_of
from gateway.shortage import Kind, OwnShortage, shortage_of
from gateway.transport.bounded import Oversized, async_client, fetch

log = logging.getLogger("gateway.health")

PROBE_TIMEOUT = 3.0  # seconds for one probe, from its start to the last byte of the answer
PAGE_MOST = 4 * 1024 * 1024  # bytes of an answer
ALIVE_MOST = 64 * 1024  # bytes of one of which only the status counts
VALUES_MOST = 200_000  # values in an answer's JSON: more would hold up the event loop while they are read
BYTES_MOST = 10**15  # of a model: beyond this it is no size
LOADING = 300.0  # seconds that an Ollama may take to load a model


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A probe that was not answered. `refused` = no connection, so whatever ran there is gone."""

    reason: str
    refused: bool = False
    own: bool = False  # this process lacked something, so that nothing was found out


class Asker:
    """Raises nothing: what goes wrong is in the answer."""

    def __init__(self, on_short: Callable[[Kind], object] = lambda _: None) -> None:
        self._on_short = on_short  # told when this process lacks something
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

    async def _answer(self, request: Coroutine[None, None, httpx.Response]) -> httpx.Response:
        """It goes on to its end when whoever asks is cancelled (an edit of routes.yaml takes a backend out): httpx 0.28
        never gives back the place that a cancelled request has in its pool, and without places every probe times out.
        Raises httpx's errors, `OwnShortage`."""
        task = asyncio.ensure_future(request)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except Exception as error:
            url = error.request.url if isinstance(error, httpx.RequestError) else None
            kind = shortage_of(error, address=(url.host, url.port or 80) if url is not None else None)
            if kind is None:
                raise
            self._on_short(kind)
            raise OwnShortage(kind) from error

    def _ended(self, task: asyncio.Task[httpx.Response]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever still waits; nobody else has to hear of it

    async def get(self, backend: Backend, path: str, most: int = PAGE_MOST) -> httpx.Response | NoAnswer:
        """The answer, or why there is none; of one that is larger than `most` bytes its status, without a body. One
        connection failure is tried again: a probe that races a keep-alive timer says nothing about health."""
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
                    return await self._answer(self._fetch("GET", url, most, headers=headers))
        except Oversized as error:
            return httpx.Response(error.status, request=httpx.Request("GET", url))
        except OwnShortage as error:
            return NoAnswer(f"{path}: {error}", own=True)
        except httpx.TimeoutException:
            return NoAnswer(f"no answer to {path} within {PROBE_TIMEOUT:.0f} s")
        except httpx.HTTPError as error:
            refused = isinstance(error, httpx.ConnectError)
            name, text = type(error).__name__, str(error)
            told = f"{path}: {text}" if refused and text else quoting(f"{path}: {name}", text)
            return NoAnswer(told, refused=refused)
        raise AssertionError("unreachable: the retries end in an answer or an error")

    async def _fetch(
        self, method: str, url: str, most: int = PAGE_MOST, seconds: float = PROBE_TIMEOUT, **options: Any
    ) -> httpx.Response:
        assert self._client is not None
        return await fetch(self._client, method, url, most=most, seconds=seconds, **options)

    async def page(self, url: str) -> bytes | NoAnswer:
        """What is at `url`, which is no backend's; nothing (b"") of an answer that is an error, or too large."""
        try:
            answer = await self._answer(self._fetch("GET", url))
        except Oversized:
            return b""
        except OwnShortage as error:
            return NoAnswer(str(error), own=True)
        except httpx.HTTPError as error:
            refused = isinstance(error, httpx.ConnectError)
            return NoAnswer(f"{error or type(error).__name__}", refused=refused)
        return answer.content if answer.status_code == 200 else b""

    # -- Ollama ---------------------------------------------------------------------------------------------------

    async def has_loaded(self, state: BackendState) -> bool:
        """Does this Ollama hold the backend's model in memory? Where that could not be asked for want of something of
        ours: yes, so that nothing is made of it."""
        answer = await self.get(state.backend, "/api/ps")
        if isinstance(answer, NoAnswer) and answer.own:
            return True
        if isinstance(answer, NoAnswer) or answer.status_code != 200:
            return False
        return (state.model or "") in loaded_models(decoded(answer, {}))

    async def size(self, state: BackendState) -> int | None:
        """Bytes of the backend's model as this Ollama keeps it on disk; None = it does not say."""
        answer = await self.get(state.backend, "/api/tags")
        if isinstance(answer, NoAnswer) or answer.status_code != 200:
            return None
        return model_size(decoded(answer, {}), state.model or "")

    async def load(self, state: BackendState, keep_alive: str | int) -> bool:
        """Have an Ollama load the backend's model, with the window that requests ask for; `keep_alive` 0 = unload."""
        body: dict[str, Any] = {"model": state.model, "keep_alive": keep_alive, "stream": False}
        if keep_alive and (window := window_of(state)) is not None:
            body["options"] = {"num_ctx": window}
        try:
            url = probe_url(state.backend, "/api/generate")
            headers = headers_of(state.backend)
            ask = self._fetch("POST", url, seconds=LOADING, json=body, headers=headers, timeout=LOADING)
            answer = await self._answer(ask)
        except (httpx.HTTPError, OwnShortage) as error:
            log.info("%s was not asked to load its model: %s", state.name, error or type(error).__name__)
            return False
        return answer.status_code == 200


def headers_of(backend: Backend) -> dict[str, str]:
    return {} if backend.api_key is None else {"authorization": "Bearer " + backend.api_key.reveal()}


def loaded_models(answer: Any) -> set[str]:
    """The names in Ollama's `/api/ps`; what is tagged `latest` also without its tag."""
    names = {name for model in models_of(answer) if (name := told_name(model.get("name"))) is not None}
    return names | {name.removesuffix(":latest") for name in names}


def model_size(answer: Any, name: str) -> int | None:
    """Bytes of the model `name` in Ollama's `/api/tags`."""
    sizes = {told_name(model.get("name")): model.get("size") for model in models_of(answer)}
    size = sizes.get(name, sizes.get(f"{name}:latest"))
    return size if type(size) is int and 0 < size <= BYTES_MOST else None


def models_of(answer: Any) -> list[dict[str, Any]]:
    """The entries of Ollama's lists, without what is none."""
    models = answer.get("models") if isinstance(answer, dict) else None
    return [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []


def probe_url(backend: Backend, path: str) -> str:
    """`/health` is below the server's root, `models` below its API."""
    scheme, host, port = backend.origin
    base = backend.root_path if path.startswith("/") else backend.api_path + "/"
    authority = f"[{host}]" if ":" in host else host
    return f"{scheme}://{authority}:{port}{base}{path}"


def decoded(answer: httpx.Response, otherwise: Any) -> Any:
    """What the answer's JSON says; `otherwise` when it is none, is nested too deeply or has too many values."""
    body = answer.content
    if body.count(b",") + body.count(b"[") + body.count(b"{") > VALUES_MOST:
        return otherwise
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return otherwise
