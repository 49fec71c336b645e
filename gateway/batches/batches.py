"""The files and batches of one gateway, as its API uses them: who may see what, how much each may keep, and the batches
under way."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

from gateway.admission.memory import Memory
from gateway.batches.lines import URLS
from gateway.batches.records import BatchRecord, FileRecord
from gateway.batches.runner import BatchRun, BatchRunner, Handle, now
from gateway.batches.store import DAY, NAME, BatchStore, private_opener
from gateway.errors import GatewayError
from gateway.proxy.services import Services

log = logging.getLogger("gateway.batches")

FILES_MOST = 1000  # of one client
BYTES_MOST = 4  # times `server.max_file`: all files of one client
UNFINISHED_MOST = 50  # batches of one client
ENDED_DAYS = 30  # days until a batch that has ended is forgotten
FREE_LEAST = 256 * 1024 * 1024  # bytes of the disk that stay free
LOOK_EVERY = 60.0  # seconds between two looks at what has expired
SHOWN_MOST = 20  # batches in `/status`
WINDOWS = {"24h": DAY}
PURPOSES = ("batch", "assistants", "fine-tune", "vision", "user_data", "evals")


class Batches:
    """`open` starts it. The store is opened with the first use, or when there is one from before."""

    def __init__(self, services: Services, memory: Memory, folder: Path, handle: Handle) -> None:
        self._services = services
        self._failures = services.metrics.failures
        self._folder = folder
        self._store = BatchStore(folder)
        self._runner = BatchRunner(self._store, services, memory, handle)
        self._runs: dict[str, BatchRun] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._opening = asyncio.Lock()
        self._is_open = False
        self._sweeper: asyncio.Task[None] | None = None
        self._latest: list[BatchRecord] = []  # of all clients, the newest first; without those under way

    async def open(self) -> None:
        """Go on with the batches that a stop has interrupted."""
        if (self._folder / NAME).exists():
            try:
                await self._opened()
            except GatewayError as error:
                log.error("batches do not go on: %s", error.message)

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._is_open:
            await self._runner.in_thread(self._store.close)
        self._runner.close()

    def status(self) -> list[dict[str, Any]]:
        """For `/status`: the batches under way, then the last ones that have ended."""
        records = [run.record for run in self._runs.values()] + self._latest
        shown = {record.id: record for record in reversed(records)}
        return [
            {
                "id": record.id,
                "client": record.owner,
                "status": record.status,
                "endpoint": record.endpoint,
                "total": record.total,
                "completed": record.completed,
                "failed": record.failed,
                "created_at": record.created_at,
                "expires_at": record.expires_at,
            }
            for record in sorted(shown.values(), key=lambda one: (not one.unfinished, -one.created_at))[:SHOWN_MOST]
        ]

    # -- files ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def upload(self, owner: str) -> AsyncIterator[Upload]:
        """Write a new file. It exists when `Upload.keep` was called; otherwise its bytes are dropped."""
        await self._opened()
        used = await self._call(self._store.usage, owner)
        limit = self._services.snapshot.server.max_file
        if used.files >= FILES_MOST:
            raise _refused(f"{FILES_MOST} files are kept for one client: delete some first.")
        if used.bytes >= limit * BYTES_MOST:
            raise _refused(f"The files of one client may have {limit * BYTES_MOST} bytes together: delete some first.")
        upload = Upload(self, owner, self._store.path_of(f"file-{secrets.token_hex(12)}"), limit)
        try:
            yield upload
        finally:
            upload.close()

    def check_disk(self, size: int) -> None:
        """Raises `resources_exhausted` when so many more bytes would fill the disk."""
        if self._store.free_bytes() - size < FREE_LEAST:
            raise GatewayError(
                "resources_exhausted", "The disk of the gateway's `server.data` is full.", retry_after=60
            )

    async def add_file(self, record: FileRecord) -> None:
        await self._call(self._store.add_file, record)

    async def files(self, owner: str) -> list[FileRecord]:
        await self._opened()
        return [
            one
            for one in await self._call(self._store.files, owner)
            if one.expires_at is None or one.expires_at > now()
        ]

    async def file(self, owner: str, name: str) -> FileRecord:
        """Raises `not_found`, also for a file of another client."""
        await self._opened()
        found: FileRecord | None = await self._call(self._store.file, name)
        if found is None or found.owner != owner or (found.expires_at is not None and found.expires_at <= now()):
            raise GatewayError("not_found", f"No such file: {name[:100]}", param="file_id")
        return found

    def path_of(self, record: FileRecord) -> Path:
        return self._store.path_of(record.id)

    async def delete_file(self, owner: str, name: str) -> None:
        """Raises `not_found`, and `invalid_request_body` while a batch reads it."""
        record = await self.file(owner, name)
        if any(run.record.input_file_id == record.id for run in self._runs.values()):
            raise GatewayError("invalid_request_body", "A batch that has not ended reads this file: cancel it first.")
        await self._call(self._store.drop_file, record.id)

    # -- batches --------------------------------------------------------------------------------------------------

    async def create(
        self, owner: str, input_file: str, endpoint: str, window: str, metadata: dict[str, str] | None
    ) -> BatchRecord:
        """A new batch, which begins at once. Raises `not_found`, `invalid_request_body`."""
        if endpoint not in URLS:
            raise GatewayError(
                "invalid_request_body", f"`endpoint` must be one of {', '.join(URLS)}.", param="endpoint"
            )
        if window not in WINDOWS:
            message = f"`completion_window` must be {', '.join(WINDOWS)}."
            raise GatewayError("invalid_request_body", message, param="completion_window")
        record = await self.file(owner, input_file)
        used = await self._call(self._store.usage, owner)
        if used.unfinished >= UNFINISHED_MOST:
            raise _refused(f"{UNFINISHED_MOST} batches of one client may be under way: wait, or cancel some.")
        at = now()
        name = f"batch_{secrets.token_hex(12)}"
        batch = BatchRecord(
            name, owner, endpoint, record.id, window, "validating", at, at + WINDOWS[window], metadata=metadata
        )
        await self._call(self._store.save, batch)
        self._begin(batch)
        return batch

    async def batches(self, owner: str) -> list[BatchRecord]:
        await self._opened()
        return [self._fresh(record) for record in await self._call(self._store.batches, owner)]

    async def batch(self, owner: str, name: str) -> BatchRecord:
        """Raises `not_found`, also for a batch of another client."""
        await self._opened()
        found: BatchRecord | None = await self._call(self._store.batch, name)
        if found is None or found.owner != owner:
            raise GatewayError("not_found", f"No such batch: {name[:100]}", param="batch_id")
        return self._fresh(found)

    async def cancel(self, owner: str, name: str) -> BatchRecord:
        """Lines under way are ended; what is done stays. Raises `not_found`, and `invalid_request_body` for a batch
        that has ended."""
        record = await self.batch(owner, name)
        if record.status == "validating":
            run = self._runs.get(record.id)
            while run is not None and run.record.status == "validating" and record.id in self._runs:
                await asyncio.wait([self._tasks[record.id]], timeout=0.05)
            record = await self.batch(owner, name)
        if record.status not in ("in_progress", "cancelling"):
            message = f"The batch is {record.status}: it cannot be cancelled."
            raise GatewayError("invalid_request_body", message)
        if record.status == "in_progress":
            record = await self._call(self._store.move, record.id, "cancelling", now())
            if (run := self._runs.get(record.id)) is not None:
                run.record = record
                run.cancelled.set()
        return record

    def _fresh(self, record: BatchRecord) -> BatchRecord:
        run = self._runs.get(record.id)
        return run.record if run is not None else record

    # -- under way ------------------------------------------------------------------------------------------------

    async def _opened(self) -> None:
        """Open the store, once. Raises `resources_exhausted` where it cannot be."""
        async with self._opening:
            if self._is_open:
                return
            await self._call(self._store.open)
            self._is_open = True
            for record in await self._call(self._store.unfinished):
                self._begin(record)
            self._latest = await self._call(self._store.latest, SHOWN_MOST)
            self._sweeper = self._failures.task("batches", self._sweep, "files and batches that expire")

    async def _call(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run a method of the store in its thread. Raises `resources_exhausted` when the disk does not take it."""
        try:
            return await self._runner.in_thread(work, *args)
        except (OSError, sqlite3.Error) as error:
            self._failures.note("batches", f"using {self._folder / NAME}")
            message = f"The gateway cannot use {NAME} in its `server.data`: {error}"
            raise GatewayError("resources_exhausted", message, retry_after=60) from None

    def _begin(self, record: BatchRecord) -> None:
        run = self._runs[record.id] = BatchRun(record)
        task = self._failures.task("batches", lambda: self._runner.run(self._resumed(run)), record.id)
        self._tasks[record.id] = task
        task.add_done_callback(lambda _: self._ended(run))

    def _resumed(self, run: BatchRun) -> BatchRun:
        """The same batch once more, after the run before has failed inside the gateway."""
        run.stopping = False
        return run

    def _ended(self, run: BatchRun) -> None:
        self._runs.pop(run.record.id, None)
        self._tasks.pop(run.record.id, None)
        self._latest = [run.record, *self._latest][:SHOWN_MOST]

    async def _sweep(self) -> None:
        while True:
            for name in await self._runner.in_thread(self._store.expired_files, now()):
                await self._runner.in_thread(self._store.drop_file, name)
            await self._runner.in_thread(self._store.drop_batches, now() - ENDED_DAYS * DAY)
            await asyncio.sleep(LOOK_EVERY)


class Upload:
    """A file that is being received. `write` raises `request_too_large` and `resources_exhausted`."""

    def __init__(self, batches: Batches, owner: str, path: Path, limit: int) -> None:
        self._batches = batches
        self._owner = owner
        self._path = path
        self._limit = limit
        self._file: BinaryIO | None = None
        self._kept = False
        self.size = 0

    async def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._limit:
            raise GatewayError("request_too_large", f"The file is larger than {self._limit} bytes (`server.max_file`).")
        await asyncio.to_thread(self._write, data)

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._file = open(self._path, "wb", opener=private_opener)  # noqa: SIM115
        self._batches.check_disk(len(data))
        self._file.write(data)

    async def keep(self, filename: str, purpose: str, expires_at: int | None) -> FileRecord:
        """The file is complete."""
        await asyncio.to_thread(self._finish)
        record = FileRecord(self._path.name, self._owner, purpose, filename, self.size, now(), expires_at)
        await self._batches.add_file(record)
        self._kept = True
        return record

    def _finish(self) -> None:
        if self._file is None:
            self._file = open(self._path, "wb", opener=private_opener)  # noqa: SIM115
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def close(self) -> None:
        if self._file is not None and not self._file.closed:
            self._file.close()
        if not self._kept:
            self._path.unlink(missing_ok=True)


def _refused(message: str) -> GatewayError:
    return GatewayError("rate_limit_exceeded", message, retry_after=60)
