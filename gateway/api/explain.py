"""`POST /admin/explain`: where a request would be sent now, and why."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from gateway.api.admin import admit
from gateway.api.answering import body_of
from gateway.errors import GatewayError
from gateway.routing.explain import explain_asked
from gateway.runtime.gateway import Gateway


def router(gateway: Gateway) -> APIRouter:
    """Accepts `{"alias", "request": {...}}` or `{"alias", "tools": bool, "tokens": N}`, and `"client"`, whose rules
    apply."""
    routes = APIRouter(prefix="/admin")

    @routes.post("/explain")
    async def explain_request(request: Request) -> JSONResponse:
        admit(gateway, request)
        async with body_of(gateway, request, gateway.snapshot.server.max_body) as body:
            explanation = explain_asked(
                gateway.snapshot,
                gateway.fleet.states,
                _read(body),
                time.monotonic(),
                gateway.apps.read_request,
                over_budget=gateway.accounts.over_budget,
                decides_start=gateway.admission.starts.decision if gateway.admission.starts is not None else None,
            )
            return JSONResponse(explanation)

    return routes


def _read(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GatewayError("invalid_request_body", f"The request body must be a JSON object: {error}") from None
