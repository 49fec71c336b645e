"""A request of the Messages API and its answer, for the exchange around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.apps.dialects.anthropic.answer import to_message
from gateway.apps.dialects.anthropic.errors import envelope, retry_header
from gateway.apps.dialects.anthropic.request import chat_of
from gateway.apps.dialects.anthropic.stream import MessageStream
from gateway.domain.request import OwnForm
from gateway.proxy.reply import listed


class MessageTranslation:
    """A `Translation` (translated.py)."""

    __slots__ = ("_left_out", "_request_id", "_stream", "session")

    own: OwnForm | None = None
    stream_type: bytes | None = None

    def __init__(self) -> None:
        self.session: bytes | None = None
        self._left_out: list[str] = []
        self._request_id = ""
        self._stream = MessageStream("")

    def request(self, body: bytes) -> bytes:
        chat, self._left_out, self.session = chat_of(body)
        return chat

    def held(self) -> int:
        return 0

    def begin(self, request_id: str) -> list[tuple[bytes, bytes]]:
        self._request_id = request_id
        self._stream = MessageStream(request_id)
        left_out = [(b"x-gateway-left-out", listed(self._left_out))] if self._left_out else []
        return [(b"request-id", request_id.encode("latin-1")), *left_out]

    def whole(self, body: bytes) -> bytes:
        return to_message(body, "msg_" + self._request_id)

    def error(self, status: int, body: bytes) -> tuple[bytes, dict[bytes, bytes]]:
        return envelope(status, body, self._request_id), retry_header(status)

    def events(self, events: Iterable[bytes], hold: Callable[[int], object]) -> bytes:
        return self._stream.translate(events)
