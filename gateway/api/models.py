"""`GET /v1/models`: the aliases, from memory; never waits for a backend."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from gateway.admission.access import Identity, find_alias, identify
from gateway.config.aliases import first_step
from gateway.config.snapshot import Alias
from gateway.domain.engine_traits import traits_of
from gateway.proxy.header_map import header_map
from gateway.routing.alias_status import view_alias
from gateway.runtime.gateway import Gateway


def router(gateway: Gateway) -> APIRouter:
    """`/v1/models` and `/v1/models/{alias}`, filtered by the client's aliases; the same without /v1."""
    routes = APIRouter()

    def caller(request: Request) -> Identity:
        headers = header_map(request.scope["headers"])
        return identify(gateway.snapshot, headers, request.client.host if request.client else "local")

    @routes.get("/v1/models")
    @routes.get("/models")
    async def list_models(request: Request) -> JSONResponse:
        identity = caller(request)
        now = time.monotonic()
        aliases = [a for a in gateway.snapshot.aliases.values() if identity.may_use(a) and is_listed(gateway, a)]
        return JSONResponse({"object": "list", "data": [describe(gateway, a, a.name, now) for a in aliases]})

    @routes.get("/v1/models/{name:path}")
    @routes.get("/models/{name:path}")
    async def get_model(request: Request, name: str) -> JSONResponse:
        alias = find_alias(gateway.snapshot, caller(request), name)
        return JSONResponse(describe(gateway, alias, name, time.monotonic()))

    return routes


def is_listed(gateway: Gateway, alias: Alias) -> bool:
    """Aliases of models are listed; those of servers without such endpoints (audio) only with `listed: true`."""
    if alias.listed is not None:
        return alias.listed
    backends = [gateway.snapshot.backends[name] for step in alias.steps for name in step]
    return not backends or any(traits_of(backend).chats for backend in backends)


def describe(gateway: Gateway, alias: Alias, name: str, now: float) -> dict[str, Any]:
    """One entry. Both length keys are equal, because some clients use the first length-like key that they find; they
    are omitted if the window is not known yet. The state is only under `x_gateway`, because some clients hide models
    that are not available."""
    states = gateway.fleet.states
    entry: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": int(gateway.started),
        "owned_by": "spark-gateway",
    }
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
    """The window that the first step (in the mode in force) always has: the smallest one of its backends; None if one
    is not known yet."""
    now = time.monotonic()
    first = first_step(alias.steps, gateway.snapshot.backends)
    windows = [gateway.fleet.states[name].window(now) for name in first]
    known = [window for window in windows if window]
    return min(known) if known and len(known) == len(windows) else None
