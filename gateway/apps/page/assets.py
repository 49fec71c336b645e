"""`GET /`: the status page. Static files of `gateway/web`, read once; they have no data, so they need no key."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway.errors import GatewayError

FOLDER = Path(__file__).parents[2] / "web"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# No other origin, nothing inline, no framing: text of a model or a name can never run as a script.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "media-src blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Asset(NamedTuple):
    body: bytes
    content_type: str
    etag: str


def router() -> APIRouter:
    """`/`, and the page's files under `/web/`."""
    routes = APIRouter()
    assets = dict(read_assets())

    def answer(request: Request, asset: Asset) -> Response:
        headers = {
            "content-security-policy": POLICY,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",  # cached, but revalidated: another version of the gateway has another page
            "etag": asset.etag,
        }
        if request.headers.get("if-none-match") == asset.etag:
            return Response(status_code=304, headers=headers)
        return Response(asset.body, media_type=asset.content_type, headers=headers)

    @routes.head("/", include_in_schema=False)
    @routes.get("/")
    async def page(request: Request) -> Response:
        return answer(request, assets["index.html"])

    @routes.get("/web/{name:path}")
    async def asset(request: Request, name: str) -> Response:
        found = assets.get(name)
        if found is None:
            raise GatewayError("not_found", f"No such path: {request.url.path}")
        return answer(request, found)

    return routes


def read_assets() -> Iterator[tuple[str, Asset]]:
    """(path below FOLDER, file) of the files that a page may load."""
    for path in sorted(FOLDER.rglob("*")):
        content_type = TYPES.get(path.suffix)
        if path.is_file() and content_type is not None:
            body = path.read_bytes()
            yield path.relative_to(FOLDER).as_posix(), Asset(body, content_type, f'"{sha256(body).hexdigest()[:16]}"')
