"""How the endpoints that count and split text answer: a body is read, a backend is asked at once, and the answer is one
JSON body. They take no slot and wait for none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Message

from gateway.errors import GatewayError, PassedOn
from gateway.proxy.exchange import AsgiExchange, ClientGone
from gateway.proxy.reply import Header, base_headers, request_id
from gateway.runtime.gateway import Gateway


@dataclass(slots=True)
class Question:
    """A request under way. `alias` and `backend` are set as soon as they are known."""

    exchange: AsgiExchange
    id: str
    alias: str = ""
    backend: str = ""  # the one that has answered; empty = none


class Style(NamedTuple):
    """What differs between the clients' APIs: headers of every answer to this id; of an error, its body and headers."""

    headers: Callable[[str], list[Header]] = lambda _: []
    error: Callable[[GatewayError, str], tuple[bytes, list[Header]]] = lambda error, _: (error.envelope(), [])


OPENAI = Style()


async def answer(
    gateway: Gateway,
    request: Request,
    endpoint: str,
    work: Callable[[Question], Awaitable[bytes]],
    style: Style = OPENAI,
) -> Response:
    """The answer whose body `work` makes; it may raise GatewayError and ClientGone. Counted as `endpoint` in
    gateway_requests_total."""
    exchange = AsgiExchange(request.scope, request.receive, _unsent, gateway.memory)
    asked, count = Question(exchange, request_id(exchange.headers.get(b"x-request-id"))), gateway.metrics.requests.inc
    try:
        body = await work(asked)
    except GatewayError as error:
        count(asked.alias, "", endpoint, str(error.status) if isinstance(error, PassedOn) else error.code)
        body, more = style.error(error, asked.id)
        return _plain(error.status, body, [*_headers(asked, style), *error.headers(), *more])
    except ClientGone:
        count(asked.alias, "", endpoint, "client_gone")
        return Response()  # nobody reads it
    finally:
        exchange.share.close()
    count(asked.alias, asked.backend, endpoint, "200")
    counted_by = [(b"x-gateway-backend", asked.backend.encode())] if asked.backend else []
    return _plain(200, body, [*_headers(asked, style), *counted_by])


def _headers(asked: Question, style: Style) -> list[Header]:
    return [*base_headers(asked.id, asked.alias), *style.headers(asked.id)]


def _plain(status: int, body: bytes, headers: list[Header]) -> Response:
    return Response(body, status, {k.decode(): v.decode("latin-1") for k, v in headers}, "application/json")


async def _unsent(_: Message) -> None:
    """A `send` that does nothing: the framework sends the answer."""
