"""What the endpoints beside inference that read a body have in common: their answers are sent by the framework."""

from __future__ import annotations

from fastapi.responses import Response
from starlette.types import Message


def plain(status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> Response:
    """An answer in JSON."""
    return Response(body, status, {k.decode(): v.decode("latin-1") for k, v in headers}, "application/json")


async def unsent(_: Message) -> None:
    """A `send` that does nothing, for an exchange that only reads."""
