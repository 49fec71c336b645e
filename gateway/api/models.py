"""`GET /v1/models`: the aliases, from memory; never waits for a backend."""

from __future__ import annotations

import time
from typing import Any

from gateway.admission.access import Caller, find_alias
from gateway.api.caller import Page, PageAnswer, identify_caller, json_answer
from gateway.config.modes import first_step
from gateway.config.snapshot import Alias
from gateway.domain.engine_traits import traits_of
from gateway.routing.alias_status import load_of, view_alias
from gateway.runtime.gateway import Gateway

FOLDERS = ("/v1/models", "/models")


def pages(gateway: Gateway) -> dict[str, Page]:
    """`/v1/models`, filtered by the client's aliases; the same without /v1."""

    async def list_models(caller: Caller) -> PageAnswer:
        identity = identify_caller(gateway, caller)
        now = time.monotonic()
        aliases = [a for a in gateway.snapshot.aliases.values() if identity.may_use(a) and is_listed(gateway, a)]
        return json_answer({"object": "list", "data": [describe(gateway, a, a.name, now) for a in aliases]})

    return dict.fromkeys(FOLDERS, list_models)


def page_of(gateway: Gateway, path: str) -> Page | None:
    """The page of `/v1/models/{alias}`; None for any other path. The alias may hold slashes."""
    name = next((path.removeprefix(f"{folder}/") for folder in FOLDERS if path.startswith(f"{folder}/")), None)
    if name is None:
        return None

    async def get_model(caller: Caller) -> PageAnswer:
        alias = find_alias(gateway.snapshot, identify_caller(gateway, caller), name)
        return json_answer(describe(gateway, alias, name, time.monotonic()))

    return get_model


def is_listed(gateway: Gateway, alias: Alias) -> bool:
    """Aliases of models are listed; those of servers without such endpoints (audio) only with `listed: true`."""
    if alias.listed is not None:
        return alias.listed
    backends = [gateway.snapshot.backends[name] for step in alias.steps for name in step]
    return not backends or any(traits_of(backend).chats for backend in backends)


def describe(gateway: Gateway, alias: Alias, name: str, now: float) -> dict[str, Any]:
    """One entry. Both length keys are equal, because some clients use the first length-like key that they find; they
    are omitted if the window is not known yet. `status` is as llama-server's router has it. The health is only under
    `x_gateway`, because some clients hide models that are not available."""
    states = gateway.fleet.states
    entry: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": int(gateway.started),
        "owned_by": "spark-gateway",
    }
    entry["status"] = {"value": load_of(alias, states)}
    window = first_window(gateway, alias)
    if window is not None:
        entry["max_model_len"] = entry["context_length"] = window
    entry["x_gateway"] = {
        "alias": alias.name,
        "steps": [list(step) for step in alias.steps],
        "serving": list(view_alias(alias, states, now).serving[:1]),
        "states": {n: states[n].health.state.value for step in alias.steps for n in step},
        "leaves_lan": bool(gateway.snapshot.leaves_lan(alias)),
    }
    return entry


def first_window(gateway: Gateway, alias: Alias) -> int | None:
    """The smallest window of the first step (in the mode in force); None if one is not known yet."""
    now = time.monotonic()
    first = first_step(alias.steps, gateway.snapshot.backends)
    windows = [gateway.fleet.states[name].window(now) for name in first]
    known = [window for window in windows if window]
    return min(known) if known and len(known) == len(windows) else None
