"""A request of the Messages API and its answer, for the exchange around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.apps.dialects.anthropic.answer import envelope, retry_header, to_message
from gateway.apps.dialects.anthropic.request import chat_of
from gateway.apps.dialects.anthropic.stream import MessageStream
from gateway.apps.dialects.translated import Translation


class MessageTranslation(Translation):
    def __init__(self) -> None:
        self._request_id = ""
        self._stream = MessageStream("")

    def request(self, body: bytes) -> bytes:
        chat, self.left_out, self.session = chat_of(body)
        return chat

    def begin(self, request_id: str) -> list[tuple[bytes, bytes]]:
        self._request_id = request_id
        self._stream = MessageStream(request_id)
        return [(b"request-id", request_id.encode("latin-1")), *super().begin(request_id)]

    def whole(self, body: bytes) -> bytes:
        return to_message(body, "msg_" + self._request_id)

    def error(self, status: int, body: bytes) -> tuple[bytes, dict[bytes, bytes]]:
        return envelope(status, body, self._request_id), retry_header(status)

    def events(self, events: Iterable[bytes], hold: Callable[[int], object]) -> bytes:
        return self._stream.translate(events, hold)
