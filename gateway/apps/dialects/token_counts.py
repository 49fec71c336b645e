"""`POST /v1/messages/count_tokens` and `POST /v1/responses/input_tokens`: how many tokens a request has."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway.admission import access
from gateway.admission.origins import check_json
from gateway.api.answering import Question, Style, answer
from gateway.apps.dialects.anthropic.answer import envelope, retry_header
from gateway.apps.dialects.anthropic.request import to_chat
from gateway.config.snapshot import Alias
from gateway.domain.endpoints import MESSAGES, RESPONSES
from gateway.domain.request import InferenceRequest, OwnForm, parse_and_search
from gateway.engines.tokenize import count_tokens
from gateway.errors import GatewayError
from gateway.large_bodies import LARGE, apart_if_large
from gateway.proxy.exchange import Exchange
from gateway.proxy.reply import Header
from gateway.routing.refusal import pdf_refused
from gateway.routing.window import tokens
from gateway.runtime.apps import Translator
from gateway.runtime.gateway import Gateway

OF_MESSAGE, OF_RESPONSE = "count_tokens", "input_tokens"  # in gateway_requests_total


def router(gateway: Gateway, response: Translator) -> APIRouter:
    """Answers `{"input_tokens": N}`, for a response with `"object": "response.input_tokens"` and with what is kept of
    its `previous_response_id` (`response` wraps its exchange). It takes no slot and does not wait: if no backend counts
    at once (few servers can), the number is an estimate. `x-gateway-backend` names the backend that has counted."""
    routes = APIRouter()

    async def count_message(request: Request) -> Response:
        """The tokens of a request."""
        return await answer(gateway, request, OF_MESSAGE, of_message, ANTHROPIC)

    async def count_response(request: Request) -> Response:
        """The tokens of a request."""
        return await answer(gateway, request, OF_RESPONSE, of_response)

    async def of_message(asked: Question) -> bytes:
        return msgspec.json.encode({"input_tokens": await count(asked, asked.exchange, _message)})

    async def of_response(asked: Question) -> bytes:
        exchange = response(asked.exchange)
        number = await count(asked, exchange, lambda body: _response(body, exchange.own))
        return msgspec.json.encode({"object": "response.input_tokens", "input_tokens": number})

    async def count(asked: Question, exchange: Exchange, parsed: Callable[[bytes], InferenceRequest]) -> int:
        request, alias = await _read(gateway, exchange, parsed)
        asked.alias = alias.name
        asked.backend, number = await count_for(gateway, alias, request)
        return number

    for prefix in ("/v1", ""):
        routes.add_api_route(f"{prefix}/messages/count_tokens", count_message, methods=["POST"])
        routes.add_api_route(f"{prefix}/responses/input_tokens", count_response, methods=["POST"])
    return routes


def _refused(error: GatewayError, id_: str) -> tuple[bytes, list[Header]]:
    return envelope(error.status, error.envelope(), id_), [*retry_header(error.status).items()]


ANTHROPIC = Style(lambda id_: [(b"request-id", id_.encode())], _refused)


async def _read(
    gateway: Gateway, exchange: Exchange, parsed: Callable[[bytes], InferenceRequest]
) -> tuple[InferenceRequest, Alias]:
    client = exchange.caller.identify(gateway.snapshot)
    check_json(exchange.headers)
    body = await exchange.read_body(gateway.snapshot.server.max_body)
    request = await apart_if_large(client.name, len(body), lambda: parsed(body), LARGE)
    request.sender = client.name
    # By the present snapshot, whose backends are asked.
    return request, access.find_alias(gateway.snapshot, client, request.model)


def _message(body: bytes) -> InferenceRequest:
    return parse_and_search(MESSAGES, to_chat(body))


def _response(body: bytes, own: OwnForm | None) -> InferenceRequest:
    if own is not None and own.untranslatable is not None:
        raise own.untranslatable
    return parse_and_search(RESPONSES, body, own)


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
