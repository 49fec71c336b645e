"""The operators' endpoints and those of apps, with FastAPI."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from gateway import __version__
from gateway.api import admin
from gateway.api.caller import client_error
from gateway.errors import GatewayError, WrongMethod
from gateway.proxy.exchange import ClientGone
from gateway.runtime.gateway import Gateway

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def build_api(gateway: Gateway) -> FastAPI:
    """The app for all paths but the inference POSTs and what is polled (ops.py, models.py). Unknown paths are a 404 at
    once; nothing is ever forwarded. Opens no connection and needs no event loop."""

    async def shortages(request: Request, error: Exception) -> Response:
        shown = client_error(gateway, error)
        if shown is None:
            raise error
        return await _answer_error(request, shown)

    api = FastAPI(
        title="spark-gateway",
        version=__version__,
        openapi_url=None,
        redirect_slashes=False,
        # The gateway has its own.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        exception_handlers={
            GatewayError: _answer_error,
            HTTPException: _answer_http_error,
            RequestValidationError: _answer_invalid,
            ClientDisconnect: _answer_nobody,
            OSError: shortages,
            MemoryError: shortages,
            RuntimeError: shortages,
            ClientGone: _answer_nobody,
        },
    )
    for router in gateway.apps.routers():
        api.include_router(router)
    api.include_router(admin.router(gateway))
    return api


async def _answer_nobody(_: Request, __: Exception) -> Response:
    """The client has left before its body had come."""
    return Response(status_code=499)


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return Response(error.envelope(), error.status, headers, "application/json")


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return await _answer_error(request, GatewayError("invalid_request_body", f"The request is not valid: {wrong}"))


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        wrong = WrongMethod(request.url.path, request.method, ", ".join(_methods_of(request)))
        return await _answer_error(request, wrong)
    if error.status_code == 404:
        return await _answer_error(request, GatewayError("not_found", f"No such path: {request.url.path}"))
    message = f"The request is not valid: {error.detail}"
    return await _answer_error(request, GatewayError("invalid_request_body", message, status=error.status_code))


def _methods_of(request: Request) -> list[str]:
    """The methods that the path of this request takes. Each is a route of its own, so the first that fits the path does
    not know the others."""

    def takes(method: str) -> bool:
        asked = {**request.scope, "method": method}
        return any(route.matches(asked)[0] is Match.FULL for route in request.app.routes)

    return [method for method in METHODS if takes(method)]
