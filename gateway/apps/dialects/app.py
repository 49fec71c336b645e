"""Client APIs that are no chats, as an app of a gateway: each has an exchange that looks like a chat to the request
path. A dialect is imported by the first request that speaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.apps.dialects.translated import TranslatedExchange
from gateway.domain.endpoints import COMPACT, MESSAGES, OLLAMA, RESPONSES, Endpoint
from gateway.domain.request import InferenceRequest, parse
from gateway.proxy.exchange import Exchange
from gateway.runtime.apps import Extension, Routers
from gateway.runtime.gateway import Gateway

if TYPE_CHECKING:
    from gateway.apps.dialects.responses.recent import RecentItems

_OF_RESPONSES = {"instructions", "max_output_tokens", "reasoning", "text", "tools", "store"}


def app(gateway: Gateway) -> Extension:
    @cache
    def recent() -> RecentItems:
        from gateway.apps.dialects.responses.recent import RecentItems

        return RecentItems()

    of_response = partial(_response, gateway, recent)

    def routers() -> Routers:
        from gateway.apps.dialects import token_counts
        from gateway.apps.dialects.ollama import pages

        return token_counts.router(gateway, of_response), pages.router(gateway)

    def tools_of_chat(exchange: Exchange) -> TranslatedExchange:
        from gateway.apps.dialects.chat_tools import ChatToolsTranslation

        return TranslatedExchange(exchange, ChatToolsTranslation())

    gateway.services.tool_dialect = tools_of_chat
    of_ollama = {endpoint.name: partial(_of_ollama, gateway, endpoint) for endpoint in OLLAMA}
    return Extension(
        paths=frozenset({"messages", "responses", "api"}),
        routers=routers,
        translators={MESSAGES.name: _message, RESPONSES.name: of_response, COMPACT.name: _compaction, **of_ollama},
        read_request=read_request,
    )


def _message(exchange: Exchange) -> Exchange:
    from gateway.apps.dialects.anthropic.stream import MessageTranslation

    return TranslatedExchange(exchange, MessageTranslation())


def _compaction(exchange: Exchange) -> Exchange:
    from gateway.apps.dialects.responses.relayed import ResponseTranslation

    return TranslatedExchange(exchange, ResponseTranslation(compacts=True))


def _of_ollama(gateway: Gateway, endpoint: Endpoint, exchange: Exchange) -> Exchange:
    from gateway.apps.dialects.ollama.exchange import translated

    return translated(gateway, endpoint, exchange)


def _response(gateway: Gateway, recent: Callable[[], RecentItems], exchange: Exchange) -> Exchange:
    """The exchange of a response, which may go on from one that is kept."""
    conversations = getattr(gateway.apps, "conversations", None)
    if conversations is not None and conversations.is_on:
        from gateway.apps.dialects.responses.kept import KeptExchange

        return KeptExchange(exchange, conversations, gateway.snapshot)
    from gateway.apps.dialects.responses.recent import RecentExchange

    return RecentExchange(exchange, recent(), gateway.snapshot)


def read_request(alias: str, body: Any) -> InferenceRequest:
    """A request to `alias` with this body (decoded JSON, of any API that the gateway serves). There is no path: the
    fields decide the endpoint. Raises GatewayError (`invalid_request_body`, `input_unsupported`)."""
    if isinstance(body, dict) and _is_response(body):
        from gateway.apps.dialects.responses.request import chat_request_of

        chat, _, own = chat_request_of(msgspec.json.encode({**body, "model": alias}))
        return parse(RESPONSES, chat, own)
    if isinstance(body, dict) and _is_message(body):
        from gateway.apps.dialects.anthropic.request import to_chat

        return parse(MESSAGES, to_chat(msgspec.json.encode({**body, "model": alias})))
    from gateway.apps.explaining.explain import read_request as read_chat

    return read_chat(alias, body)


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
