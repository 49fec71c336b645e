"""`/v1/files` and `/v1/batches`: OpenAI's batch API on the gateway's own backends. A client sees its own files and
batches only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.admission.memory import Share
from gateway.admission.origins import check_json
from gateway.api.answering import body_as, until_left
from gateway.api.caller import admit, caller_of, keeping, owner_of
from gateway.apps.batches.batches import PIECE, PURPOSES, Batches
from gateway.apps.batches.records import PARAM, BatchRecord, FileRecord, schedule_of
from gateway.apps.batches.store import DAY, NoEntry, Page
from gateway.errors import GatewayError
from gateway.proxy.header_map import header_map
from gateway.runtime.gateway import Gateway
from gateway.transport.multipart import MultipartError, read_form

KIND = "application/octet-stream"
PAGE_MOST = 10_000  # entries of a list
EXPIRY = (3600, 30 * DAY)  # seconds that `expires_after` may say
BATCHES_MOST = 100  # batches of one page
PAIRS_MOST = 16  # of `metadata`
KEY_MOST, VALUE_MOST = 64, 512  # characters


def files_router(gateway: Gateway, batches: Batches) -> APIRouter:
    routes = APIRouter()

    async def upload(request: Request) -> Response:
        """A form with `purpose` and `file`. The file goes to the disk as it comes."""
        owner, privacy, share = keeping(gateway, request.scope)
        async with batches.upload(owner, share) as new:
            try:
                pieces, kind = request.stream(), request.headers.get("content-type", "")
                form = await read_form(kind, pieces, new.write, share.add)
            except MultipartError as wrong:
                raise GatewayError("invalid_request_body", f"This is no upload of a file: {wrong}.") from None
            if form.file is None:
                raise GatewayError("invalid_request_body", "The form has no `file`.", param="file")
            purpose = form.fields.get("purpose", "")
            if purpose not in PURPOSES:
                message = f"`purpose` must be one of {', '.join(PURPOSES)}."
                raise GatewayError("invalid_request_body", message, param="purpose")
            expires_at = _expiry(form.fields)
            kept = await new.keep(form.file.filename or "file", purpose, expires_at, privacy)
            return JSONResponse(kept.as_json())

    async def list_files(request: Request) -> Response:
        """Newest first; `purpose`, `limit`, `order`, `after`."""
        found = await batches.files(owner_of(gateway, request.scope))
        purpose = request.query_params.get("purpose")
        page = asked_page(request, PAGE_MOST)
        return listed(page, part_of(page, [one for one in found if purpose is None or one.purpose == purpose]))

    async def get_file(request: Request, name: str) -> Response:
        return JSONResponse((await batches.file(owner_of(gateway, request.scope), name)).as_json())

    async def content(request: Request, name: str) -> Response:
        """The bytes of the file."""
        owner, _, share = keeping(gateway, request.scope)
        record = await batches.file(owner, name)
        path = batches.path_of(record)
        if path is not None:
            return FileResponse(path, media_type=KIND)
        share.add(min(record.bytes, 2 * PIECE))  # the piece that is read, and the one that is sent
        return StoredFile(record, batches.content(record), share)

    async def delete_file(request: Request, name: str) -> Response:
        await batches.delete_file(owner_of(gateway, request.scope), name)
        return JSONResponse({"id": name, "object": "file", "deleted": True})

    for prefix in ("/v1", ""):
        routes.add_api_route(f"{prefix}/files", upload, methods=["POST"])
        routes.add_api_route(f"{prefix}/files", list_files, methods=["GET"])
        routes.add_api_route(f"{prefix}/files/{{name}}", get_file, methods=["GET"])
        routes.add_api_route(f"{prefix}/files/{{name}}/content", content, methods=["GET"])
        routes.add_api_route(f"{prefix}/files/{{name}}", delete_file, methods=["DELETE"])
    return routes


class NewBatch(msgspec.Struct):
    """The body of a new batch."""

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None
    output_expires_after: dict[str, Any] | None = None


def batches_router(gateway: Gateway, batches: Batches) -> APIRouter:
    routes = APIRouter()

    async def create(request: Request) -> Response:
        """Begin a batch with the lines of an uploaded file."""
        owner, privacy, _ = keeping(gateway, request.scope)
        check_json(header_map(request.scope["headers"]))
        new = await body_as(gateway, request, NewBatch)
        _check_metadata(new.metadata or {})
        asked = new.input_file_id, new.endpoint, new.completion_window, new.metadata
        schedule = schedule_of(new.metadata, gateway.snapshot.modes)
        if schedule is not None and schedule.mode:
            admit(gateway, caller_of(request.scope), f"a batch that switches the mode ({PARAM})")
        kept, after = None, new.output_expires_after
        if after is not None:
            kept = seconds_kept("output_expires_after", after.get("anchor"), after.get("seconds"))
        record = await batches.create(owner, *asked, kept=kept, privacy=privacy, schedule=schedule)
        return JSONResponse(record.as_json())

    async def list_batches(request: Request) -> Response:
        """Newest first; `limit`, `after`."""
        owner, page = owner_of(gateway, request.scope), asked_page(request, BATCHES_MOST)
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


def _check_metadata(pairs: dict[str, str]) -> None:
    if len(pairs) > PAIRS_MOST or any(len(key) > KEY_MOST or len(value) > VALUE_MOST for key, value in pairs.items()):
        message = f"`metadata` may have {PAIRS_MOST} pairs, keys of {KEY_MOST} and values of {VALUE_MOST} characters."
        raise GatewayError("invalid_request_body", message, param="metadata")


class StoredFile(Response):
    """A file whose content is in no file of the disk, piece by piece. Ends when the reader leaves. `share` counts the
    pieces."""

    media_type = KIND

    def __init__(self, record: FileRecord, pieces: AsyncIterator[bytes], share: Share) -> None:
        super().__init__()
        self.headers["content-length"] = str(record.bytes)
        self._pieces = pieces
        self._share = share

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = asyncio.create_task(until_left(receive))
        try:
            piece: bytes | None = await anext(self._pieces, None)  # an error before the head has an answer of its own
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while piece is not None and not left.done():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                piece = await anext(self._pieces, None)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            left.cancel()
            self._share.close()


def asked_page(request: Request, most: int) -> Page:
    """The page of a list that the query asks for. Raises `invalid_request_body`."""
    asked = request.query_params
    limit = asked.get("limit", str(min(most, 20 if most < PAGE_MOST else most)))
    if not _is_number(limit) or not 1 <= int(limit) <= most:
        raise GatewayError("invalid_request_body", f"`limit` must be a number from 1 to {most}.", param="limit")
    order = asked.get("order", "desc")
    if order not in ("asc", "desc"):
        raise GatewayError("invalid_request_body", "`order` must be asc or desc.", param="order")
    return Page(int(limit), asked.get("after"), order == "desc")


def part_of(page: Page, found: list[FileRecord]) -> list[FileRecord]:
    """This page of all files, the newest first, and one file more where there are more."""
    found = found if page.descending else found[::-1]
    if page.after is not None:
        names = [one.id for one in found]
        if page.after not in names:
            raise no_entry(page)
        found = found[names.index(page.after) + 1 :]
    return found[: page.limit + 1]


def no_entry(page: Page) -> GatewayError:
    message = f"`after` is no entry of this list: {(page.after or '')[:100]}"
    return GatewayError("invalid_request_body", message, param="after")


def listed(page: Page, found: Sequence[FileRecord | BatchRecord]) -> Response:
    """A page as OpenAI shows it: `{object, data, first_id, last_id, has_more}`. `found`: its entries, and one more
    where there are more."""
    shown = found[: page.limit]
    ends = {"first_id": shown[0].id, "last_id": shown[-1].id} if shown else {"first_id": None, "last_id": None}
    data = [one.as_json() for one in shown]
    return JSONResponse({"object": "list", "data": data, **ends, "has_more": len(found) > len(shown)})


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _expiry(fields: dict[str, str]) -> int | None:
    """Unix seconds; None = kept."""
    seconds = fields.get("expires_after[seconds]")
    if seconds is None:
        return None
    number = int(seconds) if _is_number(seconds) else None
    return int(time.time()) + seconds_kept("expires_after", fields.get("expires_after[anchor]"), number)


def seconds_kept(param: str, anchor: object, seconds: object) -> int:
    """The seconds for which a file is to be kept, as the field `param` of a request says. Raises
    `invalid_request_body`."""
    if anchor != "created_at" or type(seconds) is not int:
        message = f"`{param}` needs anchor created_at and seconds."
        raise GatewayError("invalid_request_body", message, param=param)
    least, most = EXPIRY
    if not least <= seconds <= most:
        raise GatewayError("invalid_request_body", f"`{param}` must be {least} to {most} seconds.", param=param)
    return seconds
