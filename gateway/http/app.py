"""The ASGI app: inference POSTs go straight to the request handler, everything else to FastAPI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.api import build_api
from gateway.config.snapshot import Snapshot
from gateway.dialects.registry import translated
from gateway.domain.request import ENDPOINTS, UPLOADS, Endpoint
from gateway.errors import GatewayError
from gateway.proxy.audio import UploadHandler, handler_of
from gateway.proxy.exchange import AsgiExchange, Receive, Scope, Send, bounded
from gateway.proxy.reply import send_whole
from gateway.runtime.gateway import Gateway

if TYPE_CHECKING:
    from fastapi import FastAPI

FILES = ("/v1/files", "/files")
FORM_MOST = 1024 * 1024  # bytes of a form beside its file


class App:
    """Looks up inference paths itself, so that they skip the router, middleware and response classes. On the
    gateway's own listener inference requests do not pass here at all (connection.py)."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.gateway = Gateway(snapshot)
        self.api: FastAPI = build_api(self.gateway, self._lifespan)
        self._endpoints = {
            (prefix + endpoint.path).encode(): endpoint for endpoint in ENDPOINTS for prefix in ("", "/v1")
        }
        self._uploads = {prefix + endpoint.path: endpoint for endpoint in UPLOADS for prefix in ("", "/v1")}

    def endpoint_of(self, url: bytes) -> Endpoint | None:
        """The inference endpoint of a POST to this path (with or without a query); None for any other path."""
        return self._endpoints.get(url.partition(b"?")[0] if b"?" in url else url)

    def limit_of(self, path: str) -> int:
        """The most bytes of a request body to this path, which is none of inference. What surrounds an uploaded file
        in its form has to fit too."""
        server = self.gateway.snapshot.server
        return server.max_file + FORM_MOST if path in FILES else server.max_body

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        await self.gateway.open()
        try:
            yield
        finally:
            await self.gateway.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self.endpoint_of(scope["path"].encode()) if scope["type"] == "http" else None
        form = self._uploads.get(scope.get("path", ""))
        if form is not None and scope["method"] == "POST":
            exchange = AsgiExchange(scope, receive, send, self.gateway.memory)
            await UploadHandler(self.gateway.services, form, exchange).run()
        elif endpoint is None and form is None:
            await self.api(scope, bounded(receive, self.limit_of(scope.get("path", ""))), send)
        elif endpoint is not None and scope["method"] == "POST":
            exchange = AsgiExchange(scope, receive, send, self.gateway.memory)
            await handler_of(self.gateway.services, endpoint, translated(self.gateway, endpoint, exchange)).run()
        else:
            wrong = GatewayError("method_not_allowed", f"{scope['path']} takes POST.")
            exchange = AsgiExchange(scope, receive, send, self.gateway.memory)
            await send_whole(exchange, wrong.status, wrong.envelope(), [(b"allow", b"POST")])
