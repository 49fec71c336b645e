"""`/admin/requests`: the last requests and those that run. An admin sees all, a client its own."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from gateway.api.admin import admit
from gateway.api.caller import caller_of, identify_caller
from gateway.apps.requests.requests import Requests
from gateway.apps.requests.running import matches
from gateway.apps.requests.store import FOUND_MOST, Search
from gateway.apps.requests.story import story, told_running
from gateway.errors import GatewayError
from gateway.runtime.gateway import Gateway

FAILED = "failed"  # the outcome that stands for every failure of the gateway's or a backend's
FRESH = {"cache-control": "no-store"}
Number = Annotated[int, Query(ge=0, le=2**62)]


def router(gateway: Gateway, requests: Requests) -> APIRouter:
    routes = APIRouter(prefix="/admin/requests")

    @routes.get("")
    async def listed(
        request: Request,
        client: str | None = None,
        alias: str | None = None,
        backend: str | None = None,
        outcome: str | None = None,
        id: str = "",
        q: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=FOUND_MOST)] = 100,
        after: Number = 0,
        before: Number | None = None,
    ) -> JSONResponse:
        """`{running: [...], requests: [...], kept: {...}}`. `outcome`: one of the log's, or `failed`. `id`: its
        beginning; `q`: that, or a part of the other four. `after`, `before`: the `number` of a request."""
        mine = _sees(gateway, request)
        wanted = {"client": client, "alias": alias, "backend": backend}
        equal = {name: value for name, value in wanted.items() if value is not None}
        running = [] if outcome else requests.running.rows(mine, id)
        running = [row for row in running if equal.items() <= row.items() and matches(row, q)]
        if outcome not in (None, "", FAILED):
            equal["outcome"] = outcome
        own = equal | ({"client": mine} if mine is not None else {})
        found: list[dict[str, Any]] = []
        if mine is None or client in (None, mine):
            found = await _find(requests, Search(id, q, own, outcome == FAILED, after, before, limit))
        return JSONResponse({"running": running, "requests": found, "kept": requests.kept()}, headers=FRESH)

    @routes.get("/{id}")
    async def one(request: Request, id: str) -> JSONResponse:
        """`{request, story, others}`: the last one of this id, in fields and in sentences. Clients choose ids, so there
        may be `others`."""
        mine = _sees(gateway, request)
        running = [row for row in requests.running.rows(mine, id) if row["id"] == id]
        own = {"client": mine} if mine is not None else {}
        past = [row for row in await _find(requests, Search(id, equal=own)) if row["id"] == id]
        if not (running or past):
            raise _unknown(requests, id)
        shown = running[-1] if running else past[0]
        told = told_running(shown) if running else story(shown)
        answer = {"request": shown, "running": bool(running), "story": told, "others": len(running) + len(past) - 1}
        return JSONResponse(answer, headers=FRESH)

    @routes.delete("/{id}")
    async def cancel(request: Request, id: str) -> JSONResponse:
        """Ends what runs with this id; its client gets `request_cancelled`."""
        if not (cancelled := requests.running.cancel(_sees(gateway, request), id)):
            raise GatewayError("not_found", f"No request with the id '{id[:100]}' is running.")
        return JSONResponse({"id": id, "cancelled": cancelled})

    return routes


def _sees(gateway: Gateway, request: Request) -> str | None:
    """The client whose requests the caller sees; None: all. Raises as `caller.admit`."""
    identity = identify_caller(gateway, caller_of(request.scope))
    if identity.client is not None and not identity.client.admin:
        return identity.label
    admit(gateway, request)
    return None


async def _find(requests: Requests, search: Search) -> list[dict[str, Any]]:
    try:
        return await asyncio.to_thread(requests.find, search)
    except (sqlite3.Error, OSError) as error:
        raise GatewayError("internal_error", f"The past requests cannot be read: {error}.", status=503) from None


def _unknown(requests: Requests, id: str) -> GatewayError:
    kept = requests.kept()
    what = f"the last {kept['keep']:,} of {kept['days']} days are kept" if kept["keep"] else "none are kept"
    return GatewayError("not_found", f"No request with the id '{id[:100]}' is known: {what} (server.requests).")
