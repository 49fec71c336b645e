"""What the connections of a listener share: the limits of their number and times, and the one timer that enforces them.

A connection that waits for a head, is idle or is being closed is in a dict here, the longest waiting first. So a check
costs only what is due, a request costs two dict operations, and room for a new connection is made at once.
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
from gateway.http.request_head import KnownHeads
from gateway.runtime.gateway import Gateway
from gateway.runtime.process import file_limit

log = logging.getLogger("gateway.listener")

TICK = 0.5  # seconds between two checks
QUIET = 10.0  # seconds between two log lines about the same thing
_RESERVED_FILES = 64  # descriptors for files, probes and rejected connections
_MAX_CONNECTIONS = 10_000  # however many files the system allows
_REJECTED_MOST = 32  # rejected connections that are open to read the reason
_EVICTION_SCAN = 64  # connections that are examined to find one of an address


@dataclass(frozen=True, slots=True)
class Limits:
    """Times are in seconds, sizes in bytes."""

    connections: int = 1000
    fresh: float = 0.25  # a younger connection is not evicted: its head may be in the socket already
    head: float = (
        10.0  # from the beginning of the connection, or the first byte of a later head, to the end of the head
    )
    idle: float = 75.0  # after an answer; clients must give up a pooled connection earlier
    body_rate: int = 1024  # bytes per second at least
    body_window: float = 30.0
    ahead: int = 64 * 1024  # pipelined bytes that are kept while a request is answered
    ahead_for: float = 1.0  # how long reading pauses beyond that; a client that leaves meanwhile is not noticed
    ahead_most: int = 1024 * 1024  # then so many are kept, for the first `ahead_deep` connections that need it
    ahead_deep: int = 32
    ahead_longest: float = 30.0  # then they are discarded
    linger: float = 2.0  # silence after which an answered connection is closed whose client had more to send
    linger_most: float = 30.0
    begun: float = 1.0  # for heads and bodies that are being read when the gateway stops
    last_words: float = 2.0  # to send the end of answers that are cut at `server.shutdown`

    @property
    def per_address(self) -> int:
        return max(1, self.connections // 2)


def limits_for(files: int) -> Limits:
    """The limits for a process that may open `files` files; a connection needs a second one, to a backend."""
    return Limits(connections=max(8, min(_MAX_CONNECTIONS, (files - _RESERVED_FILES) // 2)))


def address_of(peer: str | None, proxies: tuple[Network, ...]) -> str | None:
    """What connections of one caller are counted by: the IPv4 address, or the /64 network of an IPv6 address. None =
    not counted: this machine, and `proxies`, behind which there are many callers."""
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
    """The connections of one listener and their deadlines."""

    def __init__(self, gateway: Gateway, limits: Limits | None = None) -> None:
        self.gateway = gateway
        self.limits = limits if limits is not None else limits_for(file_limit())
        self.connections: set[ClientConnection] = set()
        self.known_heads = KnownHeads(at_once=gateway.services.decides_ahead == "first")
        self.heads: dict[ClientConnection, float] = {}  # waits for a head, since when
        self.idle: dict[ClientConnection, float] = {}  # answered and idle, since when
        self.bodies: dict[ClientConnection, float] = {}  # sends a body, since when
        self.crowded: dict[ClientConnection, float] = {}  # not read because of too many pipelined bytes, since when
        self.deep: set[ClientConnection] = set()  # has the larger limit of pipelined bytes
        self.closing: dict[ClientConnection, float] = {}  # sends its last answer, since when
        self.stopping = False
        self._rejected: dict[ClientConnection, float] = {}
        self._by_address: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unlogged: dict[str, int] = {}  # reason -> connections closed since the last log line
        self._logged_at: dict[str, float] = {}

    # -- admission ------------------------------------------------------------------------------------------------

    def admit(self, connection: ClientConnection) -> GatewayError | None:
        """Admit the connection; else the error to answer."""
        limits, address = self.limits, connection.address
        if address is not None and self._by_address.get(address, 0) >= limits.per_address and not self._evict(address):
            return self._refusal("refused_address")
        if len(self.connections) >= limits.connections and not self._evict():
            return self._refusal("refused")
        self.connections.add(connection)
        self._count_open()
        if address is not None:
            self._by_address[address] = self._by_address.get(address, 0) + 1
        if self._timer is None:
            self._timer = connection.loop.call_later(TICK, self._tick, connection.loop)
        return None

    def reject(self, connection: ClientConnection) -> None:
        """Close a rejected connection within a second, when it has read the reason; sooner when there are many."""
        self._rejected[connection] = connection.loop.time()
        if len(self._rejected) > _REJECTED_MOST:
            oldest = next(iter(self._rejected))
            del self._rejected[oldest]
            oldest.transport.abort()
        if self._timer is None:
            self._timer = connection.loop.call_later(TICK, self._tick, connection.loop)

    def forget(self, connection: ClientConnection) -> None:
        """The connection is closed."""
        for waiting in (self.heads, self.idle, self.bodies, self.crowded, self.closing, self._rejected):
            waiting.pop(connection, None)
        self.deep.discard(connection)
        if connection in self.connections:
            self.connections.discard(connection)
            self._count_open()
            address = connection.address
            if address is not None:
                left = self._by_address[address] - 1
                if left:
                    self._by_address[address] = left
                else:
                    del self._by_address[address]

    def _evict(self, address: str | None = None) -> bool:
        """Close a connection without a request, of `address` if one is given, to make room. A connection whose answer
        is not completely sent stays."""
        for waiting in (self.idle, self.closing, self.heads):
            for victim in islice(waiting, _EVICTION_SCAN):
                if waiting is self.heads and victim.loop.time() - self.heads[victim] < self.limits.fresh:
                    break  # the following ones are younger
                if (address is None or victim.address == address) and not victim.transport.get_write_buffer_size():
                    self._abort(victim, "room")
                    return True
        for victim, since in islice(self.bodies.items(), _EVICTION_SCAN):
            now = victim.loop.time()
            if now - since < 1.0:
                break
            if (address is None or victim.address == address) and victim.sends_slowly(now):
                self._abort(victim, "room")
                return True
        return False

    def _abort(self, connection: ClientConnection, reason: str) -> None:
        self.count(reason)
        self.forget(connection)
        connection.transport.abort()

    def _refusal(self, reason: str) -> GatewayError:
        self.count(reason)
        return GatewayError(
            "too_many_connections", "The gateway has as many connections as it takes; try again.", retry_after=1
        )

    def _count_open(self) -> None:
        self.gateway.metrics.open_connections.value = len(self.connections)

    # -- deadlines ------------------------------------------------------------------------------------------------

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(TICK, self._tick, loop) if self.connections or self._rejected else None
        self.check_deadlines(loop.time())

    def check_deadlines(self, now: float) -> None:
        """Close what took too long. `now`: the loop's time."""
        limits = self.limits
        for connection in _due(self.heads, now - limits.head):
            self._abort(connection, "slow_head")
        for connection in _due(self.idle, now - limits.idle):
            if connection.sends_answer():
                self.idle[connection] = now  # moves to the end; the client is still reading its answer
                continue
            self._abort(connection, "idle")
        for connection in _due(self.crowded, now - limits.ahead_for):
            connection.recheck_pipelined(now)
        for connection in _due(self._rejected, now - 1.0):
            connection.transport.abort()
        for connection in list(self.bodies):
            connection.check_body_rate(now)
        for connection in list(self.closing):
            connection.check_closing(now)
        for reason in [r for r, at in self._logged_at.items() if r in self._unlogged and now - at >= QUIET]:
            self._log(reason, now)

    # -- stopping -------------------------------------------------------------------------------------------------

    def stop(self, loop: asyncio.AbstractEventLoop, shutdown: float) -> None:
        """The gateway stops: requests that are read have a moment, those that are answered have `shutdown` seconds."""
        self.stopping = True
        loop.call_later(min(self.limits.begun, shutdown), self._end_begun)
        loop.call_later(shutdown, self._end_answered)
        loop.call_later(shutdown + self.limits.last_words, self._end_all)

    def _end_begun(self) -> None:
        for connection in list(self.heads):
            self._abort(connection, "stopping")
        for connection in list(self.bodies):
            connection.refuse(GatewayError("no_backend_available", "The gateway is stopping; send the request again."))

    def _end_answered(self) -> None:
        for connection in list(self.connections):
            if not connection.is_answering():
                self._abort(connection, "stopping")

    def _end_all(self) -> None:
        for connection in list(self.connections):
            self._abort(connection, "stopping")

    # -- counting -------------------------------------------------------------------------------------------------

    def count(self, reason: str) -> None:
        """Count a connection that the gateway closes; log it, at most every QUIET seconds for each reason."""
        self.gateway.metrics.connections_closed.inc(reason)
        if reason in ("idle", "stopping"):
            return
        self._unlogged[reason] = self._unlogged.get(reason, 0) + 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at.get(reason, -QUIET) >= QUIET:
            self._log(reason, now)

    def _log(self, reason: str, now: float) -> None:
        self._logged_at[reason] = now
        closed = self._unlogged.pop(reason)
        log.warning(
            "connections closed: %d (%s); open: %d of at most %d",
            closed, reason, len(self.connections), self.limits.connections,
        )  # fmt: skip


def _due(waiting: dict[ClientConnection, float], until: float) -> Iterator[ClientConnection]:
    """Remove and yield the connections that have waited since before `until`, the longest waiting first."""
    while waiting:
        connection, since = next(iter(waiting.items()))
        if since > until:
            return
        del waiting[connection]
        yield connection
