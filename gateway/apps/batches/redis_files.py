"""The connection to Redis of the store that gateways share, and the files there: the content of each is a row of values
of `CHUNK` bytes."""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from importlib.resources import files
from typing import Any, TypeVar, cast

import msgspec
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, ResponseError, TimeoutError
from redis.retry import Retry

from gateway.apps.batches.records import FileRecord
from gateway.apps.batches.store import BatchStore, FileWriter, StoreAway, StoreFailed, StoreFull
from gateway.apps.cluster.redis_connection import PREFIX
from gateway.config.snapshot import Secret

KEYS = f"{PREFIX}batches:"
LEASE = 6.0  # seconds that a gateway keeps its lines without a renewal
PATIENCE = 2.0  # seconds for an answer, where the URL has no longer socket_timeout
CONNECT = 1.0  # seconds to connect
CHUNK = 1024 * 1024  # bytes of one value of a file
UPLOAD_KEPT = 6 * 3600  # seconds after which parts of a file that was never complete are dropped
KEYS_AT_ONCE = 200
QUIET = 0.4  # seconds for which a Redis that did not answer is not asked again
SHARE, SHARE_UNBOUNDED = 0.75, 0.5  # of Redis' `maxmemory`, or of its machine's memory, from which on nothing is added
ROOM_FOR = 1.0  # seconds that what Redis says of its memory holds

# Errors of a Redis that takes no writes for now: a replica after a failover, a disk that is full, a long script.
REFUSALS = ("READONLY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "BUSY")

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_decode_file = msgspec.json.Decoder(FileRecord).decode


def asking(work: F) -> F:
    """A method for which a Redis that does not answer, or takes no writes for now, is StoreAway, one that is full
    StoreFull, and one that refuses (a user without the right, a value of another type) StoreFailed. When it has not
    answered, nothing is asked for a moment, so that no thread waits for what another one has just waited for in vain.
    """

    @wraps(work)
    def asks(store: RedisFiles, *args: Any, **more: Any) -> Any:
        if time.monotonic() < store.away_until:
            raise StoreAway(store.away)
        try:
            return work(store, *args, **more)
        except ResponseError as error:
            code = getattr(error, "status_code", None) or str(error)  # the text of some errors is without its code
            if "OOM" in code:
                raise StoreFull("Redis is full (`maxmemory`): files and batches are kept there.") from None
            if word := next((word for word in REFUSALS if word in code), None):
                message = f"Redis takes no writes ({word}): files and batches are kept there. Try again later."
                raise StoreAway(message) from None
            raise StoreFailed(f"Redis refuses what files and batches need: {error}") from error
        except (ConnectionError, TimeoutError, OSError) as error:
            words = " ".join(str(error).split()) or type(error).__name__
            store.away = f"Redis is away ({words}): files and batches are kept there. Try again in a moment."
            store.away_until = time.monotonic() + QUIET
            raise StoreAway(store.away) from None

    return cast(F, asks)


class FileLost(Exception):
    """Redis has lost a part of the content of a file."""


class RedisFiles(BatchStore):
    """May be used by several threads."""

    def __init__(self, url: Secret) -> None:
        self.where = "Redis (`server.shared`)"
        self._gateway = uuid.uuid4().hex[:12]  # of this process
        retry = Retry(NoBackoff(), 1, supported_errors=(ConnectionError,))  # a connection from before a restart
        self.redis = Redis.from_url(url.reveal(), socket_connect_timeout=CONNECT, retry=retry, protocol=2)
        settings = self.redis.connection_pool.connection_kwargs
        settings["socket_timeout"] = max(PATIENCE, float(settings.get("socket_timeout") or 0))
        source = (files("gateway.apps.batches") / "lua" / "batches.lua").read_text()
        self._script = self.redis.register_script(source)
        self.away, self.away_until = "", 0.0  # why Redis does not answer; until when it is not asked
        self._room, self._room_at = 0, float("-inf")

    def ask(self, *command: Any) -> Any:
        return self.redis.execute_command(*command)  # type: ignore[no-untyped-call]  # redis has no type for it

    def each(self, commands: Collection[tuple[Any, ...]], *, together: bool = False) -> list[Any]:
        """One trip; `together`: all or none."""
        with self.redis.pipeline(transaction=together) as pipe:
            for command in commands:
                pipe.execute_command(*command)  # type: ignore[no-untyped-call]  # redis has no type for it
            return list(pipe.execute())

    def decide(self, operation: str, *args: Any) -> Any:
        """Run an operation of the script."""
        return self._script(keys=[KEYS], args=[operation, self._gateway, round(LEASE * 1000), *args])

    def order(self, created_at: int) -> int:
        """The place of a new file or batch among all: after those of the same second that came before."""
        return created_at * 1_000_000 + int(self.ask("INCR", f"{KEYS}count")) % 1_000_000

    def check_room(self, size: int) -> None:
        """Raises StoreFull when so many more bytes would leave the gateways too little of Redis' memory."""
        if time.monotonic() - self._room_at > ROOM_FOR:
            memory = self.ask("INFO", "memory")
            most = memory["maxmemory"] * SHARE or memory["total_system_memory"] * SHARE_UNBOUNDED
            self._room, self._room_at = int(most) - memory["used_memory"], time.monotonic()
        self._room -= size
        if self._room < 0:
            raise StoreFull("Redis has no room for more files and batches (its memory, or `maxmemory`): delete some.")

    # -- files ----------------------------------------------------------------------------------------------------

    def new_file(self, name: str) -> FileWriter:
        return ChunkWriter(name, self.put_chunk, self._drop_chunks)

    @asking
    def put_chunk(self, key: str, data: bytes) -> None:
        self.check_room(len(data))
        self.ask("SET", key, data, "EX", UPLOAD_KEPT)

    @asking
    def read_file(self, name: str, at: int, size: int) -> bytes:
        end = at + size - 1
        parts = [
            ("GETRANGE", _chunk(name, n), max(0, at - n * CHUNK), min(CHUNK - 1, end - n * CHUNK))
            for n in range(at // CHUNK, end // CHUNK + 1)
        ]
        return b"".join(self.each(parts))

    @asking
    def add_file(self, record: FileRecord) -> None:
        keys = [_chunk(record.id, n) for n in range(_chunks(record.bytes))]
        order = self.order(record.created_at)
        named: list[tuple[Any, ...]] = [
            ("EXISTS", *keys, f"{KEYS}count"),
            ("HSET", f"{KEYS}files", record.id, msgspec.json.encode(record)),
            ("ZADD", f"{KEYS}files:{record.owner}", order, record.id),
            *(("PERSIST", key) for key in keys),
        ]
        if record.expires_at is not None:
            named.append(("ZADD", f"{KEYS}expiring", record.expires_at, record.id))
        if self.each(named, together=True)[0] <= len(keys):
            self.drop_file(record.id)
            raise StoreAway(f"Redis has lost a part of this file: send it again within {UPLOAD_KEPT // 3600} hours.")

    @asking
    def file(self, name: str) -> FileRecord | None:
        found = self.ask("HGET", f"{KEYS}files", name)
        return None if found is None else _decode_file(found)

    @asking
    def files(self, owner: str) -> list[FileRecord]:
        found: list[FileRecord] = []
        for names in grouped(self.ask("ZREVRANGE", f"{KEYS}files:{owner}", 0, -1), KEYS_AT_ONCE):
            found += [_decode_file(one) for one in self.ask("HMGET", f"{KEYS}files", *names) if one is not None]
        return found

    @asking
    def drop_file(self, name: str) -> None:
        record = self.file(name)
        if record is not None:
            named = [
                ("HDEL", f"{KEYS}files", name),
                ("ZREM", f"{KEYS}files:{record.owner}", name),
                ("ZREM", f"{KEYS}expiring", name),
            ]
            self._drop_chunks(name, _chunks(record.bytes))
            self.each(named, together=True)

    @asking
    def _drop_chunks(self, name: str, count: int) -> None:
        for numbers in grouped(range(count), KEYS_AT_ONCE):
            self.ask("UNLINK", *(_chunk(name, n) for n in numbers))


class ChunkWriter:
    """Holds less than two chunks."""

    def __init__(
        self, name: str, put: Callable[[str, bytes], None], drop: Callable[[str, int], None] = lambda *_: None
    ) -> None:
        self._name = name
        self._put, self._drop = put, drop
        self._held = bytearray()
        self._written = 0
        self.size = 0

    @property
    def held(self) -> int:
        return len(self._held)

    def write(self, data: bytes) -> None:
        self.size += len(data)
        for at in range(0, len(data), CHUNK):
            self._held += data[at : at + CHUNK]
            if len(self._held) >= CHUNK:
                self._write(CHUNK)

    def finish(self) -> None:
        if self._held:
            self._write(len(self._held))

    def drop(self) -> None:
        self._drop(self._name, self._written)

    def _write(self, size: int) -> None:
        self._put(_chunk(self._name, self._written), bytes(self._held[:size]))
        self._written += 1
        del self._held[:size]


class ChunkReader(io.RawIOBase):
    """The content of a file, from its begin to its end. Reading raises FileLost, StoreAway."""

    def __init__(self, store: BatchStore, file: FileRecord) -> None:
        self._store = store
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._file.bytes - self._at)
        data = self._store.read_file(self._file.id, self._at, size) if size else b""
        if len(data) < size:
            raise FileLost
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _chunk(name: str, number: int) -> str:
    return f"{KEYS}file:{name}:{number}"


def _chunks(size: int) -> int:
    return -(-size // CHUNK)


def grouped(found: Sequence[T], size: int) -> list[Sequence[T]]:
    return [found[at : at + size] for at in range(0, len(found), size)]
