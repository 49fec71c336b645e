"""The connections to Redis: one for batches of operations, one for messages. Waits are bounded: Redis counts as away
when it does not answer in time, or a connection breaks. Nothing is retried here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.config.snapshot import Backend, Secret
from gateway.supervision import Failures, cancel

log = logging.getLogger("gateway.cluster")

PATIENCE = 0.25  # seconds for an answer, where the URL has no socket_timeout
CONNECT = 1.0  # seconds to connect and to load the script
DRAIN = 0.05  # seconds to read messages that arrived before a connection was lost
PRESENT = 6.0  # seconds that a gateway counts as present after its last batch
PREFIX = "spark-gateway:"  # of all keys: one fleet per database
FILES = ("base", "limits", "slots", "state", "operations", "main")  # in this order they are one script
Operation = Sequence[Any]  # its name, then its arguments; no None in it
Batch = list[tuple[Operation, Callable[[Any], None]]]  # each with the callback for its answer
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder().decode


class RedisUnavailable(Exception):
    """Redis cannot be used; the text says why."""


class RedisConnection:
    """`up` from `open` until `close` or a failure. `build` returns the operations to send now, each with the
    callback for its answer. `on_message` is called with each message that another gateway publishes, `on_lost` once
    with the reason when the connection fails. `trips` counts the batches."""

    def __init__(
        self,
        url: Secret,
        gateway: str,
        build: Callable[[], Batch],
        on_message: Callable[[list[Any]], None],
        on_lost: Callable[[str], None],
        failures: Failures,
    ) -> None:
        self._failures = failures
        self.up = False
        self.trips = 0
        self._gateway = gateway
        self._build = build
        self._on_message = on_message
        self._on_lost = on_lost
        self._redis = Redis.from_url(
            url.reveal(), socket_connect_timeout=CONNECT, retry=Retry(NoBackoff(), 0), protocol=2, client_name=None
        )
        settings = self._redis.connection_pool.connection_kwargs
        self._patience = float(settings.get("socket_timeout") or PATIENCE)
        settings["socket_timeout"] = None  # messages may be rare; `_run` bounds its own waits
        self.where = settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
        self.where += f"/{settings.get('db') or 0}"
        self._script = source()
        self._sha = ""
        self._calls: AbstractConnection | None = None  # outside the pool, which would check it twice per batch
        self._pubsub: PubSub | None = None
        self._listener: asyncio.Task[None] | None = None
        self._sender: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and listen. Raises `RedisUnavailable`."""
        try:
            async with asyncio.timeout(CONNECT):
                self._sha = await self._redis.script_load(self._script)
                pool = self._redis.connection_pool
                self._calls = pool.make_connection()  # type: ignore[no-untyped-call]  # redis has no type for it
                await self._calls.connect()
                self._pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
                await self._pubsub.subscribe(f"{PREFIX}all", f"{PREFIX}to:{self._gateway}")
        except (RedisError, OSError, TimeoutError) as error:
            await self.close()
            raise RedisUnavailable(_message_of(error)) from None
        self.up = True
        self._listener = self._failures.once("shared", self._listen(self._pubsub), "shared: messages")

    async def close(self) -> None:
        """Close the connections, also after a failure. The connection can be opened again."""
        self.up = False
        tasks = self._listener, self._sender
        self._listener = self._sender = None
        await cancel(*tasks)
        try:
            async with asyncio.timeout(CONNECT):
                if self._calls is not None:
                    await self._calls.disconnect(nowait=True)
                if self._pubsub is not None:
                    await self._pubsub.aclose()  # type: ignore[no-untyped-call]  # redis has no type for it
                await self._redis.aclose()
        except (RedisError, OSError, TimeoutError) as error:
            log.debug("a connection to redis ended badly: %s", _message_of(error))
        self._pubsub = self._calls = None

    async def send_last(self, operation: Operation) -> None:
        """Send one operation before `close`, after the batch that is under way. A failure is ignored."""
        self.up = False
        if self._sender is not None:
            await asyncio.gather(self._sender, return_exceptions=True)
        try:
            await self._trip([operation])
        except RedisUnavailable as error:
            log.debug("redis could not be informed that this gateway stops: %s", error)

    def wake(self) -> None:
        """There are operations to send. They are sent in the loop's next round, in one batch with any that are added
        until then."""
        if self.up and self._sender is None:
            self._sender = self._failures.once("shared", self._send(), "shared: operations")

    async def _send(self) -> None:
        """Send batch after batch, one at a time, so that operations are executed in order."""
        try:
            while self.up and (batch := self._build()):
                answers = await self._trip([operation for operation, _ in batch])
                if answers == ["stranger"]:  # this gateway was silent for too long, or Redis has lost its data
                    raise RedisUnavailable("this gateway was forgotten there")
                for (_, answer), value in zip(batch, answers, strict=True):
                    answer(value)
        except RedisUnavailable as error:
            if self._listener is not None:  # the last messages may report what the other gateways hold
                await asyncio.wait({self._listener}, timeout=DRAIN)
            self._fail(str(error))
        except Exception:
            self._failures.note("shared", "what gateways share")
            self._fail("an error inside the gateway; see its log")
        finally:
            self._sender = None

    async def _trip(self, operations: list[Operation]) -> list[Any]:
        self.trips += 1
        trip = asyncio.create_task(self._run(arguments(self._gateway, PRESENT, operations)))
        try:
            for _ in range(2):  # in two halves: a pause of this process itself must not count as silence of Redis
                await asyncio.wait({trip}, timeout=self._patience / 2)
                if trip.done():
                    break
            else:
                raise RedisUnavailable(f"no answer within {self._patience * 1000:.0f} ms")
            found: list[Any] = decode(trip.result())
        except (RedisError, OSError) as error:
            raise RedisUnavailable(_message_of(error)) from None
        finally:
            trip.cancel()
        return found

    async def _run(self, args: list[Any]) -> Any:
        assert self._calls is not None
        await self._calls.send_command("EVALSHA", self._sha, 1, PREFIX, *args)
        return await self._calls.read_response()

    async def _listen(self, pubsub: PubSub) -> None:
        reason = "the connection for messages ended"
        try:
            async for message in pubsub.listen():
                self._on_message(decode(message["data"]))
        except (RedisError, OSError) as error:
            reason = _message_of(error)
        except Exception:
            self._failures.note("shared", "a message of another gateway")
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if self.up:
            self.up = False
            self._on_lost(reason)


def _message_of(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def ignore(_: Any) -> None:
    """The callback of an operation without a result."""


def source() -> str:
    """The script as it is loaded into Redis."""
    folder = files("gateway.apps.cluster") / "lua"
    return "\n".join((folder / f"{name}.lua").read_text() for name in FILES)


def arguments(gateway: str, present: float, operations: Sequence[Operation], now: float | None = None) -> list[Any]:
    """ARGV of one batch. `present`: seconds that the gateway counts as present from now on. `now` (seconds) instead of
    Redis' own clock is for tests."""
    time = "" if now is None else str(round(now * 1000))
    return [time, gateway, round(present * 1000), encode(operations)]


def key_of(backend: Backend) -> str:
    """The name of a backend among gateways: the same running server has the same key everywhere."""
    return " ".join(part or "" for part in backend.identity)
