"""Looks at every backend every `health.every`: does it answer, what does it serve, how large is its window?

All probes carry the backend's own credential. They run on the control plane's client (httpx), so that a probe never
shares a connection or a limit with a request.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from gateway.config.snapshot import Backend
from gateway.fleet import BackendState, Fleet
from gateway.health.state import State
from gateway.upstream.engines import ENGINES
from gateway.upstream.engines.base import Probe

log = logging.getLogger("gateway.health")

PROBE_TIMEOUT = 3.0  # seconds for one probe
FIRST_LOOK = 0.3  # seconds that the start waits for the first probes
_STARTED = re.compile(rb"^process_start_time_seconds(?:\{[^}]*\})? (\S+)", re.MULTILINE)
REREAD = 12  # every so many good probes the model list and the version are read again


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A probe that was not answered. `refused` = no connection, so whatever ran there is gone."""

    reason: str
    refused: bool = False


class Prober:
    """One task per backend that is probed."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._client: httpx.AsyncClient | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """Ready for `check`; begins nothing."""
        self._client = httpx.AsyncClient(timeout=PROBE_TIMEOUT, trust_env=False, follow_redirects=False)

    async def start(self) -> None:
        """Begin probing, and give the backends a moment to be known before the first request is."""
        self.open()
        first: list[asyncio.Task[bool]] = []
        for state in self._fleet.states.values():
            if probe_of(state.backend) is not None:
                looked = asyncio.Event()
                self._tasks.append(asyncio.create_task(self._watch(state, looked), name=f"probe {state.name}"))
                first.append(asyncio.create_task(looked.wait()))
        if first:
            _, late = await asyncio.wait(first, timeout=FIRST_LOOK)
            for waiter in late:
                waiter.cancel()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._client is not None:
            await self._client.aclose()

    async def _watch(self, state: BackendState, looked: asyncio.Event) -> None:
        checks = 0
        while True:
            every = state.backend.health.every
            if every is None:
                return
            try:
                await self.check(state, read_models=checks % REREAD == 0)
            except Exception:
                log.exception("the probe of %s failed inside the gateway", state.name)
            looked.set()
            checks = checks + 1 if state.health.state is State.READY else 0
            await asyncio.sleep(every * random.uniform(0.9, 1.1))

    async def check(self, state: BackendState, *, read_models: bool) -> None:
        """One liveness check, and on the way back to ready, or now and then, what it serves."""
        probe = probe_of(state.backend)
        assert probe is not None
        answer = await self._get(state.backend, probe.liveness or state.backend.health.path)
        if isinstance(answer, NoAnswer):
            state.dead(answer.reason, refused=answer.refused)
            return
        if answer.status_code in (401, 403):
            state.misconfigured(f"refuses our credential ({answer.status_code}); check its api_key")
            return
        if answer.status_code != 200:
            state.dead(f"{answer.request.url.path} answers {answer.status_code}")
            return
        if (read_models or state.health.state is not State.READY) and not await self._read(state, probe):
            return
        state.alive()

    async def _read(self, state: BackendState, probe: Probe) -> bool:
        """Model name, window, version and when it was started; False when the backend turns out misconfigured."""
        backend = state.backend
        if probe.version is not None:
            answer = await self._get(backend, probe.version)
            if not isinstance(answer, NoAnswer) and answer.status_code == 200:
                state.saw_version(str(decoded(answer, {}).get("version")))
        if backend.engine == "vllm":
            answer = await self._get(backend, "/metrics")
            if not isinstance(answer, NoAnswer) and answer.status_code == 200:
                state.saw_start(start_time(answer.content))
        answer = await self._get(backend, probe.models)
        if isinstance(answer, NoAnswer):
            state.dead(answer.reason, refused=answer.refused)
            return False
        if answer.status_code in (401, 403):
            state.misconfigured(f"refuses our credential ({answer.status_code}); check its api_key")
            return False
        if answer.status_code == 200:
            return self._took_models(state, decoded(answer, {}))
        return True

    def _took_models(self, state: BackendState, answer: Any) -> bool:
        backend = state.backend
        try:
            models = ENGINES[backend.engine].read_models(answer)
        except (AttributeError, KeyError, TypeError):
            return True  # not a list of models: nothing learned, nothing lost
        if not models:
            return True
        if backend.model is not None and backend.model not in models:
            names = ", ".join(list(models)[:5])
            state.misconfigured(f"does not serve model '{backend.model}'; it serves: {names}")
            return False
        name = backend.model or next(iter(models))
        state.observed_model = name
        state.observed_context = models[name] or state.observed_context
        state.configured()
        return True

    async def _get(self, backend: Backend, path: str) -> httpx.Response | NoAnswer:
        """The answer, or why there is none. One connection failure is tried again: a probe that races a
        keep-alive timer says nothing about health."""
        assert self._client is not None
        headers = {}
        if backend.api_key is not None:
            headers["authorization"] = "Bearer " + backend.api_key.reveal()
        url = probe_url(backend, path)
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type((httpx.RemoteProtocolError, httpx.ReadError)),
                stop=stop_after_attempt(2),
                wait=wait_fixed(0.1),
                reraise=True,
            ):
                with attempt:
                    return await self._client.get(url, headers=headers)
        except httpx.TimeoutException:
            return NoAnswer(f"no answer to {path} within {PROBE_TIMEOUT:.0f} s")
        except httpx.HTTPError as error:
            refused = isinstance(error, httpx.ConnectError)
            return NoAnswer(f"{path}: {error or type(error).__name__}", refused=refused)
        raise AssertionError("unreachable: the retries end in an answer or an error")


def probe_of(backend: Backend) -> Probe | None:
    """How this backend is probed; None = not at all (clouds unless `health.every` is set on them, audio)."""
    if backend.url is None or backend.health.every is None:
        return None
    return ENGINES[backend.engine].probe if backend.engine in ENGINES else None


def probe_url(backend: Backend, path: str) -> str:
    """`/health` is below the server's root, `models` below its API."""
    scheme, host, port = backend.origin
    base = backend.root_path if path.startswith("/") else backend.api_path + "/"
    authority = f"[{host}]" if ":" in host else host
    return f"{scheme}://{authority}:{port}{base}{path}"


def start_time(metrics: bytes) -> float | None:
    """When the process that wrote this /metrics page was started, in Unix seconds; None = it does not say."""
    found = _STARTED.search(metrics)
    try:
        return float(found[1]) if found is not None else None
    except ValueError:
        return None


def decoded(answer: httpx.Response, otherwise: Any) -> Any:
    try:
        return msgspec.json.decode(answer.content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return otherwise
