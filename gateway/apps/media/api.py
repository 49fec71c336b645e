"""`GET /v1/audio/models` and `/v1/audio/voices`: what speech can be asked of, for clients that offer a choice."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from gateway.admission.access import Identity, identify
from gateway.apps.media.voices import Voices
from gateway.config.snapshot import Backend
from gateway.domain.health_state import SERVING
from gateway.proxy.header_map import header_map
from gateway.runtime.gateway import Gateway


def router(gateway: Gateway, known: Voices) -> APIRouter:
    """Filtered by the client's aliases; the same without /v1."""
    routes = APIRouter()

    def offered(request: Request) -> dict[str, list[Backend]]:
        """alias -> its speech servers."""
        headers, snapshot = header_map(request.scope["headers"]), gateway.snapshot
        identity: Identity = identify(snapshot, headers, request.client.host if request.client else "local")
        usable = [alias for alias in snapshot.aliases.values() if identity.may_use(alias)]
        servers = {a.name: [snapshot.backends[name] for step in a.steps for name in step] for a in usable}
        return {name: found for name, found in servers.items() if any(one.serves for one in found)}

    @routes.get("/v1/audio/models")
    @routes.get("/audio/models")
    async def list_models(request: Request) -> JSONResponse:
        found = [
            {"id": name, "object": "model", "serves": sorted({what for one in servers for what in one.serves})}
            for name, servers in offered(request).items()
        ]
        return JSONResponse({"object": "list", "data": found, "models": found})

    @routes.get("/v1/audio/voices")
    @routes.get("/audio/voices")
    async def list_voices(request: Request) -> JSONResponse:
        """The servers are asked for them; a server that is slow or has no list adds none."""
        states = gateway.fleet.states
        servers = {one.name: one for found in offered(request).values() for one in found if "speech" in one.serves}
        ready = [one for one in servers.values() if not one.cloud and states[one.name].health.state in SERVING]
        found = await known.of(ready)
        return JSONResponse({"voices": [{"id": voice.id, "name": voice.name} for voice in found]})

    return routes
