"""Bodies and whole answers beside inference, counted in the gateway's memory while they are held; and how the endpoints
that count and split text answer: a body is read, a backend is asked at once, and the answer is one JSON body. They take
no slot and wait for none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.admission.memory import Share
from gateway.errors import GatewayError, PassedOn
from gateway.proxy.exchange import AsgiExchange, ClientGone
from gateway.proxy.reply import Header, base_headers, request_id
from gateway.runtime.gateway import Gateway

T = TypeVar("T")
STALLED = 30.0  # seconds after which a reader of events that reads nothing is cut off
BODY_MOST = 256 * 1024  # bytes of a body that has no prompt


@asynccontextmanager
async def body_of(gateway: Gateway, request: Request, most: int = BODY_MOST) -> AsyncIterator[bytes]:
    """The whole body of a request, counted until the end of the context. Raises `request_too_large` beyond `most` bytes
    and `server.max_body`, `memory_full`, ClientGone."""
    exchange = AsgiExchange(request.scope, request.receive, _unsent, gateway.memory)
    exchange.caller.identify(gateway.snapshot)
    try:
        body = await exchange.read_body(gateway.snapshot.server.max_body)
        if len(body) > most:
            raise GatewayError(
                "request_too_large", f"The request body is larger than {most} bytes, which is all it needs."
            )
        yield body
    finally:
        exchange.share.close()


async def body_as(gateway: Gateway, request: Request, kind: type[T]) -> T:
    """The body of a request as this type; an empty one is `{}`. Raises `invalid_request_body`, and as `body_of`."""
    async with body_of(gateway, request) as body:
        try:
            return msgspec.json.decode(body.strip() or b"{}", type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise GatewayError("invalid_request_body", f"The request body is not valid: {error}") from None


def fields_of(body: bytes) -> dict[str, Any]:
    """The fields of a body. Raises `invalid_request_body`."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GatewayError("invalid_request_body", f"The request body must be a JSON object: {error}") from None


class HeldAnswer(Response):
    """A whole answer that may be large. It goes piece by piece, each when the client has read some, and `share` counts
    it until then."""

    def __init__(self, share: Share, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        super().__init__(content, status, headers, "application/json")
        self._share = share

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = AsgiExchange(scope, receive, send, self._share.memory)
        try:
            await exchange.start(self.status_code, self.raw_headers)
            await exchange.finish(bytes(self.body))
        finally:
            self._share.close()


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
    """The answer whose body `work` makes, which may raise GatewayError and ClientGone. Counted as `endpoint`."""
    exchange = AsgiExchange(request.scope, request.receive, _unsent, gateway.memory)
    asked, count = Question(exchange, request_id(exchange.headers.get(b"x-request-id"))), gateway.metrics.requests.inc
    try:
        body = await work(asked)
    except GatewayError as error:
        exchange.share.close()
        count(asked.alias, "", endpoint, str(error.status) if isinstance(error, PassedOn) else error.code)
        body, more = style.error(error, asked.id)
        return _plain(exchange.share, error.status, body, [*_headers(asked, style), *error.headers(), *more])
    except BaseException as reason:
        exchange.share.close()
        if not isinstance(reason, ClientGone):
            raise
        count(asked.alias, "", endpoint, "client_gone")
        return Response()  # nobody reads it
    count(asked.alias, asked.backend, endpoint, "200")
    counted_by = [(b"x-gateway-backend", asked.backend.encode())] if asked.backend else []
    return _plain(exchange.share, 200, body, [*_headers(asked, style), *counted_by])


def _headers(asked: Question, style: Style) -> list[Header]:
    return [*base_headers(asked.id, asked.alias), *style.headers(asked.id)]


def _plain(share: Share, status: int, body: bytes, headers: list[Header]) -> Response:
    return HeldAnswer(share, body, status, {k.decode(): v.decode("latin-1") for k, v in headers})


async def _unsent(_: Message) -> None:
    """A `send` that does nothing: the framework sends the answer."""


async def until_left(receive: Receive) -> None:
    """Until the reader of the answer has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
