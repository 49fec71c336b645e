"""`/v1/batches`: OpenAI's batch API on the gateway's own backends. A client sees its own batches only."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from gateway.admission.origins import check_json
from gateway.api.answering import body_of
from gateway.api.caller import admit, caller_of, keeping, owner_of
from gateway.apps.batches.batches import Batches
from gateway.apps.batches.files_api import asked_page, listed, no_entry, seconds_kept
from gateway.apps.batches.schedule import PARAM, schedule_of
from gateway.apps.batches.store import NoEntry
from gateway.errors import GatewayError
from gateway.proxy.header_map import header_map
from gateway.runtime.gateway import Gateway

PAGE_MOST = 100  # batches of one page
PAIRS_MOST = 16  # of `metadata`
KEY_MOST, VALUE_MOST = 64, 512  # characters


class NewBatch(msgspec.Struct):
    """The body of a new batch."""

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None
    output_expires_after: dict[str, Any] | None = None


def router(gateway: Gateway, batches: Batches) -> APIRouter:
    routes = APIRouter()

    async def create(request: Request) -> Response:
        """Begin a batch with the lines of an uploaded file."""
        owner, privacy, _ = keeping(gateway, request.scope)
        check_json(header_map(request.scope["headers"]))
        async with body_of(gateway, request) as body:
            new = _new_batch(body)
        asked = new.input_file_id, new.endpoint, new.completion_window, new.metadata
        schedule = schedule_of(new.metadata, gateway.snapshot.modes)
        if schedule is not None and schedule.mode:
            admit(gateway, caller_of(request.scope), f"a batch that switches the mode ({PARAM})")
        kept = _seconds_kept(new)
        record = await batches.create(owner, *asked, kept=kept, privacy=privacy, schedule=schedule)
        return JSONResponse(record.as_json())

    async def list_batches(request: Request) -> Response:
        """Newest first; `limit`, `after`."""
        owner, page = owner_of(gateway, request.scope), asked_page(request, PAGE_MOST)
        try:
            return listed(page, await batches.batches(owner, page))
        except NoEntry:
            raise no_entry(page) from None

    async def get_batch(request: Request, name: str) -> Response:
        record = await batches.batch(owner_of(gateway, request.scope), name)
        return JSONResponse(record.as_json(batches.waits(record)))

    async def cancel(request: Request, name: str) -> Response:
        return JSONResponse((await batches.cancel(owner_of(gateway, request.scope), name)).as_json())

    for prefix in ("/v1", ""):
        routes.add_api_route(f"{prefix}/batches", create, methods=["POST"])
        routes.add_api_route(f"{prefix}/batches", list_batches, methods=["GET"])
        routes.add_api_route(f"{prefix}/batches/{{name}}", get_batch, methods=["GET"])
        routes.add_api_route(f"{prefix}/batches/{{name}}/cancel", cancel, methods=["POST"])
    return routes


def _seconds_kept(new: NewBatch) -> int | None:
    """How long the files that the batch writes are kept; None = as long as usual."""
    asked = new.output_expires_after
    return None if asked is None else seconds_kept("output_expires_after", asked.get("anchor"), asked.get("seconds"))


def _new_batch(body: bytes) -> NewBatch:
    try:
        new = msgspec.json.decode(body, type=NewBatch)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GatewayError("invalid_request_body", f"The request body is not valid: {error}") from None
    pairs = new.metadata or {}
    if len(pairs) > PAIRS_MOST or any(len(key) > KEY_MOST or len(value) > VALUE_MOST for key, value in pairs.items()):
        message = f"`metadata` may have {PAIRS_MOST} pairs, keys of {KEY_MOST} and values of {VALUE_MOST} characters."
        raise GatewayError("invalid_request_body", message, param="metadata")
    return new
