"""Reads what a server tells of itself: its models, its version, its flags, and which server it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.config.backends import names_cloud_model
from gateway.config.machines import Identity
from gateway.domain.backend import BackendState
from gateway.domain.engine_traits import Probe
from gateway.domain.reason import quoting
from gateway.domain.recognition import front_end_of, owners_of, paths_to_look, recognise, value_at
from gateway.engines.base import reported_window
from gateway.engines.ollama.installed_models import pull, remote_models, runs_elsewhere
from gateway.engines.openai.engine import loaded_models
from gateway.engines.registry import engine_of
from gateway.engines.vllm import read_flags, read_start_time
from gateway.health.probe_client import ProbeClient, ProbeFailure, decoded
from gateway.printable import visible
from gateway.transport.prometheus_text import in_turns

NAME_SHOWN = 100  # characters of a model name in a reason
VERSION_MOST = 100  # characters of a version that are kept


class Recogniser:
    """Reads the descriptions and the signs of servers, with GETs that load no model. The model list costs nothing and
    is read each time; other paths are asked for at first contact and after the port was closed, never in a cloud, where
    a request may be billed."""

    def __init__(self, client: ProbeClient) -> None:
        self._client = client
        self._looked: set[Identity] = set()

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

    async def _read_details(self, state: BackendState) -> None:
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

    async def read(self, state: BackendState, probe: Probe) -> bool:
        """Read the model names, the window, the version, the start time and the flags. False = the backend is
        misconfigured or did not answer."""
        backend, told = state.backend, None
        if probe.version is not None:
            response = await self._client.get(backend, probe.version)
            if not isinstance(response, ProbeFailure) and response.status == 200:
                told = decoded(response, {})
                version = reported_version(told)
                if version is not None:
                    state.saw_version(version)
        if probe.metrics is not None:
            response = await self._client.get(backend, probe.metrics)
            if not isinstance(response, ProbeFailure) and response.status == 200:
                state.saw_start(await in_turns(read_start_time(response.body)))
                state.saw_flags(await in_turns(read_flags(response.body)))
        if probe.models is None:
            return True
        response = await self._client.get(backend, probe.models)
        if isinstance(response, ProbeFailure):
            if not response.own:
                state.evidence.dead(response.reason, refused=response.refused)
            return False
        if response.status in (401, 403):
            state.evidence.misconfigured(f"refuses our credential ({response.status}); check its api_key")
            return False
        if response.status == 200:
            model_list = decoded(response, {})
            await self.look(state, model_list, response.headers)
            if (recognised := state.traits.probe) is not None and recognised.models != probe.models:
                return await self.read(state, recognised)
            state.saw_front_end(front_end_of(state.server, owners_of(model_list), told))
            is_right = self._record_models(state, model_list)
            if state.siblings and (listed := engine_of(state).read_models(model_list)):
                for adapter in state.siblings:
                    adapter.saw_listed(listed)
            if not is_right:
                return False
            await self._read_details(state)
        return True

    def _record_models(self, state: BackendState, model_list: Any) -> bool:
        """Record the decoded model list. False = the backend does not serve its model."""
        backend = state.backend
        models = engine_of(state).read_models(model_list)
        if not models:
            return True  # not a model list: keep what is known
        traits = state.traits
        if traits.lists_cache and backend.model in (None, traits.default_model) and traits.model_optional:
            state.saw_model(traits.default_model, state.reported.context)  # a listed one would be loaded
            state.evidence.configured()
            return True
        remote = {} if backend.cloud else remote_models(model_list)
        if backend.model is None and not backend.cloud:
            remote |= {name: "ollama.com" for name in models if names_cloud_model(name)}
        local = [name for name in models if name not in remote]
        unlisted = backend.cloud and names_cloud_model(backend.model)  # Ollama serves such a model without listing it
        if backend.model is not None and backend.model not in models and not unlisted:
            listed = "it serves: " + ", ".join(visible(name[:NAME_SHOWN]) for name in list(models)[:5])
            state.evidence.misconfigured(
                quoting(f"does not serve model '{backend.model}'{pull(state.server, backend.model)}", listed, "; ")
            )
            return False
        loaded = loaded_models(model_list, state.traits.loaded)
        here = local or models
        name = backend.model or next((name for name in here if loaded.get(name)), next(iter(here)))
        if name in remote:
            state.evidence.misconfigured(runs_elsewhere(name, remote[name]))
            return False
        if traits.probe is None or traits.probe.held is None:
            state.saw_loaded(loaded.get(name))
        state.saw_model(name, models.get(name) or state.reported.context)
        state.evidence.configured()
        return True


def reported_version(body: Any) -> str | None:
    """The version in the decoded body of a response; None if it has none that is usable text."""
    version = body.get("version") if isinstance(body, dict) else None
    if not isinstance(version, str) or not version.strip():
        return None
    return visible(version[:VERSION_MOST])
