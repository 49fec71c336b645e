"""Reads Ollama's lists of models (`/api/tags`, `/api/ps`), and builds the request to load one. Pure. The answers are
untrusted: any JSON value is accepted."""

from __future__ import annotations

import time
from typing import Any

from gateway.domain.backend import BackendState
from gateway.domain.reason import quoting
from gateway.engines.base import NAME_MOST, reported_name, reported_window
from gateway.printable import visible

INSTALLED, LOADED, LOAD = "/api/tags", "/api/ps", "/api/generate"  # paths below its root
BYTES_MOST = 10**15  # largest size of a model that is believed


def model_entries(answer: Any) -> list[tuple[str, dict[str, Any]]]:
    """(name, entry) of each model in a decoded list, in Ollama's order. Invalid entries are left out."""
    models = answer.get("models") if isinstance(answer, dict) else None
    entries = [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    named = [(reported_name(entry.get("name") or entry.get("model")), entry) for entry in entries]
    return [(name, entry) for name, entry in named if name is not None]


def model_names(answer: Any) -> list[str]:
    """The names in a list of models, followed by the names tagged `latest` without their tag."""
    return list(model_windows(answer))


def model_windows(answer: Any) -> dict[str, int | None]:
    """`model_names` with the most tokens that each model was trained for, which `INSTALLED` reports since 0.30; None if
    not reported. Ollama loads no model with a larger window than that, whatever `num_ctx` says."""
    read = {name: _trained_window(entry) for name, entry in model_entries(answer)}
    return read | {name.removesuffix(":latest"): window for name, window in read.items()}


def _trained_window(entry: dict[str, Any]) -> int | None:
    details = entry.get("details")
    return reported_window(details.get("context_length")) if isinstance(details, dict) else None


def remote_models(answer: Any) -> dict[str, str]:
    """The models of a list that run on another host, and that host: Ollama passes requests for them on, most often to
    ollama.com, under names that may look like those of its own models."""
    found = {name: _host_of(entry) for name, entry in model_entries(answer)}
    elsewhere = {name: host for name, host in found.items() if host is not None}
    return {name.removesuffix(":latest"): host for name, host in elsewhere.items()} | elsewhere


def _host_of(entry: dict[str, Any]) -> str | None:
    host, model = entry.get("remote_host"), entry.get("remote_model")
    return reported_name(host) or "another host" if host or model else None


def runs_elsewhere(model: str, host: str) -> str:
    """Why a backend that is not declared as a cloud gets no requests, for people."""
    which = f"passes requests for model '{visible(model)}' on to another host"
    reason = f"{which}: say cloud: true if they may leave the LAN"
    return quoting(reason, visible(host[:NAME_MOST]))


def model_size(answer: Any, name: str) -> int | None:
    """Bytes of the model `name` on disk, from `INSTALLED`; None if not reported."""
    sizes = {found: entry.get("size") for found, entry in model_entries(answer)}
    size = sizes.get(name, sizes.get(f"{name}:latest"))
    return size if type(size) is int and 0 < size <= BYTES_MOST else None


def load_body(state: BackendState, keep_alive: str | int) -> dict[str, Any]:
    """The body of a `LOAD` request, which keeps the backend's model for `keep_alive` (Ollama's duration); 0 = unload
    it. The model is loaded with the same window and the same `shift` as by inference requests: with others, the first
    request would make Ollama load it again."""
    body: dict[str, Any] = {"model": state.model, "keep_alive": keep_alive, "stream": False}
    if keep_alive:
        body["shift"] = False
        if (window := window_of(state)) is not None:
            body["options"] = {"num_ctx": window}
    return body


def window_of(state: BackendState) -> int | None:
    """The value of `num_ctx`: the declared window, the same in every request, else the reported one."""
    return state.backend.context or state.window(time.monotonic())


def loaded_window(state: BackendState) -> int | None:
    """The window that Ollama really gives the model: `num_ctx`, but no more than it was trained for."""
    asked, most = window_of(state), state.reported.context
    return min(asked, most) if asked and most else asked
