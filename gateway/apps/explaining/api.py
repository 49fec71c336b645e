"""`POST /admin/explain`: where a request would be sent now, and why."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from gateway.api.admin import admit
from gateway.api.answering import body_of, fields_of
from gateway.apps.explaining.explain import explain_asked, read_request
from gateway.runtime.gateway import Gateway


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter(prefix="/admin")

    @routes.post("/explain")
    async def explain_request(request: Request) -> JSONResponse:
        """Accepts `{"alias", "request": {...}}` or `{"alias", "tools": bool, "tokens": N}`, and `"client"`, whose
        rules apply."""
        admit(gateway, request)
        starts = gateway.admission.starts
        async with body_of(gateway, request, gateway.snapshot.server.max_body) as body:
            explanation = explain_asked(
                gateway.snapshot,
                gateway.fleet.states,
                fields_of(body),
                time.monotonic(),
                gateway.apps.read_request or read_request,
                over_budget=gateway.accounts.over_budget,
                decides_start=starts.decision if starts is not None else None,
            )
            return JSONResponse(explanation)

    return routes
