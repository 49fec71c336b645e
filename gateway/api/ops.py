"""Endpoints for operators and their tools: liveness, readiness, version and metrics."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client.exposition import choose_encoder

from gateway import __version__
from gateway.admission.access import Identity, identify
from gateway.admission.origins import check_source
from gateway.api.admin import admit
from gateway.config.snapshot import Alias
from gateway.errors import GatewayError
from gateway.proxy.header_map import header_map
from gateway.routing.serving import can_serve
from gateway.runtime.gateway import Gateway


def router(gateway: Gateway) -> APIRouter:
    """`/health`, `/ready`, `/version`, `/metrics`: answered from memory, and open except for the parts that name
    aliases."""
    routes = APIRouter()

    def known(request: Request) -> Identity | None:
        """The caller; None for a caller who may not see the aliases."""
        peer = request.client.host if request.client else "local"
        try:
            return identify(gateway.snapshot, header_map(request.scope["headers"]), peer)
        except GatewayError:
            return None

    @routes.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @routes.get("/ready")
    async def ready(request: Request) -> JSONResponse:
        """200 while some alias can be served and the gateway is not stopping, else 503. Names those aliases to callers
        who may use them."""
        if gateway.stopping:
            return JSONResponse({"status": "stopping"}, 503)
        serving = servable(gateway, time.monotonic())
        answer: dict[str, Any] = {"status": "ready" if serving else "no backend"}
        identity = known(request)
        if identity is not None:
            answer["aliases"] = [alias.name for alias in serving if identity.may_use(alias)]
        return JSONResponse(answer, 200 if serving else 503)

    @routes.get("/version")
    async def version() -> JSONResponse:
        return JSONResponse({"version": __version__})

    @routes.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Prometheus' text, or OpenMetrics for a scraper that accepts it; with `server.metrics` for admins only."""
        if gateway.snapshot.metrics_are_open:
            check_source(gateway.snapshot, header_map(request.scope["headers"]))
        else:
            admit(gateway, request, "/metrics")
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(gateway.metrics.registry), media_type=content_type)

    return routes


def servable(gateway: Gateway, now: float) -> list[Alias]:
    """The aliases that some backend can serve now."""
    states = gateway.fleet.states
    return [alias for alias in gateway.snapshot.aliases.values() if can_serve(alias, states, now)]
