"""What an Ollama has of a backend's model, and the load of it."""

from __future__ import annotations

import logging
import time

from gateway.domain.backend import BackendState
from gateway.domain.upstream import UpstreamFailure
from gateway.engines.ollama.installed_models import (
    INSTALLED,
    LOAD,
    LOADED,
    held_model,
    leaves_alone,
    load_body,
    model_size,
    window_of,
)
from gateway.engines.ollama.loading import begin_load
from gateway.health.probe_client import ProbeClient, ProbeFailure, decoded

log = logging.getLogger("gateway.health")

UNLOADING = 60.0  # seconds that Ollama may take to answer a request to unload a model


class OllamaLoader:
    """Asks an Ollama: the size of a model, whether it is loaded, and to load it. Raises nothing."""

    def __init__(self, client: ProbeClient) -> None:
        self._client = client

    async def size(self, state: BackendState) -> int | None:
        """The size of the backend's model on disk, in bytes; None if not reported."""
        response = await self._client.get(state.backend, INSTALLED)
        if isinstance(response, ProbeFailure) or response.status != 200:
            return None
        return model_size(decoded(response, {}), state.model or "")

    async def look(self, state: BackendState) -> ProbeFailure | None:
        """Read what this server has of the backend's model in memory. Returns why that could not be asked."""
        response = await self._client.get(state.backend, LOADED)
        if isinstance(response, ProbeFailure):
            return response
        if response.status == 200 and state.load is None:  # a model that is being loaded is listed too
            state.saw_held(held_model(decoded(response, {}), state.model, time.time()), time.monotonic())
        return None

    async def has_loaded(self, state: BackendState) -> bool:
        """Does this Ollama hold the backend's model in memory? True also when the request failed because the gateway
        itself lacked files or memory, which shows nothing about the model."""
        failure = await self.look(state)
        return state.held is not None if failure is None else failure.own

    async def is_askable(self, state: BackendState) -> bool:
        """Would a canary find the model of the backend loaded, and leave it so?"""
        if state.traits.probe is None or state.traits.probe.held is None:
            return state.reported.loaded is True  # as of the health check that has just been made
        has_loaded = await self.has_loaded(state)
        return has_loaded and (state.held is None or leaves_alone(state, time.time()))

    async def load(self, state: BackendState, keep_alive: str | int) -> bool:
        """Load the backend's model with the window that requests use, and keep it for `keep_alive` (a duration in
        Ollama's format); 0 = unload it. True = done."""
        if keep_alive:
            try:
                return await begin_load(state, window_of(state), keep_alive, kept=True).wait() is None
            except UpstreamFailure as failure:
                log.info("%s has not loaded its model: %s", state.name, failure)
                return False
        response = await self._client.post(state.backend, LOAD, load_body(state, 0), UNLOADING)
        return not isinstance(response, ProbeFailure) and response.status == 200
