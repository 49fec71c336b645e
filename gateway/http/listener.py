"""What our listener's connections share: how many there may be, how long each may take, and the one timer that looks.

A connection that waits for a head, is idle or is about to be closed stands in a dict here, the longest waiting first.
So a look costs as much as there is due, a request two dict operations, and room for a new connection is made at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from gateway.config.snapshot import Network
from gateway.errors import GatewayError
from gateway.http.client_connection import ClientConnection
from gateway.runtime.gateway import Gateway
from gateway.runtime.process import file_limit

log = logging.getLogger("gateway.listener")

TICK = 0.5  # seconds between two looks
QUIET = 10.0  # seconds between two log lines about the same thing
_KEPT_FILES = 64  # descriptors for files, probes and what is refused
_MOST = 10_000  # connections, however many files the system allows
_TURNED_AWAY = 32  # refused connections at a time that may still read why
_LOOKED_AT = 64  # connections that are looked at to find one of an address


@dataclass(frozen=True, slots=True)
class Limits:
    """Times are in seconds, sizes in bytes."""

    connections: int = 1000
    fresh: float = 0.25  # a connection's head may well be in the socket already: nobody takes its place so soon
    head: float = 10.0  # from the connection's begin, or a later head's first byte, to the head's end
    idle: float = 75.0  # after an answer; clients' pools must give up a connection earlier than we do
    body_rate: int = 1024  # per second
    body_window: float = 30.0
    ahead: int = 64 * 1024  # pipelined requests that are kept while another one is answered
    ahead_for: float = 1.0  # how long reading stops because of more than that: who leaves meanwhile is not noticed
    ahead_most: int = 1024 * 1024  # then so much is kept, of the first `ahead_deep` connections that need it
    ahead_deep: int = 32
    ahead_longest: float = 30.0  # then what is more than that is thrown away
    linger: float = 2.0  # silence after which an answered connection is closed, if its client has more to send
    linger_most: float = 30.0
    begun: float = 1.0  # for heads and bodies that are on their way when the gateway stops
    last_words: float = 2.0  # for the end of what is cut at `server.shutdown`

    @property
    def per_address(self) -> int:
        return max(1, self.connections // 2)


def limits_for(files: int) -> Limits:
    """For a process that may have so many files open: every connection needs one more to a backend."""
    return Limits(connections=max(8, min(_MOST, (files - _KEPT_FILES) // 2)))


def address_of(peer: str | None, proxies: tuple[Network, ...]) -> str | None:
    """What the connections of one caller have in common: the address, the /64 of an IPv6 one. None = not counted:
    this machine, and `proxies`, behind which there are many callers."""
    if peer is None:
        return None
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback or any(address in network for network in proxies):
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(address)


class Listener:
    """The connections of one listener, and what is due of them."""

    def __init__(self, gateway: Gateway, limits: Limits | None = None) -> None:
        self.gateway = gateway
        self.limits = limits if limits is not None else limits_for(file_limit())
        self.connections: set[ClientConnection] = set()
        self.heads: dict[ClientConnection, float] = {}  # waits for a head or its rest, since
        self.idle: dict[ClientConnection, float] = {}  # was answered, since
        self.bodies: dict[ClientConnection, float] = {}  # sends a body, since
        self.crowded: dict[ClientConnection, float] = {}  # is not read because it sent too much ahead, since
        self.deep: set[ClientConnection] = set()  # may send more ahead than others
        self.closing: dict[ClientConnection, float] = {}  # was answered for the last time; when it began
        self.stopping = False
        self._turned_away: dict[ClientConnection, float] = {}
        self._by_address: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unsaid: dict[str, int] = {}  # how many were closed since it was logged, by reason
        self._said: dict[str, float] = {}
        gateway.metrics.connections = lambda: len(self.connections)

    # -- who may come in ------------------------------------------------------------------------------------------

    def admit(self, connection: ClientConnection) -> GatewayError | None:
        """Take it in; else the answer that it gets."""
        limits, address = self.limits, connection.address
        if address is not None and self._by_address.get(address, 0) >= limits.per_address and not self._evict(address):
            return self._refusal("refused_address")
        if len(self.connections) >= limits.connections and not self._evict():
            return self._refusal("refused")
        self.connections.add(connection)
        if address is not None:
            self._by_address[address] = self._by_address.get(address, 0) + 1
        if self._timer is None:
            self._timer = connection.loop.call_later(TICK, self._tick, connection.loop)
        return None

    def turn_away(self, connection: ClientConnection) -> None:
        """It is told why it is refused, and closed within a second, sooner when many are."""
        self._turned_away[connection] = connection.loop.time()
        if len(self._turned_away) > _TURNED_AWAY:
            oldest = next(iter(self._turned_away))
            del self._turned_away[oldest]
            oldest.transport.abort()
        if self._timer is None:
            self._timer = connection.loop.call_later(TICK, self._tick, connection.loop)

    def forget(self, connection: ClientConnection) -> None:
        """It is closed."""
        for waiting in (self.heads, self.idle, self.bodies, self.crowded, self.closing, self._turned_away):
            waiting.pop(connection, None)
        self.deep.discard(connection)
        if connection in self.connections:
            self.connections.discard(connection)
            address = connection.address
            if address is not None:
                left = self._by_address[address] - 1
                if left:
                    self._by_address[address] = left
                else:
                    del self._by_address[address]

    def _evict(self, address: str | None = None) -> bool:
        """Close a connection that nothing runs on, of this address if one is given, to make room for a new one. One
        that has not been sent its whole answer stays."""
        for waiting in (self.idle, self.closing, self.heads):
            for victim in islice(waiting, _LOOKED_AT):
                if waiting is self.heads and victim.loop.time() - self.heads[victim] < self.limits.fresh:
                    break  # those behind it are younger
                if (address is None or victim.address == address) and not victim.transport.get_write_buffer_size():
                    self._end(victim, "room")
                    return True
        for victim, since in islice(self.bodies.items(), _LOOKED_AT):
            now = victim.loop.time()
            if now - since < 1.0:
                break
            if (address is None or victim.address == address) and victim.sends_slowly(now):
                self._end(victim, "room")
                return True
        return False

    def _end(self, connection: ClientConnection, reason: str) -> None:
        self.count(reason)
        self.forget(connection)
        connection.transport.abort()

    def _refusal(self, reason: str) -> GatewayError:
        self.count(reason)
        return GatewayError(
            "too_many_connections", "The gateway has as many connections as it takes; try again.", retry_after=1
        )

    # -- what is due ----------------------------------------------------------------------------------------------

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(TICK, self._tick, loop) if self.connections or self._turned_away else None
        self.look(loop.time())

    def look(self, now: float) -> None:
        """Close what took too long. `now` is in the loop's time."""
        limits = self.limits
        for connection in _due(self.heads, now - limits.head):
            self._end(connection, "slow_head")
        for connection in _due(self.idle, now - limits.idle):
            if connection.still_sends():
                self.idle[connection] = now  # behind the others; the answer is still being read
                continue
            self._end(connection, "idle")
        for connection in _due(self.crowded, now - limits.ahead_for):
            connection.look_ahead(now)
        for connection in _due(self._turned_away, now - 1.0):
            connection.transport.abort()
        for connection in list(self.bodies):
            connection.look_at_body(now)
        for connection in list(self.closing):
            connection.look_at_end(now)
        for reason in [r for r, said in self._said.items() if r in self._unsaid and now - said >= QUIET]:
            self._tell(reason, now)

    # -- the end --------------------------------------------------------------------------------------------------

    def stop(self, loop: asyncio.AbstractEventLoop, shutdown: float) -> None:
        """The gateway stops: what is on its way has a moment, what is answered has `shutdown` seconds."""
        self.stopping = True
        loop.call_later(min(self.limits.begun, shutdown), self._end_begun)
        loop.call_later(shutdown, self._end_answered)
        loop.call_later(shutdown + self.limits.last_words, self._end_all)

    def _end_begun(self) -> None:
        for connection in list(self.heads):
            self._end(connection, "stopping")
        for connection in list(self.bodies):
            connection.refuse(GatewayError("no_backend_available", "The gateway is stopping; send the request again."))

    def _end_answered(self) -> None:
        for connection in list(self.connections):
            if not connection.is_answering():
                self._end(connection, "stopping")

    def _end_all(self) -> None:
        for connection in list(self.connections):
            self._end(connection, "stopping")

    # -- what is told of it ---------------------------------------------------------------------------------------

    def count(self, reason: str) -> None:
        """A connection is closed by us, before its client wanted that."""
        self.gateway.metrics.connections_closed.inc(reason)
        if reason in ("idle", "stopping"):
            return
        self._unsaid[reason] = self._unsaid.get(reason, 0) + 1
        now = asyncio.get_running_loop().time()
        if now - self._said.get(reason, -QUIET) >= QUIET:
            self._tell(reason, now)

    def _tell(self, reason: str, now: float) -> None:
        self._said[reason] = now
        told = (self._unsaid.pop(reason), reason, len(self.connections), self.limits.connections)
        log.warning("connections closed: %d, %s; open are %d of at most %d", *told)


def _due(waiting: dict[ClientConnection, float], until: float) -> Iterator[ClientConnection]:
    """Take out what has waited since before `until`. The longest waiting come first."""
    while waiting:
        connection, since = next(iter(waiting.items()))
        if since > until:
            return
        del waiting[connection]
        yield connection
