"""The clients of the engines by name, and how a call is sent with them. Adding an engine: its package beside this
module and a line here, or an app whose `engine.py` has an `ENGINE`; a row of traits (gateway/domain/servers.toml); and
its name in `Engine` (gateway/config/machines.py), from which the schema takes the values of `engine`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

from gateway.domain.backend import BackendState
from gateway.domain.body import unreadable
from gateway.domain.upstream import OwnFailure, Response, UpstreamFailure
from gateway.engines.base import Engine, EngineRequest
from gateway.engines.http import HttpEngine
from gateway.engines.ollama.engine import OllamaEngine
from gateway.engines.openai.engine import OpenAIEngine
from gateway.shortage import Kind


def _of_apps() -> Iterator[Engine]:
    """The engines that apps bring, found by their folder: any of these may be deleted."""
    for path in sorted((Path(__file__).parents[1] / "apps").glob("*/engine.py")):
        yield import_module(f"gateway.apps.{path.parent.name}.engine").ENGINE


ENGINES: Mapping[str, Engine] = {
    "vllm": OpenAIEngine("vllm"),
    "openai": OpenAIEngine("openai"),
    "llamacpp": OpenAIEngine("llamacpp"),
    "mlx": OpenAIEngine("mlx"),
    "ollama": OllamaEngine(),
    "http": HttpEngine(),
    **{engine.name: engine for engine in _of_apps()},
}

# Seconds until a request is sent to the same backend again when the gateway itself lacked a resource.
PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)


def engine_of(state: BackendState) -> Engine:
    """The client for this backend. What proves to be an Ollama is asked by its own API: its `/v1` cuts prompts."""
    name = "ollama" if state.server == "ollama" else state.backend.engine
    found = ENGINES.get(name)
    if found is None:
        raise UpstreamFailure(f"this gateway has no folder in gateway/apps for engine {name}")
    return found


async def send(state: BackendState, call: EngineRequest, on_short: Callable[[Kind], object]) -> Response:
    """Send a call with the client of the backend's engine. What the gateway itself lacks for it is reported to
    `on_short`, and waited for as long as nothing was sent. Raises as `Engine.send`, and `invalid_request_body`."""
    engine = engine_of(state)
    pauses = iter(PAUSES)
    while True:
        try:
            return await engine.send(state, call)
        except RecursionError as error:
            raise unreadable(error) from None
        except OwnFailure as failure:
            on_short(failure.shortage)
            pause = next(pauses, None)
            if pause is None or not failure.unsent:
                raise
            await asyncio.sleep(pause)
