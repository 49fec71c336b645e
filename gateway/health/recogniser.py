"""Finds out which server is behind `engine: openai`, with at most a few GETs that load no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.domain.backend import BackendState
from gateway.domain.recognition import owners_of, paths_to_look, recognise, value_at
from gateway.engines.base import reported_window
from gateway.health.probe_client import ProbeClient, ProbeFailure, decoded


class Recogniser:
    """Reads the signs of servers. The model list costs nothing and is read each time; other paths are asked for at
    first contact and after the port was closed, never in a cloud, where a request may be billed."""

    def __init__(self, client: ProbeClient) -> None:
        self._client = client
        self._looked: set[tuple[str, str, str | None]] = set()  # identities of backends

    def forget(self, state: BackendState) -> None:
        """Its port was closed: another server may open it next."""
        self._looked.discard(state.backend.identity)
        if state.backend.generic and state.reported.server == "ollama":
            state.saw_server(None)  # its lists are of its own API, which another server would not answer

    async def look(self, state: BackendState, model_list: Any, headers: Mapping[str, str]) -> None:
        """Record which server `state` is. `model_list`: decoded; `headers`: of that answer, in lower case."""
        backend, owners = state.backend, owners_of(model_list)
        server = recognise(owners, headers, {})
        if server is None and backend.generic and not backend.cloud:
            if backend.identity in self._looked:
                return
            self._looked.add(backend.identity)
            server = recognise(owners, headers, await self._answers(state, paths_to_look(owners, headers)))
            state.saw_server(server)
        elif server is not None:
            state.saw_server(server)

    async def read_details(self, state: BackendState) -> None:
        """Record the window and the slots that a server tells beside its model list."""
        details = state.traits.describes
        if details is None or state.model is None:
            return
        answer = (await self._answers(state, [details.path])).get(details.path)
        entries = value_at(answer, "data")
        if isinstance(entries, list):
            answer = next((one for one in entries if value_at(one, "id") == state.model), None)
        window = reported_window(value_at(answer, details.window)) if details.window is not None else None
        if window is not None:
            state.saw_model(state.reported.model, window)
        slots = reported_window(value_at(answer, details.slots)) if details.slots is not None else None
        if slots is not None and state.reported.slots is None:  # else it shows them one by one
            state.saw_slots(slots, None)

    async def _answers(self, state: BackendState, paths: list[str]) -> dict[str, Any]:
        found = {}
        for path in paths:
            response = await self._client.get(state.backend, path)
            if not isinstance(response, ProbeFailure) and response.status == 200:
                found[path] = decoded(response, None)
        return found
