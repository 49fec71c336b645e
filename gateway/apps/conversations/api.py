"""`/v1/responses/{id}`: the responses that are kept. A client sees its own only."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from gateway.api.answering import HeldAnswer
from gateway.api.caller import keeping, owner_of
from gateway.apps.conversations.conversations import Conversations
from gateway.runtime.gateway import Gateway


def router(gateway: Gateway, kept: Conversations) -> APIRouter:
    routes = APIRouter()

    async def get_response(request: Request, name: str) -> Response:
        """A response that is kept."""
        owner, _, share = keeping(gateway, request.scope)
        return HeldAnswer(share, await kept.response(owner, name, share.add))

    async def delete_response(request: Request, name: str) -> Response:
        """Drops a response; what went on from it stays, but cannot be continued."""
        await kept.drop(owner_of(gateway, request.scope), name)
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    for prefix in ("/v1", ""):
        routes.add_api_route(f"{prefix}/responses/{{name}}", get_response, methods=["GET"])
        routes.add_api_route(f"{prefix}/responses/{{name}}", delete_response, methods=["DELETE"])
    return routes
