"""For operators and their tools: is it up, can it serve, what version, the metrics."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client.exposition import choose_encoder

from gateway import __version__
from gateway.core import Gateway


def router(gateway: Gateway) -> APIRouter:
    """`/health`, `/ready`, `/version`, `/metrics`: open, and answered from memory."""
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @routes.get("/ready")
    async def ready() -> JSONResponse:
        """200 while some alias can be served and the gateway is not stopping, else 503."""
        if gateway.stopping:
            return JSONResponse({"status": "stopping"}, 503)
        serving = servable(gateway)
        status = 200 if serving else 503
        return JSONResponse({"status": "ready" if serving else "no backend", "aliases": serving}, status)

    @routes.get("/version")
    async def version() -> JSONResponse:
        return JSONResponse({"version": __version__})

    @routes.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Prometheus' text, or OpenMetrics for a scraper that asks for that."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(gateway.metrics.registry), media_type=content_type)

    return routes


def servable(gateway: Gateway) -> list[str]:
    """The aliases that some backend can serve now."""
    now = time.monotonic()
    states = gateway.fleet.states
    return [
        alias.name
        for alias in gateway.snapshot.aliases.values()
        if any(states[name].health.usable(now) for step in alias.steps for name in step)
    ]
