"""Reads Ollama's lists of models (`/api/tags`, `/api/ps`), and builds the request to load one. Pure. The answers are
untrusted: any JSON value is accepted."""

from __future__ import annotations

import time
from datetime import datetime
from math import inf
from typing import Any

from gateway.config.backends import ASSUMED_OLLAMA_CONTEXT
from gateway.domain.backend import BackendState
from gateway.domain.facts import HeldModel
from gateway.domain.reason import quoting
from gateway.engines.base import NAME_MOST, reported_name, reported_window
from gateway.printable import visible

INSTALLED, LOADED, LOAD, EMBED = "/api/tags", "/api/ps", "/api/generate", "/api/embed"  # paths below its root
BYTES_MOST = 10**15  # largest size of a model that is believed
CHECK_SECONDS = 60.0  # that a model must stay for a check not to prolong it: the check itself takes time
FOR_EVER = 10 * 365 * 86400.0  # seconds from now on: an expiry beyond means that the model is never unloaded


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


def pull(server: str, model: str) -> str:
    """What mends that a server lacks this model, in brackets; "" where it is no Ollama."""
    return f" (ollama pull {model})" if server == "ollama" else ""


def model_size(answer: Any, name: str) -> int | None:
    """Bytes of the model `name` on disk, from `INSTALLED`; None if not reported."""
    sizes = {found: entry.get("size") for found, entry in model_entries(answer)}
    size = sizes.get(name, sizes.get(f"{name}:latest"))
    return size if type(size) is int and 0 < size <= BYTES_MOST else None


def held_model(answer: Any, name: str | None, now: float) -> HeldModel | None:
    """The entry of model `name` in `LOADED`; None = it is not in memory. `now`: Unix seconds. A model that is being
    loaded is listed too, with an expiry that moves on."""
    for found, entry in model_entries(answer):
        if name is not None and found.removesuffix(":latest") == name.removesuffix(":latest"):
            size = entry.get("size")
            taken = size if type(size) is int and 0 < size <= BYTES_MOST else 0
            return HeldModel(reported_window(entry.get("context_length")) or 0, _until(entry, now), taken, now)
    return None


def _until(entry: dict[str, Any], now: float) -> float:
    try:
        until = datetime.fromisoformat(str(entry.get("expires_at"))).timestamp()
    except (ValueError, OverflowError):
        return now  # not told
    return inf if until - now > FOR_EVER else until


def load_body(state: BackendState, keep_alive: object, window: int | None = None) -> dict[str, Any]:
    """The body of a `LOAD` request, which keeps the backend's model for `keep_alive` (Ollama's duration, None = as it
    does itself); 0 = unload it. It is loaded with `window`, by default the one of requests: with another, the first
    request would make Ollama load it again."""
    body: dict[str, Any] = {"model": state.model, "stream": False}
    if keep_alive is not None:
        body["keep_alive"] = keep_alive
    if keep_alive != 0 and (window := window or window_of(state)) is not None:
        body["options"] = {"num_ctx": window}
    return body


def window_of(state: BackendState) -> int | None:
    """The value of `num_ctx` where the model is not loaded yet: the declared window, else the reported one, of a server
    that was only recognised as an Ollama at most the one that is assumed for `engine: ollama`."""
    window = state.backend.context or state.window(time.monotonic())
    if state.backend.context or not state.backend.generic:
        return window
    return min(window or ASSUMED_OLLAMA_CONTEXT, ASSUMED_OLLAMA_CONTEXT)


def window_for(state: BackendState, needed: int) -> int | None:
    """The value of `num_ctx` for a request that needs so many tokens. In an Ollama that others use too, that of the
    loaded model where it suffices: with another value the model would be loaded again, under everybody."""
    own, held = window_of(state), state.held
    if held is None or not held.window or state.backend.exclusive or held.window == bounded(state, own):
        return own
    return held.window if held.window >= needed else own


def bounded(state: BackendState, window: int | None) -> int | None:
    """The window that Ollama really gives the model for this `num_ctx`: no more than it was trained for."""
    most = state.reported.context
    return min(window, most) if window and most else window


def leaves_alone(state: BackendState, now: float) -> bool:
    """Does a check leave an Ollama as it is? Its model is loaded as requests load it, and its expiry is known; or
    nobody else uses this Ollama. `now`: Unix seconds."""
    held = state.held
    if held is None or state.backend.exclusive:
        return state.backend.exclusive
    return held.until > now + CHECK_SECONDS and held.window in (0, bounded(state, window_of(state)) or held.window)


def keep_alive_left(state: BackendState, now: float) -> float | int | None:
    """The `keep_alive` with which a check leaves the expiry of the loaded model as it is; None = it is unloaded as it
    would be after any request. `now`: Unix seconds."""
    held = state.held
    if held is None or state.backend.exclusive:
        return None
    return -1 if held.until == inf else max(1, int(held.until - now))
