"""The APIs that are not OpenAI's: their clients are answered by an exchange that speaks chat to the request path."""

from __future__ import annotations

from gateway.dialects.anthropic.exchange import MessagesExchange
from gateway.domain.request import MESSAGES, Endpoint
from gateway.proxy.exchange import Exchange

_DIALECTS = {MESSAGES.name: MessagesExchange}


def spoken(endpoint: Endpoint, exchange: Exchange) -> Exchange:
    """The exchange as the request path is to see it."""
    dialect = _DIALECTS.get(endpoint.name)
    return exchange if dialect is None else dialect(exchange)
