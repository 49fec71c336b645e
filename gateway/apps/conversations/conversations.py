"""The kept responses of one gateway, as its API uses them: off unless `server.keep_responses` says how long."""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from gateway.apps.conversations.store import NAME, Conversation, ResponseStore, Turn
from gateway.config.snapshot import Server
from gateway.errors import GatewayError, exhausted
from gateway.large_bodies import Paced
from gateway.shortage import Kind, shortage_of
from gateway.supervision import Failures

log = logging.getLogger("gateway.apps.conversations")

LOOK_EVERY = 60.0  # seconds between two looks at what is too old
ID_MOST = 200  # characters of an id


class Conversations:
    """`is_on`: responses are kept. `paced`: work on large ones. The store is opened when used, or when it is there."""

    def __init__(self, server: Server, failures: Failures, on_short: Callable[[Kind], object]) -> None:
        keep = server.keep_responses
        self.is_on = keep is not None
        self._store = ResponseStore(Path(server.data), keep or 0.0, server.max_kept)
        self._failures = failures
        self._on_short = on_short  # called when the gateway itself lacks something
        self._shared = server.shared is not None
        self._thread = ThreadPoolExecutor(1, "conversations")
        self._opening = asyncio.Lock()
        self.paced = Paced()
        self._is_open = False
        self._sweeper: asyncio.Task[None] | None = None
        self._makers: WeakValueDictionary[tuple[str, str], object] = WeakValueDictionary()  # (owner, name) -> its maker

    async def open(self) -> None:
        """Drop what has become too old since the last stop; with keeping off, everything."""
        if not self._store.path.exists():
            return
        try:
            await self._opened()
        except GatewayError as error:
            log.error("kept responses cannot be used: %s", error.message)

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._is_open:
            await self._in_thread(self._store.close)
        self._thread.shutdown(wait=True)

    async def size(self, owner: str, name: str) -> int:
        """Bytes of the turns up to this response."""
        return int(await self._call(self._store.conversation_size, owner, name[:ID_MOST]))

    async def conversation(self, owner: str, name: str, most: int, count: Callable[[int], object]) -> Conversation:
        """The turns up to this response, of at most `most` bytes. `count` is called with their size first, and may
        raise. Raises `not_found`, also for one of another client, and `request_too_large`."""
        size = await self.size(owner, name)
        if size <= most:
            count(size)
        try:
            asked = owner, name[:ID_MOST], time.time(), most
            found: Conversation | None = await self._call(self._store.conversation, *asked)
        except OverflowError:
            message = f"The conversation of `previous_response_id` is larger than {most} bytes (`server.max_body`)."
            raise GatewayError("request_too_large", message, param="previous_response_id") from None
        if found is None:
            raise self._unknown(name, "previous_response_id", "Send the whole conversation as `input`.")
        return found

    async def response_with(self, owner: str, item: str) -> str | None:
        """The id of the owner's kept response that has this item in its output; None = there is none."""
        found: str | None = await self._call(self._store.response_with, owner, item[:ID_MOST])
        return found

    async def free_name(self, owner: str, wanted: str, maker: object) -> str:
        """The wanted name for a response that is being made, or a longer one where the owner has a response of that
        name or another one is getting it. It is taken as long as `maker` lives."""
        name = wanted
        while not await self._take(owner, name, maker):
            name = f"{wanted}-{random.getrandbits(32):08x}"
        return name

    async def _take(self, owner: str, name: str, maker: object) -> bool:
        if self._makers.setdefault((owner, name), maker) is not maker:
            return False
        with suppress(GatewayError):  # it is reported; the client gets its answer, as in `add`
            return await self._call(self._store.size, owner, name, time.time()) is None
        return True

    async def add(self, owner: str, name: str, previous: str | None, turn: Turn, *, local: bool) -> None:
        """Keep a response. Where that fails, it is logged: the client has its answer."""
        try:
            if not await self._call(self._store.add, owner, name, previous, turn, time.time(), local=local):
                log.warning("%s is not kept: its conversation is too long for server.max_kept, or was dropped", name)
        except GatewayError as error:
            log.error("%s is not kept: %s", name, error.message)

    async def response(self, owner: str, name: str, count: Callable[[int], object]) -> bytes:
        """`count` is called with its size before it is read, and may raise. Raises `not_found`, also for one of another
        client."""
        size = await self._call(self._store.size, owner, name, time.time()) if self.is_on else None
        if size is not None:
            count(size)
            found: bytes | None = await self._call(self._store.response, owner, name, time.time())
            if found is not None:
                return found
        raise self._unknown(name, "response_id")

    async def drop(self, owner: str, name: str) -> None:
        """Raises `not_found`, also for one of another client."""
        if not (self.is_on and await self._call(self._store.drop, owner, name)):
            raise self._unknown(name, "response_id")

    def _unknown(self, name: str, param: str, advice: str = "") -> GatewayError:
        why = "it was never kept, has been deleted, or is too old"
        if not self.is_on:
            why = "none are kept (`server.keep_responses` is not set)"
        elif self._shared:
            why += ", or another gateway keeps it: each keeps its own"
        return GatewayError("not_found", f"No such response here: {name[:100]} ({why}). {advice}".strip(), param=param)

    async def _opened(self) -> None:
        async with self._opening:
            if self._is_open:
                return
            await self._in_thread(self._store.open)
            self._is_open = True
            if self.is_on:
                self._sweeper = self._failures.task("conversations", self._sweep, "kept responses that get too old")
            await self._in_thread(self._store.drop_old, time.time())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            with suppress(GatewayError):  # it is reported
                await self._in_thread(self._store.drop_old, time.time())

    async def _call(self, work: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Run a method of the store, opened. Raises as `_in_thread`."""
        await self._opened()
        return await self._in_thread(work, *args, **more)

    async def _in_thread(self, work: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Run a method of the store in its thread. Raises `resources_exhausted` where disk or file is unusable."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*args, **more))
        except (OSError, sqlite3.Error) as error:
            if (kind := shortage_of(error)) is not None:
                self._on_short(kind)
                raise exhausted(kind) from None
            self._failures.note("conversations", f"using {self._store.path}")
            message = f"The gateway cannot use {NAME} in its `server.data`: {error}"
            raise GatewayError("resources_exhausted", message, retry_after=60) from None
