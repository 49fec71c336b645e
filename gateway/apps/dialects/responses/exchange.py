"""A request of the Responses API and its answer, for the exchange around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import time

from gateway.apps.dialects.responses.answer import Ids
from gateway.apps.dialects.responses.relayed import RelayedStream, whole_response
from gateway.apps.dialects.responses.request import RequestEcho, chat_request_of
from gateway.apps.dialects.translated import Translation


class ResponseTranslation(Translation):
    """`ended`: the response as it was sent, at its end. `suffix` distinguishes its ids from the request's."""

    def __init__(self) -> None:
        self.previous: str | None = None  # the kept response that this one goes on from
        self.stored = False  # it will be kept itself
        self.suffix = ""
        self._whole: bytes | None = None
        self._asked = RequestEcho()
        self._ids = Ids("", 0)
        self._stream = RelayedStream(self._asked, self._ids)

    @property
    def id(self) -> str:
        return self._ids.response

    @property
    def ended(self) -> bytes | None:
        return self._whole if self._whole is not None else self._stream.whole

    def request(self, body: bytes) -> bytes:
        chat, self._asked, self.own = chat_request_of(body, self.previous, stored=self.stored)
        return chat

    def held(self) -> int:
        own = 0 if self.own is None else sum(len(memoryview(value)) for value in self.own.fields.values())
        return len(self._asked.echo) + own

    def begin(self, request_id: str) -> list[tuple[bytes, bytes]]:
        self._ids = Ids(request_id + self.suffix, int(time()))
        self._stream = RelayedStream(self._asked, self._ids)
        return []

    def whole(self, body: bytes) -> bytes:
        self._whole = whole_response(body, self._asked, self._ids)
        return self._whole

    def events(self, events: Iterable[bytes], hold: Callable[[int], object]) -> bytes:
        return self._stream.translate(events, hold)
