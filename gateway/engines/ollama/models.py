"""Reads Ollama's lists of models (`/api/tags`, `/api/ps`), and builds the request to load one. Pure. The answers are
untrusted: any JSON value is accepted."""

from __future__ import annotations

import time
from typing import Any

from gateway.domain.backend import BackendState
from gateway.engines.base import reported_name

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
    names = [name for name, _ in model_entries(answer)]
    return list(dict.fromkeys([*names, *(name.removesuffix(":latest") for name in names)]))


def model_size(answer: Any, name: str) -> int | None:
    """Bytes of the model `name` on disk, from `INSTALLED`; None = not reported."""
    sizes = {found: entry.get("size") for found, entry in model_entries(answer)}
    size = sizes.get(name, sizes.get(f"{name}:latest"))
    return size if type(size) is int and 0 < size <= BYTES_MOST else None


def load_body(state: BackendState, keep_alive: str | int) -> dict[str, Any]:
    """The body of a `LOAD` request, which loads the backend's model with the same window as inference requests and
    keeps it for `keep_alive` (Ollama's duration); 0 = unload it."""
    body: dict[str, Any] = {"model": state.model, "keep_alive": keep_alive, "stream": False}
    if keep_alive and (window := window_of(state)) is not None:
        body["options"] = {"num_ctx": window}
    return body


def window_of(state: BackendState) -> int | None:
    """The value of `num_ctx`: the declared window, the same in every request, else the reported one."""
    return state.backend.context or state.window(time.monotonic())
