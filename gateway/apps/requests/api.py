"""`/admin/requests`: the last requests and those that run. An admin sees all, a client its own."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from gateway.api.admin import admit
from gateway.api.answering import body_as
from gateway.api.caller import caller_of, identify_caller
from gateway.apps.requests.capture import LONGEST
from gateway.apps.requests.replay import replay
from gateway.apps.requests.requests import Requests, matches
from gateway.apps.requests.store import FOUND_MOST, CapturedRequest, Search
from gateway.apps.requests.story import story, told_running
from gateway.config.units import parse_duration
from gateway.errors import GatewayError
from gateway.runtime.gateway import Gateway

log = logging.getLogger("gateway.apps.requests")

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
    ) -> Response:
        """`{running: [...], requests: [...], kept: {...}, capture}`. `outcome`: one of the log's, or `failed`. `id`:
        its beginning; `q`: that, or a part of the other four. `after`, `before`: the `number` of a request."""
        who, mine = _sees(gateway, request)
        wanted = {"client": client, "alias": alias, "backend": backend}
        equal = {name: value for name, value in wanted.items() if value is not None}
        running = [] if outcome else requests.running.rows(mine, id)
        running = [row for row in running if equal.items() <= row.items() and matches(row, q)]
        if outcome not in (None, "", FAILED):
            equal["outcome"] = outcome
        own = equal | ({"client": mine} if mine is not None else {})
        found = b"[]"
        if mine is None or client in (None, mine):
            search = Search(id, q, own, outcome == FAILED, after, before, limit)
            found = await _search(requests, who, lambda: msgspec.json.encode(requests.find(search)))
        capture = requests.capture.describe() if mine is None else None  # whose bodies are captured is not for all
        kept = requests.kept()
        answer = {"running": running, "requests": msgspec.Raw(found), "kept": kept, "capture": capture}
        return Response(msgspec.json.encode(answer), media_type="application/json", headers=FRESH)

    @routes.get("/{id}")
    async def one(request: Request, id: str) -> JSONResponse:
        """`{request, story, others}`: the last one of this id, in fields and in sentences. Clients choose ids, so there
        may be `others`."""
        who, mine = _sees(gateway, request)
        running = [row for row in requests.running.rows(mine, id) if row["id"] == id]
        own = {"client": mine} if mine is not None else {}
        search = Search(id, equal=own)
        past = [row for row in await _search(requests, who, lambda: requests.find(search)) if row["id"] == id]
        if not (running or past):
            raise _unknown(requests, id)
        shown = running[-1] if running else past[0]
        told = told_running(shown) if running else story(shown)
        answer = {"request": shown, "running": bool(running), "story": told, "others": len(running) + len(past) - 1}
        answer["captured"] = mine is None and await _captured(requests, id) is not None
        return JSONResponse(answer, headers=FRESH)

    @routes.delete("/{id}")
    async def cancel(request: Request, id: str) -> JSONResponse:
        """Ends what runs with this id; its client gets `request_cancelled`."""
        if not (cancelled := requests.running.cancel(_sees(gateway, request)[1], id)):
            raise GatewayError("not_found", f"No request with the id '{id[:100]}' is running.")
        return JSONResponse({"id": id, "cancelled": cancelled})

    @routes.post("/{id}/replay")
    async def send_again(request: Request, id: str) -> JSONResponse:
        """Sends a captured request again, `{"on": BACKEND}` to this one alone: `{id, backend, status, then, now}`, with
        what the two answers say."""
        admit(gateway, request)
        on = (await body_as(gateway, request, Replay)).on
        captured = await _captured(requests, id)
        if captured is None:
            message = f"The body of '{id[:100]}' was not captured, or is older than a day: see POST /admin/capture."
            raise GatewayError("not_found", message)
        return JSONResponse(await replay(gateway, captured, on), headers=FRESH)

    return routes


def capture_router(gateway: Gateway, requests: Requests) -> APIRouter:
    routes = APIRouter(prefix="/admin/capture")

    @routes.post("")
    async def begin(request: Request) -> JSONResponse:
        """`{"for": "15m", "client": NAME}`: keep the bodies of requests (of this client, else of all) for so long; `0s`
        ends it. Answers `{capture: {until, client, requests, bytes}}`, null where it is off."""
        admit(gateway, request)
        wanted = await body_as(gateway, request, Wanted)
        try:
            seconds = parse_duration(wanted.for_)
        except ValueError:
            raise GatewayError("invalid_request_body", "`for` is a duration: 15m, 1h, 0s.", param="for") from None
        if seconds > LONGEST:
            raise GatewayError("invalid_request_body", "`for` is a day (24h) at most.", param="for")
        clients = gateway.snapshot.clients_by_owner
        if wanted.client is not None and wanted.client not in clients:
            raise GatewayError("not_found", f"There is no client '{wanted.client[:100]}'.", param="client")
        if seconds:
            requests.capture.begin(seconds, wanted.client)
            log.warning("bodies are captured for %s, of %s", wanted.for_, wanted.client or "all clients")
        else:
            requests.capture.end()
        return JSONResponse({"capture": requests.capture.describe()})

    return routes


class Wanted(msgspec.Struct):
    """A capture. `client` None: of all."""

    for_: str = msgspec.field(name="for")
    client: str | None = None


class Replay(msgspec.Struct):
    """`on` None: by the alias that the request names."""

    on: str | None = None


Found = TypeVar("Found")


async def _captured(requests: Requests, id: str) -> CapturedRequest | None:
    return await _in_thread(lambda: requests.captured.get(id, time.time()), "Captured bodies")


def _sees(gateway: Gateway, request: Request) -> tuple[str, str | None]:
    """(who asks, the client whose requests it sees; None: all). Raises as `caller.admit`."""
    identity = identify_caller(gateway, caller_of(request.scope))
    if identity.client is not None and not identity.client.admin:
        return identity.name, identity.label
    admit(gateway, request)
    return identity.name, None


async def _search(requests: Requests, who: str, search: Callable[[], Found]) -> Found:
    """What is found. One search of a caller at a time: they take the disk's thread and the CPU from others."""
    async with requests.searches.turn(who):
        return await _in_thread(search, "The past requests")


async def _in_thread(read: Callable[[], Found], what: str) -> Found:
    try:
        return await asyncio.to_thread(read)
    except (sqlite3.Error, OSError) as error:
        raise GatewayError("internal_error", f"{what} cannot be read: {error}.", status=503) from None


def _unknown(requests: Requests, id: str) -> GatewayError:
    kept = requests.kept()
    what = f"the last {kept['keep']:,} of {kept['days']} days are kept" if kept["keep"] else "none are kept"
    return GatewayError("not_found", f"No request with the id '{id[:100]}' is known: {what} (server.requests).")
