"""`/admin`: operations for operators of the running gateway."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from gateway.api.answering import body_of, fields_of
from gateway.api.caller import admit as admit_caller
from gateway.api.caller import caller_of
from gateway.config.problems import ConfigError, NotRead
from gateway.domain.backend import BackendState
from gateway.errors import GatewayError, exhausted
from gateway.runtime.gateway import Gateway

CONFIRM_OPEN = "open"  # the value of `confirm` that allows an edit to open the gateway


def router(gateway: Gateway) -> APIRouter:
    """`POST /admin/backends/{name}/drain | resume`, `POST /admin/reload`."""
    routes = APIRouter(prefix="/admin")

    @routes.post("/backends/{name}/drain")
    async def drain_backend(request: Request, name: str) -> Response:
        """Requests that run there may end, and no new ones are sent, until it is resumed or the gateway restarts."""
        admit(gateway, request)
        state = backend_of(gateway, name)
        state.evidence.drain()
        return JSONResponse(drain_status(state))

    @routes.post("/backends/{name}/resume")
    async def resume_backend(request: Request, name: str) -> Response:
        """Ends a drain; changes nothing for a backend that is not draining."""
        admit(gateway, request)
        state = backend_of(gateway, name)
        state.evidence.resume()
        return JSONResponse(drain_status(state))

    @routes.post("/reload")
    async def reload(request: Request) -> Response:
        """Read routes.yaml again: `{path, changes, restart, warnings}`. `{"confirm": "open"}`: also if the file
        opens the gateway. Raises `invalid_config` with every mistake."""
        admit(gateway, request)
        async with body_of(gateway, request) as body:
            confirmed = _confirmed(body)
        if gateway.reloader is None:
            raise GatewayError("not_found", "This gateway was not started from a file.")
        path = gateway.reloader.path
        try:
            taken = await gateway.reloader.reload(may_open=confirmed)
        except NotRead as error:
            gateway.short_of(error.kind)
            raise exhausted(error.kind) from None
        except ConfigError as error:
            message = f"{path} is not valid, what was before stays in force:\n{error}"
            raise GatewayError("invalid_config", message) from None
        answer = {"changes": taken.changes, "restart": taken.restart, "warnings": taken.warnings}
        return JSONResponse({"path": str(path), **answer})

    return routes


def _confirmed(body: bytes) -> bool:
    """Does the body of a reload confirm that an edit may open the gateway? Raises `invalid_request_body`."""
    if not body.strip():
        return False
    fields = fields_of(body)
    if fields.get("confirm") not in (None, CONFIRM_OPEN):
        raise GatewayError("invalid_request_body", 'The only word that `confirm` takes is "open".', param="confirm")
    return fields.get("confirm") == CONFIRM_OPEN


def drain_status(state: BackendState) -> dict[str, Any]:
    """`{backend, state, reason, inflight}`: a drain is complete when `inflight` is 0."""
    health = state.health
    return {
        "backend": state.name, "state": health.state.value, "reason": health.reason, "inflight": state.inflight
    }  # fmt: skip


def backend_of(gateway: Gateway, name: str) -> BackendState:
    """The backend of this name. Raises `not_found`."""
    state = gateway.fleet.states.get(name)
    if state is None:
        close = get_close_matches(name, gateway.fleet.states, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise GatewayError("not_found", f"There is no backend '{name}'.{hint}")
    return state


# -- permission -----------------------------------------------------------------------------------------------------


def admit(gateway: Gateway, request: Request) -> None:
    """Admits whoever may operate the gateway; see `caller.admit`, which says what it raises."""
    admit_caller(gateway, caller_of(request.scope))


def may_admin(gateway: Gateway, request: Request) -> bool:
    """Would `/admin` admit this caller?"""
    try:
        admit(gateway, request)
    except GatewayError:
        return False
    return True
