"""The client APIs that are translated: each has an exchange that looks like a chat to the request path. A dialect is
imported by the first request that speaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gateway.apps.dialects.translated import TranslatedExchange, Translation
from gateway.domain.request import ENDPOINTS, MESSAGES, RESPONSES, Endpoint, InferenceRequest, parse
from gateway.errors import GatewayError
from gateway.proxy.exchange import Exchange
from gateway.runtime.gateway import Gateway


def _message() -> Translation:
    from gateway.apps.dialects.anthropic.exchange import MessageTranslation

    return MessageTranslation()


def _response() -> Translation:
    from gateway.apps.dialects.responses.exchange import ResponseTranslation

    return ResponseTranslation()


_DIALECTS: dict[str, Callable[[], Translation]] = {MESSAGES.name: _message, RESPONSES.name: _response}
_OF_RESPONSES = {"instructions", "max_output_tokens", "reasoning", "text", "tools", "store"}


def translated(gateway: Gateway, endpoint: Endpoint, exchange: Exchange) -> Exchange:
    """`exchange` for the request path: wrapped in a translator where the endpoint is not one of OpenAI's API."""
    dialect = _DIALECTS.get(endpoint.name)
    if endpoint is RESPONSES and gateway.apps.conversations.is_on:
        from gateway.apps.dialects.responses.kept import KeptExchange

        return KeptExchange(exchange, gateway.apps.conversations, gateway.snapshot)
    return exchange if dialect is None else TranslatedExchange(exchange, dialect())


def read_request(alias: str, body: Any) -> InferenceRequest:
    """A request to `alias` with this body (decoded JSON, of any API that the gateway serves). There is no path: the
    field of the prompt decides the endpoint. Raises GatewayError (`invalid_request_body`, `input_unsupported`)."""
    if not isinstance(body, dict):
        raise GatewayError("invalid_request_body", "The request must be a JSON object.", param="request")
    from gateway.apps.dialects.anthropic.request import to_chat
    from gateway.apps.dialects.responses.request import chat_request_of

    encoded = msgspec.json.encode({**body, "model": alias})
    if _is_response(body):
        chat, _, own = chat_request_of(encoded)
        return parse(RESPONSES, chat, own)
    return parse(_endpoint_of(body), to_chat(encoded) if _is_message(body) else encoded)


def _is_response(body: Mapping[str, Any]) -> bool:
    """Has it `input`, in a form that embeddings do not take or with a field that only a response has?"""
    input_ = body.get("input")
    items = isinstance(input_, list) and any(isinstance(item, dict) for item in input_)
    return "input" in body and (items or not _OF_RESPONSES.isdisjoint(body))


def _is_message(body: Mapping[str, Any]) -> bool:
    """Has it a field that only Anthropic's API has? Without one, both APIs read the body alike."""
    tools = body.get("tools")
    listed = tools if isinstance(tools, list) else []
    return "system" in body or any(isinstance(tool, dict) and "input_schema" in tool for tool in listed)


def _endpoint_of(body: Mapping[str, Any]) -> Endpoint:
    return next((e for e in ENDPOINTS if e.prompt and e.prompt[0] in body), ENDPOINTS[0])
