"""`POST /v1/messages/count_tokens`: how many tokens a Messages request has."""

from __future__ import annotations

import time

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway.admission import access
from gateway.admission.origins import check_json
from gateway.api.answering import Question, Style, answer
from gateway.apps.dialects.anthropic.errors import envelope, retry_header
from gateway.apps.dialects.anthropic.request import to_chat
from gateway.config.snapshot import Alias
from gateway.domain.request import MESSAGES, InferenceRequest, parse
from gateway.engines.tokenize import count_tokens
from gateway.errors import GatewayError
from gateway.large_bodies import LARGE, apart
from gateway.proxy.exchange import AsgiExchange
from gateway.proxy.reply import Header
from gateway.routing.refusal import pdf_refused
from gateway.routing.window import tokens
from gateway.runtime.gateway import Gateway

ENDPOINT = "count_tokens"  # in gateway_requests_total


def router(gateway: Gateway) -> APIRouter:
    """Answers `{"input_tokens": N}`. It takes no slot and does not wait: if no backend counts at once (few servers
    can), the number is an estimate. `x-gateway-backend` names the backend that has counted."""
    routes = APIRouter()

    @routes.post("/v1/messages/count_tokens")
    @routes.post("/messages/count_tokens")
    async def count(request: Request) -> Response:
        return await answer(gateway, request, ENDPOINT, work, ANTHROPIC)

    async def work(asked: Question) -> bytes:
        request, alias = await _read(gateway, asked.exchange)
        asked.alias = alias.name
        asked.backend, number = await count_for(gateway, alias, request)
        return msgspec.json.encode({"input_tokens": number})

    return routes


def _refused(error: GatewayError, id_: str) -> tuple[bytes, list[Header]]:
    return envelope(error.status, error.envelope(), id_), [*retry_header(error.status).items()]


ANTHROPIC = Style(lambda id_: [(b"request-id", id_.encode())], _refused)


async def _read(gateway: Gateway, exchange: AsgiExchange) -> tuple[InferenceRequest, Alias]:
    client = exchange.caller.identify(gateway.snapshot)
    check_json(exchange.headers)
    body = await exchange.read_body(gateway.snapshot.server.max_body)
    request = await apart(client.name, lambda: _parsed(body)) if len(body) > LARGE else _parsed(body)
    request.sender = client.name
    # By the present snapshot, whose backends are asked.
    return request, access.find_alias(gateway.snapshot, client, request.model)


def _parsed(body: bytes) -> InferenceRequest:
    request = parse(MESSAGES, to_chat(body))
    request.look_for_media()
    return request


async def count_for(gateway: Gateway, alias: Alias, request: InferenceRequest) -> tuple[str, int]:
    """(backend, its count) of the first backend of the alias that can count; ("", an estimate) if none can. Clouds
    are not asked. Raises `input_unsupported` for a PDF that none takes."""
    now = time.monotonic()
    states = [gateway.fleet.states[name] for step in alias.steps for name in step]
    if request.file_at and all(state.capabilities(now).pdf is False for state in states):
        raise pdf_refused(request, alias.name)
    for state in states:
        if not state.backend.cloud and state.health.usable(now):
            exact = await count_tokens(state, request)
            if exact is not None:
                return state.name, exact
    return "", tokens(states[0], request)
