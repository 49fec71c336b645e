"""`POST /v1/responses/input_tokens`: how many tokens a request to the Responses API has."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway.admission import access
from gateway.admission.origins import check_json
from gateway.api.answering import Question, answer
from gateway.api.messages import count_for
from gateway.apps.dialects.registry import translated
from gateway.config.snapshot import Alias
from gateway.domain.request import RESPONSES, InferenceRequest, parse
from gateway.proxy.exchange import Exchange
from gateway.runtime.gateway import Gateway

ENDPOINT = "input_tokens"  # in gateway_requests_total


def router(gateway: Gateway) -> APIRouter:
    """Answers `{"object": "response.input_tokens", "input_tokens": N}`, with what is kept of `previous_response_id`.
    Otherwise as `/v1/messages/count_tokens`."""
    routes = APIRouter()

    async def count(request: Request) -> Response:
        """The tokens of a request."""
        return await answer(gateway, request, ENDPOINT, work)

    async def work(asked: Question) -> bytes:
        request, alias = await _read(gateway, translated(gateway, RESPONSES, asked.exchange))
        asked.alias = alias.name
        asked.backend, number = await count_for(gateway, alias, request)
        return msgspec.json.encode({"object": "response.input_tokens", "input_tokens": number})

    for prefix in ("/v1", ""):
        routes.add_api_route(f"{prefix}/responses/input_tokens", count, methods=["POST"])
    return routes


async def _read(gateway: Gateway, exchange: Exchange) -> tuple[InferenceRequest, Alias]:
    client = exchange.caller.identify(gateway.snapshot)
    check_json(exchange.headers)
    request = parse(RESPONSES, await exchange.read_body(gateway.snapshot.server.max_body), exchange.own)
    if request.own is not None and request.own.untranslatable is not None:
        raise request.own.untranslatable
    request.look_for_media()
    request.sender = client.name
    return request, access.find_alias(gateway.snapshot, client, request.model)
