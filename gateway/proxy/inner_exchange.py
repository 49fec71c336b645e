"""Requests that the gateway makes itself for a client: they run through the same handler as any other request, and
their answers are kept instead of sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.admission.access import Caller, Identity
from gateway.admission.memory import Share
from gateway.config.snapshot import Alias
from gateway.domain.privacy import NO_MARKS, Privacy
from gateway.domain.request import OwnForm
from gateway.proxy.exchange import WAITED, ClientGone, Flow, Headers, nothing, running_task, too_large


@dataclass(frozen=True, slots=True)
class OnBehalf:
    """Whose request it is, and the alias that serves it: both were checked already."""

    identity: Identity
    alias: Alias

    @property
    def sender(self) -> str:
        return self.identity.name


class InnerExchange:
    """An `Exchange` (proxy/exchange.py) without a connection. `share`: the memory that the request holds; its answer is
    counted in `kept`, which the caller releases. `privacy`: of what it is made of."""

    own: OwnForm | None = None
    session: bytes | None = None

    def __init__(
        self,
        headers: Mapping[bytes, bytes],
        peer: str,
        body: bytes,
        share: Share,
        kept: Share,
        privacy: Privacy = NO_MARKS,
    ) -> None:
        self.share = share
        self.started = False
        self.status = 0  # of its answer; 0 = none yet
        self.fields: dict[bytes, bytes] = {}  # the headers of its answer
        self.body = bytearray()  # of its answer
        self.complete = False  # the answer has come to its end
        self._kept = kept
        self._sent = body
        self._peer = peer
        self.caller = Caller({**headers, **privacy.headers()}, peer)
        self._leave: Callable[[], object] | None = None
        self.gone = False  # nobody wants this answer any more

    @property
    def headers(self) -> dict[bytes, bytes]:
        return self.caller.headers

    @property
    def peer(self) -> str:
        return self._peer

    def task(self) -> asyncio.Task[None]:
        return running_task()

    async def read_body(self, limit: int) -> bytes:
        if self.gone:
            raise ClientGone
        self.share.add(len(self._sent))
        if len(self._sent) > limit:
            raise too_large(limit)
        return self._sent

    def on_leave(self, callback: Callable[[], object]) -> None:
        self._leave = callback

    def stop_watching(self) -> None:
        self._leave = None

    def leave(self) -> None:
        """Nobody wants this answer any more."""
        self.gone = True
        if self._leave is not None:
            self._leave()

    async def start(self, status: int, headers: Headers) -> None:
        self.started, self.status, self.fields = True, status, dict(headers)

    async def write(self, data: bytes) -> None:
        self._kept.add(len(data))
        self.body += data

    flow: Flow = WAITED

    def put(self, data: bytes) -> None:
        raise NotImplementedError("what keeps an answer may wait for another one")

    async def finish(self, data: bytes = b"", progress: Callable[[], object] = nothing) -> None:
        await self.write(data)
        self.complete = True
        progress()
