"""`gateway check --live`: checks that every backend answers and serves what routes.yaml declares."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from gateway.config.snapshot import Backend, Snapshot
from gateway.domain.drift import server_drift
from gateway.domain.engine_traits import Probe, declared_server, traits_of
from gateway.domain.recognition import front_end_of, owners_of, paths_to_look, recognise
from gateway.engines.base import reported_window
from gateway.engines.ollama.installed_models import pull, remote_models, runs_elsewhere
from gateway.engines.openai.engine import model_cards
from gateway.engines.registry import ENGINES
from gateway.health.probe_client import ALIVE_MOST, PROBE_TIMEOUT, ProbeClient, ProbeFailure, ProbeResponse, decoded
from gateway.printable import visible

NAME_SHOWN = 100  # characters of a model's name


@dataclass(frozen=True)
class BackendAnswer:
    """One backend's answer, as text. `problems`: its differences from the file, or that there is no answer."""

    name: str
    result: str
    problems: tuple[str, ...] = ()


async def ask_fleet(snapshot: Snapshot) -> list[BackendAnswer]:
    """One answer per backend in the file's order, then `server.shared` when it is set. All are asked in parallel."""
    client = ProbeClient()
    try:
        answers = await asyncio.gather(*(_ask(client, backend) for backend in snapshot.backends.values()))
    finally:
        await client.close()
    shared = snapshot.server.shared
    return answers + ([await _ping(shared.reveal())] if shared else [])


async def _ask(client: ProbeClient, backend: Backend) -> BackendAnswer:
    probe = traits_of(backend).probe
    if probe is None:
        return BackendAnswer(backend.name, f"not asked ({backend.engine})")
    try:
        async with asyncio.timeout(2 * PROBE_TIMEOUT):
            health = None if backend.cloud else await client.get(backend, liveness_path(backend, probe), ALIVE_MOST)
            if isinstance(health, ProbeFailure):
                return _absent(backend, late=health.silent)
            status = None if health is None else health.status
            if probe.models is None:
                fine = status is not None and status < 500
                problems = () if fine else (f"{backend.health.path} answers {status}",)
                return BackendAnswer(backend.name, f"health {status}", problems)
            models = await client.get(backend, probe.models)
            if isinstance(models, ProbeFailure):
                return _absent(backend, late=models.silent)
            server = await _server_of(client, backend, models) if models.status == 200 else None
    except TimeoutError:
        return _absent(backend, late=True)
    return _judge(backend, status, models, server)


async def _server_of(client: ProbeClient, backend: Backend, models: ProbeResponse) -> str | None:
    """The kind of server, by the signs it shows; None if it is not recognised."""
    answers: dict[str, Any] = {}
    owners = owners_of(decoded(models, None))
    server = recognise(owners, models.headers, answers)
    if server is None and backend.generic and not backend.cloud:
        for path in paths_to_look(owners, models.headers):
            answer = await client.get(backend, path)
            if not isinstance(answer, ProbeFailure):
                answers[path] = decoded(answer, None) if answer.status == 200 else None
        server = recognise(owners, models.headers, answers)
    return server


def liveness_path(backend: Backend, probe: Probe) -> str:
    return probe.liveness if probe.liveness is not None and probe.liveness.startswith("/") else backend.health.path


def _absent(backend: Backend, *, late: bool) -> BackendAnswer:
    reason = f"no answer within {PROBE_TIMEOUT:.0f} s" if late else "not reachable"
    if backend.parked is not None:
        return BackendAnswer(backend.name, f"{reason}: parked ({backend.parked})")
    if backend.run != "always":
        return BackendAnswer(backend.name, f"{reason}: parked ({backend.run})")
    return BackendAnswer(backend.name, reason, (reason,))


def _judge(backend: Backend, health: int | None, models: ProbeResponse, server: str | None) -> BackendAnswer:
    results = [] if health is None else [f"health {health}"]
    problems = [f"{backend.health.path} answers {health}"] if health is not None and health >= 500 else []
    if models.status in (401, 403):
        problems.append(f"models answers {models.status}: its api_key is missing or wrong")
    elif models.status != 200:
        problems.append(f"models answers {models.status}")
    else:
        answer = decoded(models, None)
        windows = {card["id"]: reported_window(card.get("max_model_len")) for card in model_cards(answer)}
        served = windows or dict(ENGINES[backend.engine].read_models(answer))
        results.append("serves " + (", ".join(visible(name[:NAME_SHOWN]) for name in list(served)[:5]) or "nothing"))
        results += [server] if server not in (None, backend.engine) else []
        front_end = front_end_of(server or declared_server(backend), owners_of(answer), None)
        results += [f"{front_end} front end"] if front_end not in (None, "python") else []
        problems += [*_differences(backend, served, remote_models(answer)), *server_drift(backend, server)]
    return BackendAnswer(backend.name, ", ".join(results) or "answered", tuple(problems))


def _differences(backend: Backend, served: dict[str, int | None], remote: dict[str, str]) -> list[str]:
    """`served`: model -> its window in tokens; None if not reported."""
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
        async with asyncio.timeout(PROBE_TIMEOUT):
            redis = Redis.from_url(url)
            try:
                await redis.ping()
            finally:
                await redis.aclose()
    except (RedisError, TimeoutError, OSError, ValueError):
        return BackendAnswer("server.shared", "not reachable", ("redis does not answer",))
    return BackendAnswer("server.shared", "answers")
