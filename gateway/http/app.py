"""The ASGI app: inference POSTs go straight to the request handler, what is polled is answered from memory, and
everything else is FastAPI's."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING

from gateway.api import models, ops
from gateway.api.caller import Page, PageAnswer, caller_of, client_error, error_answer
from gateway.config.snapshot import Snapshot
from gateway.domain.endpoints import ENDPOINTS, UPLOADS, Endpoint
from gateway.errors import GatewayError, WrongMethod
from gateway.proxy.exchange import AsgiExchange, Receive, Scope, Send, bounded
from gateway.proxy.handler import RequestHandler
from gateway.proxy.reply import send_whole
from gateway.proxy.services import DecidesAhead
from gateway.runtime.gateway import Gateway

if TYPE_CHECKING:
    from fastapi import FastAPI

# How the paths of the core that FastAPI serves begin, below `/` or `/v1/`.
BEGINNINGS = frozenset({"admin"})
FORM_MOST = 1024 * 1024  # bytes of a form beside its file


class App:
    """Looks up inference paths itself, so that they skip the router, middleware and response classes. On the
    gateway's own listener inference requests do not pass here at all (connection.py)."""

    def __init__(self, snapshot: Snapshot, decides_ahead: DecidesAhead = "repeated") -> None:
        self.gateway = Gateway(snapshot, decides_ahead)
        self._polled = ops.pages(self.gateway) | models.pages(self.gateway)
        self.beginnings = BEGINNINGS | self.gateway.apps.paths  # any other path is a 404 at once
        self._api: FastAPI | None = None  # None = not needed yet
        self._building = asyncio.Lock()
        self._endpoints = {
            path.encode(): endpoint
            for endpoint in ENDPOINTS
            if self.gateway.apps.serves(endpoint)
            for path in (endpoint.path, "/v1" + endpoint.path, *endpoint.also)
        }
        received = [endpoint for endpoint in UPLOADS if endpoint.name in self.gateway.apps.handlers]
        self._uploads = {prefix + endpoint.path: endpoint for endpoint in received for prefix in ("", "/v1")}

    def endpoint_of(self, url: bytes) -> Endpoint | None:
        """The inference endpoint of a POST to this path (with or without a query); None for any other path."""
        return self._endpoints.get(url.partition(b"?")[0] if b"?" in url else url)

    def limit_of(self, path: str) -> int:
        """The most bytes of a request body to this path, which is none of inference. What surrounds an uploaded file
        in its form has to fit too."""
        server = self.gateway.snapshot.server
        return server.max_file + FORM_MOST if path in self.gateway.apps.uploads else server.max_body

    def page_of(self, path: str) -> Page | None:
        """The page of a polled path; None for any other path."""
        return self._polled.get(path) or models.page_of(self.gateway, path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        path = scope.get("path", "")
        endpoint = self.endpoint_of(path.encode()) if scope["type"] == "http" else None
        form = self._uploads.get(path)
        if endpoint is None and form is None:
            await self._beside_inference(path, scope, receive, send)
            return
        exchange, apps = AsgiExchange(scope, receive, send, self.gateway.memory), self.gateway.apps
        if form is not None and scope["method"] == "POST":
            await apps.handlers[form.name](self.gateway.services, form, exchange).run()
        elif endpoint is not None and scope["method"] == "POST":
            handler = apps.handlers.get(endpoint.name, RequestHandler)
            await handler(self.gateway.services, endpoint, apps.translated(endpoint, exchange)).run()
        else:
            asks = b"websocket" in exchange.headers.get(b"upgrade", b"").lower()
            wrong = WrongMethod(path, scope["method"], "POST", upgrade=asks)
            await send_whole(exchange, wrong.status, wrong.envelope(), wrong.headers())

    async def _live(self, receive: Receive, send: Send) -> None:
        """ASGI's lifespan: the gateway is open in between."""
        phase = "startup"
        try:
            await receive()
            await self.gateway.open()
            await send({"type": "lifespan.startup.complete"})
            phase = "shutdown"
            await receive()
            await self.gateway.close()
        except BaseException:
            await send({"type": f"lifespan.{phase}.failed", "message": traceback.format_exc()})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    async def _beside_inference(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._polled_answer(path, scope) if scope["type"] == "http" else None
        api = self._api
        if answer is None and api is None:
            try:
                api = await self._build_api()
            except Exception as error:
                answer = self._answer_to(error)
        if answer is not None:
            await _send(send, answer)
        elif api is not None:
            await api(scope, bounded(receive, self.limit_of(path)), send)

    async def _polled_answer(self, path: str, scope: Scope) -> PageAnswer | None:
        """None for a path that FastAPI may serve."""
        page = self.page_of(path)
        if page is None:
            unknown = path.removeprefix("/v1").strip("/").partition("/")[0] not in self.beginnings
            return error_answer(GatewayError("not_found", f"No such path: {path}")) if unknown else None
        try:
            if scope["method"] not in ("GET", "HEAD"):  # of an answer to HEAD the server sends the head alone
                raise WrongMethod(path, scope["method"], "GET, HEAD")
            return await page(caller_of(scope))
        except Exception as error:
            return self._answer_to(error)

    def _answer_to(self, error: Exception) -> PageAnswer:
        """Raises the error again if it is a defect."""
        shown = client_error(self.gateway, error)
        if shown is None:
            raise error
        return error_answer(shown)

    async def _build_api(self) -> FastAPI:
        """FastAPI and the routers, in a thread: importing them takes a quarter of a second, and streams go on."""
        async with self._building:
            if self._api is None:
                self._api = await asyncio.to_thread(_build_api, self.gateway)
            return self._api


def _build_api(gateway: Gateway) -> FastAPI:
    from gateway.api.app import build_api

    return build_api(gateway)


async def _send(send: Send, answer: PageAnswer) -> None:
    length = str(len(answer.body)).encode()
    headers = [(b"content-type", answer.content_type.encode()), (b"content-length", length), *answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
