"""`gateway check --live`: checks that every backend answers and serves what routes.yaml declares."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from gateway.config.snapshot import Backend, Snapshot
from gateway.domain.drift import server_drift
from gateway.domain.engine_traits import Probe, declared_server, traits_of
from gateway.domain.recognition import front_end_of, owners_of, paths_to_look, recognise
from gateway.engines.base import authorized, reported_window
from gateway.engines.ollama.installed_models import pull, remote_models, runs_elsewhere
from gateway.engines.openai.engine import model_cards
from gateway.engines.registry import ENGINES
from gateway.printable import visible
from gateway.transport.bounded import Oversized, async_client, fetch

WAIT = 3.0  # seconds for each question
ANSWER_MOST = 4 * 1024 * 1024  # bytes of an answer
NAME_SHOWN = 100  # characters of a model's name
NO_ANSWER = (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError)


@dataclass(frozen=True)
class BackendAnswer:
    """One backend's answer, as text. `problems`: its differences from the file, or that there is no answer."""

    name: str
    result: str
    problems: tuple[str, ...] = ()


async def ask_fleet(snapshot: Snapshot) -> list[BackendAnswer]:
    """One answer per backend in the file's order, then `server.shared` when it is set. All are asked in parallel."""
    async with async_client(WAIT) as client:
        answers = await asyncio.gather(*(_ask(client, backend) for backend in snapshot.backends.values()))
    shared = snapshot.server.shared
    return answers + ([await _ping(shared.reveal())] if shared else [])


async def _ask(client: httpx.AsyncClient, backend: Backend) -> BackendAnswer:
    probe = traits_of(backend).probe
    if probe is None:
        return BackendAnswer(backend.name, f"not asked ({backend.engine})")
    try:
        async with asyncio.timeout(2 * WAIT):
            health = None if backend.cloud else await liveness(client, backend, probe)
            if probe.models is None:
                return _only_health(backend, health)
            models = await get(client, backend, _models_path(backend, probe))
            server = await _server_of(client, backend, models) if models.status_code == 200 else None
    except NO_ANSWER as error:
        return _absent(backend, error)
    return _judge(backend, health, models, server)


async def _server_of(client: httpx.AsyncClient, backend: Backend, models: httpx.Response) -> str | None:
    """The kind of server, by the signs it shows; None if it is not recognised. Raises the errors of `get`."""
    answers: dict[str, Any] = {}
    owners = owners_of(_decoded(models))
    server = recognise(owners, models.headers, answers)
    if server is None and backend.generic and not backend.cloud:
        for path in paths_to_look(owners, models.headers):
            answer = await get(client, backend, backend.root_path + path)
            answers[path] = _decoded(answer) if answer.status_code == 200 else None
        server = recognise(owners, models.headers, answers)
    return server


def _decoded(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return None


def _models_path(backend: Backend, probe: Probe) -> str:
    own = probe.models is not None and probe.models.startswith("/")  # a path below its root, as of Ollama's own API
    return f"{backend.root_path}{probe.models}" if own else backend.api_path + "/models"


async def liveness(client: httpx.AsyncClient, backend: Backend, probe: Probe) -> int:
    """The status of the backend's liveness check. Raises the errors of `get`."""
    below_root = probe.liveness is not None and probe.liveness.startswith("/")  # else it is `health.path`, also here
    path = probe.liveness if probe.liveness is not None and below_root else backend.health.path
    return (await get(client, backend, backend.root_path + path)).status_code


async def get(client: httpx.AsyncClient, backend: Backend, path: str) -> httpx.Response:
    """The answer to one question, asked with the backend's own key. Raises `httpx.HTTPError`."""
    parts = urlsplit(backend.url or "")
    headers = dict(authorized([], backend))
    url = f"{parts.scheme}://{parts.netloc}{path}"
    try:
        return await fetch(client, "GET", url, most=ANSWER_MOST, seconds=WAIT, headers=headers)
    except Oversized as error:
        return httpx.Response(error.status, request=httpx.Request("GET", url))


def _absent(backend: Backend, error: Exception) -> BackendAnswer:
    late = isinstance(error, httpx.TimeoutException | TimeoutError)
    reason = f"no answer within {WAIT:.0f} s" if late else "not reachable"
    if backend.parked is not None:
        return BackendAnswer(backend.name, f"{reason}: parked ({backend.parked})")
    if backend.run != "always":
        return BackendAnswer(backend.name, f"{reason}: parked ({backend.run})")
    return BackendAnswer(backend.name, reason, (reason,))


def _only_health(backend: Backend, health: int | None) -> BackendAnswer:
    fine = health is not None and health < 500
    return BackendAnswer(backend.name, f"health {health}", () if fine else (f"{backend.health.path} answers {health}",))


def _judge(backend: Backend, health: int | None, models: httpx.Response, server: str | None) -> BackendAnswer:
    results = [] if health is None else [f"health {health}"]
    problems = [f"{backend.health.path} answers {health}"] if health is not None and health >= 500 else []
    if models.status_code in (401, 403):
        problems.append(f"models answers {models.status_code}: its api_key is missing or wrong")
    elif models.status_code != 200:
        problems.append(f"models answers {models.status_code}")
    else:
        answer = _decoded(models)
        served = _served(answer) or dict(ENGINES[backend.engine].read_models(answer))
        results.append("serves " + (", ".join(visible(name[:NAME_SHOWN]) for name in list(served)[:5]) or "nothing"))
        results += [server] if server not in (None, backend.engine) else []
        front_end = front_end_of(server or declared_server(backend), owners_of(answer), None)
        results += [f"{front_end} front end"] if front_end not in (None, "python") else []
        problems += [*_differences(backend, served, remote_models(answer)), *server_drift(backend, server)]
    return BackendAnswer(backend.name, ", ".join(results) or "answered", tuple(problems))


def _served(answer: Any) -> dict[str, int | None]:
    """Model names with their windows (tokens; None if not reported, or not as vLLM does)."""
    return {card["id"]: reported_window(card.get("max_model_len")) for card in model_cards(answer)}


def _differences(backend: Backend, served: dict[str, int | None], remote: dict[str, str]) -> list[str]:
    if not served:
        return ["its list of models is empty"]
    name = backend.model or next(iter(served))
    if name not in served:
        return [] if backend.cloud else [f"does not serve '{name}'{pull(declared_server(backend), name)}"]
    if name in remote and not backend.cloud:
        return [runs_elsewhere(name, remote[name])]
    window = served[name]
    if traits_of(backend).takes_window and window is not None and (backend.context or 0) <= window:
        return []  # the model could have a larger one, and is loaded with the one in the file
    if window is not None and backend.context is not None and window != backend.context:
        return [f"its window is {window:,} tokens, the file says {backend.context:,}"]
    return []


async def _ping(url: str) -> BackendAnswer:
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    try:
        async with asyncio.timeout(WAIT):
            redis = Redis.from_url(url)
            try:
                await redis.ping()
            finally:
                await redis.aclose()
    except (RedisError, TimeoutError, OSError, ValueError):
        return BackendAnswer("server.shared", "not reachable", ("redis does not answer",))
    return BackendAnswer("server.shared", "answers")
