"""The event loop. It looks up each host name in a thread of its own.

uvloop has two threads for all lookups. A lookup takes up to 30 s where a name server does not answer, so two names of
clouds behind a broken uplink would keep every other name waiting, also those that this machine itself knows.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import uvloop

Port = str | bytes | int | None
Question = tuple[Any, Port, int, int, int, int]  # host, port, family, type, proto, flags
Addresses = list[tuple[Any, ...]]


class Loop(uvloop.Loop):
    def __init__(self) -> None:
        super().__init__()
        self._lookups: dict[Question, asyncio.Future[Addresses]] = {}  # under way

    async def getaddrinfo(
        self,
        host: str | bytes | None,
        port: Port,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> Addresses:
        """As `socket.getaddrinfo`. The same question is asked once at a time, and goes on when nobody waits for it any
        more: a name that is never answered takes one thread."""
        if not is_name(host):
            found: Addresses = await super().getaddrinfo(host, port, family=family, type=type, proto=proto, flags=flags)
            return found
        question = host, port, family, type, proto, flags
        if (answer := self._lookups.get(question)) is None:
            answer = self.create_future()
            threading.Thread(target=self._look_up, args=(question, answer), name="lookup", daemon=True).start()
            self._lookups[question] = answer
        return await asyncio.shield(answer)

    def _look_up(self, question: Question, answer: asyncio.Future[Addresses]) -> None:
        result: Addresses | Exception
        try:
            result = socket.getaddrinfo(*question)
        except Exception as error:
            result = error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self.call_soon_threadsafe(self._looked_up, question, answer, result)

    def _looked_up(self, question: Question, answer: asyncio.Future[Addresses], result: Addresses | Exception) -> None:
        del self._lookups[question]
        if isinstance(result, Exception):
            answer.set_exception(result)
            answer.exception()  # nobody may wait for it any more
        else:
            answer.set_result(result)

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **options: Any
    ) -> tuple[Any, Any]:
        """As asyncio's. The addresses of a name are tried in the resolver's order."""
        connect = super().create_connection
        if not is_name(host):
            made: tuple[Any, Any] = await connect(protocol_factory, host, port, **options)
            return made
        if options.get("ssl") and options.get("server_hostname") is None:
            options["server_hostname"] = host
        hints = {name: options.get(name, 0) for name in ("family", "proto", "flags")}
        failures: list[OSError] = []
        for *_, address in await self.getaddrinfo(host, port, type=socket.SOCK_STREAM, **hints):
            try:
                made = await connect(protocol_factory, address[0], port, **options)
            except OSError as failure:
                failures.append(failure)
            else:
                return made
        if len({str(failure) for failure in failures}) == 1:
            raise failures[0]
        raise OSError("; ".join(map(str, failures)) or f"{host} has no address")


def is_name(host: object) -> bool:
    """Has this host to be looked up?"""
    if not isinstance(host, str) or not host:
        return False
    try:
        ip_address(host)
    except ValueError:
        return True
    return False
