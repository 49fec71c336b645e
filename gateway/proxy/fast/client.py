"""The client of the requests on the fast lane, as they see it; http/fast_service.py implements it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.admission.caller import Caller
from gateway.admission.memory import Share
from gateway.proxy.exchange import Flow
from gateway.proxy.fast.under_way import FastExchange


class FastClient(Protocol):
    """The connection of a client with a request on the fast lane."""

    loop: asyncio.AbstractEventLoop

    @property
    def flow(self) -> Flow:
        """As of an `Exchange`."""
        ...

    def is_ready(self) -> bool:
        """May a whole answer be written, after which the connection stays open?"""
        ...

    def answer_whole(self, lines: bytes, body: bytes) -> None:
        """Write the whole answer of the request. `lines`: of its head, each with its end."""
        ...

    def completed(self) -> None:
        """The answer is written: the next request may be read."""
        ...

    def exchange_of(self, caller: Caller, share: Share, *, keep_alive: bool) -> FastExchange:
        """The exchange of the request, from now on."""
        ...
