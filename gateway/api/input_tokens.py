"""`POST /v1/responses/input_tokens`: how many tokens a request to the Responses API has."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway.admission import access
from gateway.admission.origins import check_json
from gateway.api.messages import count_for
from gateway.api.plain import plain, unsent
from gateway.config.snapshot import Alias
from gateway.dialects.registry import translated
from gateway.domain.request import RESPONSES, InferenceRequest, parse
from gateway.errors import GatewayError
from gateway.proxy.exchange import AsgiExchange, ClientGone, Exchange
from gateway.proxy.reply import base_headers, request_id
from gateway.runtime.gateway import Gateway

ENDPOINT = "input_tokens"  # in gateway_requests_total


def router(gateway: Gateway) -> APIRouter:
    """Answers `{"object": "response.input_tokens", "input_tokens": N}`, with what is kept of `previous_response_id`.
    Otherwise as `/v1/messages/count_tokens`."""
    routes = APIRouter()

    async def count(request: Request) -> Response:
        """The tokens of a request."""
        asgi = AsgiExchange(request.scope, request.receive, unsent, gateway.memory)
        id_, alias = request_id(asgi.headers.get(b"x-request-id")), ""
        try:
            asked, meant = await _read(gateway, translated(gateway, RESPONSES, asgi))
            alias = meant.name
            backend, number = await count_for(gateway, meant, asked)
        except GatewayError as error:
            gateway.metrics.requests.inc(alias, "", ENDPOINT, error.code)
            return plain(error.status, error.envelope(), [*base_headers(id_, alias), *error.headers()])
        except ClientGone:
            gateway.metrics.requests.inc(alias, "", ENDPOINT, "client_gone")
            return Response()  # the client has left
        finally:
            asgi.share.close()
        gateway.metrics.requests.inc(alias, backend, ENDPOINT, "200")
        counted_by = [(b"x-gateway-backend", backend.encode())] if backend else []
        told = msgspec.json.encode({"object": "response.input_tokens", "input_tokens": number})
        return plain(200, told, [*base_headers(id_, alias), *counted_by])

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
