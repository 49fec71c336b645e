"""An exchange with a client of which the bodies are captured on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.admission.memory import Share
from gateway.domain.request import Endpoint, OwnForm
from gateway.proxy.exchange import Exchange, Flow, Headers, nothing


class CapturedExchange:
    """An `Exchange` (proxy/exchange.py) around another. `take`: what may be captured of these bytes, of a body of which
    so many are; `begun` gets the id when the answer begins. `whole`: all of the request was captured."""

    def __init__(
        self,
        inner: Exchange,
        endpoint: Endpoint,
        take: Callable[[bytes, int], bytes],
        begun: Callable[[str, CapturedExchange], object],
    ) -> None:
        self._inner = inner
        self._take = take
        self._begun = begun
        self.endpoint = endpoint
        self.caller = inner.caller
        self.share: Share = inner.share
        self.flow: Flow = inner.flow
        self.headers = inner.headers
        self.request = bytearray()
        self.answer = bytearray()
        self.whole = True

    def give_up(self) -> None:
        """Nothing more is captured."""
        self._take, self._begun = _nothing_of, _not_told
        self.request, self.answer = bytearray(), bytearray()

    @property
    def own(self) -> OwnForm | None:
        return self._inner.own

    @property
    def session(self) -> bytes | None:
        return self._inner.session

    @property
    def started(self) -> bool:
        return self._inner.started

    @property
    def peer(self) -> str:
        return self._inner.peer

    def task(self) -> asyncio.Task[None]:
        return self._inner.task()

    async def read_body(self, limit: int) -> bytes:
        body = await self._inner.read_body(limit)
        self.request += self._take(body, 0)
        self.whole = len(self.request) == len(body)
        return body

    def on_leave(self, callback: Callable[[], object]) -> None:
        self._inner.on_leave(callback)

    def stop_watching(self) -> None:
        self._inner.stop_watching()

    async def start(self, status: int, headers: Headers) -> None:
        headers = list(headers)
        id = dict(headers).get(b"x-request-id")
        if id is not None:
            self._begun(id.decode("latin-1"), self)
        await self._inner.start(status, headers)

    async def write(self, data: bytes) -> None:
        self.answer += self._take(data, len(self.answer))
        await self._inner.write(data)

    def put(self, data: bytes) -> None:
        self.answer += self._take(data, len(self.answer))
        self._inner.put(data)

    async def finish(self, data: bytes = b"", progress: Callable[[], object] = nothing) -> None:
        self.answer += self._take(data, len(self.answer))
        await self._inner.finish(data, progress)


def _nothing_of(_: bytes, __: int) -> bytes:
    return b""


def _not_told(_: str, __: CapturedExchange) -> None:
    """The capture has ended."""
