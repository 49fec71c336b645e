"""A file that a client is sending, on its way into the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from gateway.admission.memory import Share
from gateway.apps.batches.records import FileRecord
from gateway.apps.batches.runner import now
from gateway.apps.batches.store import KEPT_MOST, FileWriter, StoreAway
from gateway.domain.privacy import NO_MARKS, Privacy
from gateway.errors import GatewayError
from gateway.shortage import shortage_of
from gateway.transport.sse import HeldBytes

RETRY_AFTER = 5.0  # seconds, where the store is away


class BatchUpload:
    """A file that is being received; `share` counts what of it is not written yet. `write` raises `request_too_large`,
    `memory_full` and `resources_exhausted`. `arriving`: bytes of all files of its client that come now; `add` keeps the
    complete file."""

    def __init__(
        self,
        owner: str,
        name: str,
        file: FileWriter,
        limit: int,
        share: Share,
        arriving: Callable[[], int],
        add: Callable[[FileRecord], Awaitable[None]],
    ) -> None:
        self._arriving, self._add = arriving, add
        self._owner = owner
        self._name = name
        self._file = file
        self._limit = limit
        self._share, self._held = share, HeldBytes(share)
        self._kept = False
        self.kept_before = 0  # bytes of the other files of its client, as it began
        self.size = 0

    async def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._limit:
            raise GatewayError("request_too_large", f"The file is larger than {self._limit} bytes (`server.max_file`).")
        check_bytes(self.kept_before + self._arriving(), self._limit)
        self._share.add(len(data))
        try:
            await self._in_thread(self._file.write, data)
            self._held.set(self._file.held)
        finally:
            self._share.release(len(data))

    async def keep(
        self, filename: str, purpose: str, expires_at: int | None, privacy: Privacy = NO_MARKS
    ) -> FileRecord:
        """The file is complete."""
        await self._in_thread(self._file.finish)
        record = FileRecord(self._name, self._owner, purpose, filename, self.size, now(), expires_at, privacy)
        await self._add(record)
        self._kept = True
        return record

    async def close(self) -> None:
        self._share.close()
        if not self._kept:
            with suppress(StoreAway, OSError):
                await asyncio.to_thread(self._file.drop)

    async def _in_thread(self, work: Callable[..., None], *args: Any) -> None:
        """Not in the threads of the store, which a slow disk would hold up."""
        try:
            await asyncio.to_thread(work, *args)
        except StoreAway as error:
            raise GatewayError("resources_exhausted", str(error), retry_after=RETRY_AFTER) from None
        except OSError as error:
            if shortage_of(error) is not None:
                raise  # it is counted where it is answered
            message = f"The gateway cannot keep the file in its `server.data`: {error.strerror or error}"
            raise GatewayError("resources_exhausted", message, retry_after=60) from None


def check_bytes(size: int, limit: int) -> None:
    """May the files of one client have so many bytes, where one may have `limit`? Raises `rate_limit_exceeded`."""
    if size > limit * KEPT_MOST:
        raise too_much_kept(f"The files of one client may have {limit * KEPT_MOST} bytes together: delete some first.")


def too_much_kept(message: str) -> GatewayError:
    return GatewayError("rate_limit_exceeded", message, retry_after=60)
