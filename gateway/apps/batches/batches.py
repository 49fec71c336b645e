"""The files and batches of one gateway, as its API uses them: who may see what, how much each may keep, and the batches
under way."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from gateway.admission.memory import Memory, Share
from gateway.apps.batches.lines import URLS
from gateway.apps.batches.records import RUNNING, BatchRecord, FileRecord
from gateway.apps.batches.runner import LOOK, BatchRun, BatchRunner, Handle, now
from gateway.apps.batches.store import DAY, BatchStore, FileWriter, StoreAway, StoreFailed
from gateway.domain.privacy import NO_MARKS, Privacy
from gateway.errors import GatewayError
from gateway.proxy.services import Services
from gateway.transport.held import HeldBytes

log = logging.getLogger("gateway.apps.batches")

FILES_MOST = 1000  # of one client
BYTES_MOST = 4  # times `server.max_file`: all files of one client
UNFINISHED_MOST = 50  # batches of one client
ENDED_DAYS = 30  # days until a batch that has ended is forgotten
OPEN_AGAIN = 10.0  # seconds until a store that could not be opened at the start is tried again
SWEEP_EVERY = 60.0  # seconds between two looks at what has expired
RENEW = 1.5  # seconds between two renewals of the leases on lines
CANCELLED_FROM = "validating", "in_progress"  # the statuses of a batch that can be cancelled
PIECE = 1024 * 1024  # bytes of a file that are read at a time
RETRY_AFTER = 5.0  # seconds, where the store is away
SHOWN_MOST = 20  # batches in `/status`
WINDOWS = {"24h": DAY}
PURPOSES = ("batch", "assistants", "fine-tune", "vision", "user_data", "evals")


class Batches:
    """`open` starts it. The store is opened with the first use, or when there is one from before."""

    def __init__(self, services: Services, memory: Memory, store: BatchStore, handle: Handle) -> None:
        self._services = services
        self._failures = services.metrics.failures
        self._store = store
        self._runner = BatchRunner(store, services, memory, handle)
        self._runs: dict[str, BatchRun] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._opening = asyncio.Lock()
        self._adding = asyncio.Lock()  # from a look at what a client keeps until there is one more of it
        self._arriving: dict[str, list[Upload]] = {}  # owner -> the files that come now
        self._is_open = False
        self._goes_on = False  # what was unfinished is under way
        self._helpers: list[asyncio.Task[None]] = []  # sweep; with several gateways also renew and follow
        self._latest: list[BatchRecord] = []  # of all clients, the newest first; without those under way

    async def open(self) -> None:
        """Go on with the batches that a stop has interrupted, and with those of other gateways."""
        if self._store.shared:
            self._helpers += [
                self._failures.task("batches", self._renew, "leases on lines of batches"),
                self._failures.task("batches", self._follow, "batches of all gateways"),
            ]
        elif self._store.there:
            try:
                await self._opened()
            except GatewayError as error:
                log.error("batches do not go on yet: %s", error.message)
                self._helpers.append(self._failures.task("batches", self._open_later, "batches from before"))

    async def close(self) -> None:
        tasks = [*self._helpers, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._is_open:
            await self._runner.in_thread(self._store.close)
        self._runner.close()

    def status(self, may_see: Callable[[str], bool]) -> list[dict[str, Any]]:
        """For `/status`: the batches under way, then the last ones that have ended, of the clients that the viewer may
        see. `rate`: lines per second over the last minute; `left`: seconds until the last one is done at that rate;
        None = not known."""
        records = [run.record for run in self._runs.values()] + self._latest
        shown = {record.id: record for record in reversed(records) if may_see(record.owner)}
        clock = time.monotonic()
        return [
            {**record.summary(), **self._pace(record, clock)}
            for record in sorted(shown.values(), key=lambda one: (not one.unfinished, -one.created_at))[:SHOWN_MOST]
        ]

    def _pace(self, record: BatchRecord, clock: float) -> dict[str, float | None]:
        run, done = self._runs.get(record.id), record.completed + record.failed
        rate = run.progress.rate(done, clock) if run is not None and record.status in RUNNING else None
        left = (record.total - done) / rate if rate else None
        return {"rate": _rounded(rate, 2), "left": _rounded(left, 0)}

    # -- files ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def upload(self, owner: str, share: Share) -> AsyncIterator[Upload]:
        """Write a new file. It exists when `Upload.keep` was called; otherwise its bytes are dropped. `share` counts
        those that are not written yet."""
        await self._opened()
        name = f"file-{secrets.token_hex(12)}"
        limit = self._services.snapshot.server.max_file
        upload = Upload(self, owner, name, self._store.new_file(name), limit, share)
        arriving = self._arriving.setdefault(owner, [])
        arriving.append(upload)
        try:
            upload.kept_before = await self._room(owner, len(arriving), 0, limit)
            yield upload
        finally:
            arriving.remove(upload)
            if not arriving:
                self._arriving.pop(owner, None)
            await upload.close()

    def arriving(self, owner: str) -> int:
        """Bytes of the files of this client that come now."""
        return sum(upload.size for upload in self._arriving.get(owner, ()))

    async def add_file(self, record: FileRecord, limit: int) -> None:
        """`limit`: bytes of one file. Raises `rate_limit_exceeded` where its client keeps too much by now."""
        async with self._adding:
            await self._room(record.owner, 1, record.bytes, limit)
            await self.call(self._store.add_file, record)

    async def _room(self, owner: str, files: int, size: int, limit: int) -> int:
        """The bytes of the files of this client. Raises `rate_limit_exceeded` where these are too many with so many
        more files and bytes."""
        used = await self.call(self._store.usage, owner)
        if used.files + files > FILES_MOST:
            raise _refused(f"{FILES_MOST} files are kept for one client: delete some first.")
        check_bytes(used.bytes + size, limit)
        return int(used.bytes)

    async def files(self, owner: str) -> list[FileRecord]:
        await self._opened()
        return [
            one for one in await self.call(self._store.files, owner) if one.expires_at is None or one.expires_at > now()
        ]

    async def file(self, owner: str, name: str) -> FileRecord:
        """Raises `not_found`, also for a file of another client."""
        await self._opened()
        found: FileRecord | None = await self.call(self._store.file, name)
        if found is None or found.owner != owner or (found.expires_at is not None and found.expires_at <= now()):
            raise GatewayError("not_found", f"No such file: {name[:100]}", param="file_id")
        return found

    def path_of(self, record: FileRecord) -> Path | None:
        """Where its content is a file of its own; else `content` has it. Raises `not_found` where it was lost."""
        path = self._store.path_of(record.id)
        if path is not None and not path.is_file():
            raise _lost(record)
        return path

    async def content(self, record: FileRecord) -> AsyncIterator[bytes]:
        """Raises `resources_exhausted` between its pieces."""
        at = 0
        while at < record.bytes:
            piece: bytes = await self.call(self._store.read_file, record.id, at, PIECE)
            if not piece:
                raise _lost(record)
            at += len(piece)
            yield piece

    async def delete_file(self, owner: str, name: str) -> None:
        """Raises `not_found`, and `invalid_request_body` while a batch reads it."""
        record = await self.file(owner, name)
        if any(one.input_file_id == record.id for one in await self.call(self._store.unfinished)):
            raise GatewayError("invalid_request_body", "A batch that has not ended reads this file: cancel it first.")
        await self.call(self._store.drop_file, record.id)

    # -- batches --------------------------------------------------------------------------------------------------

    async def create(
        self,
        owner: str,
        input_file: str,
        endpoint: str,
        window: str,
        metadata: dict[str, str] | None,
        kept: int | None = None,
        privacy: Privacy = NO_MARKS,
    ) -> BatchRecord:
        """A new batch, which begins at once. `kept`: seconds until the files that it writes expire. `privacy`: of the
        request; that of the input file is added. Raises `not_found`, `invalid_request_body`."""
        if endpoint not in URLS:
            raise GatewayError(
                "invalid_request_body", f"`endpoint` must be one of {', '.join(URLS)}.", param="endpoint"
            )
        if window not in WINDOWS:
            message = f"`completion_window` must be {', '.join(WINDOWS)}."
            raise GatewayError("invalid_request_body", message, param="completion_window")
        record = await self.file(owner, input_file)
        at = now()
        name = f"batch_{secrets.token_hex(12)}"
        batch = BatchRecord(
            name,
            owner,
            endpoint,
            record.id,
            window,
            "validating",
            at,
            at + WINDOWS[window],
            metadata=metadata,
            kept=kept,
            privacy=privacy | record.privacy,
        )
        async with self._adding:
            used = await self.call(self._store.usage, owner)
            if used.unfinished >= UNFINISHED_MOST:
                raise _refused(f"{UNFINISHED_MOST} batches of one client may be under way: wait, or cancel some.")
            await self.call(self._store.save, batch)
        self._begin(batch)
        return batch

    async def batches(self, owner: str) -> list[BatchRecord]:
        await self._opened()
        found: list[BatchRecord] = await self.call(self._store.batches, owner)
        return found

    async def batch(self, owner: str, name: str) -> BatchRecord:
        """Raises `not_found`, also for a batch of another client."""
        await self._opened()
        found: BatchRecord | None = await self.call(self._store.batch, name)
        if found is None or found.owner != owner:
            raise GatewayError("not_found", f"No such batch: {name[:100]}", param="batch_id")
        return found

    async def cancel(self, owner: str, name: str) -> BatchRecord:
        """Lines under way are ended; what is done stays. Raises `not_found`, and `invalid_request_body` for a batch
        that has ended."""
        record = await self.batch(owner, name)
        if record.status in CANCELLED_FROM:
            record = await self.call(self._store.move, record.id, CANCELLED_FROM, "cancelling", now())
            if (run := self._runs.get(record.id)) is not None:
                run.follow(record)
        if record.status != "cancelling":
            message = f"The batch is {record.status}: it cannot be cancelled."
            raise GatewayError("invalid_request_body", message)
        return record

    # -- under way ------------------------------------------------------------------------------------------------

    async def _opened(self) -> None:
        """Open the store, once. Raises `resources_exhausted` where it cannot be."""
        async with self._opening:
            if self._goes_on:
                return
            if not self._is_open:
                await self.call(self._store.open)
                self._is_open = True
            unfinished = await self.call(self._store.unfinished)
            self._latest = await self.call(self._store.latest, SHOWN_MOST)
            self._goes_on = True
            for record in unfinished:
                self._follow_one(record)
            self._helpers.append(self._failures.task("batches", self._sweep, "files and batches that expire"))

    async def _open_later(self) -> None:
        while not self._goes_on:
            await asyncio.sleep(OPEN_AGAIN)
            with suppress(GatewayError):  # it is reported
                await self._opened()

    async def call(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run a method of the store in a thread of it. Raises `resources_exhausted` where that cannot be."""
        try:
            return await self._runner.in_thread(work, *args)
        except StoreFailed as error:
            raise GatewayError("resources_exhausted", str(error), retry_after=60) from None
        except StoreAway as error:
            raise GatewayError("resources_exhausted", str(error), retry_after=RETRY_AFTER) from None

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
        if not run.record.unfinished:
            self._latest = [run.record, *self._latest][:SHOWN_MOST]

    async def _sweep(self) -> None:
        while True:
            with suppress(StoreAway):
                for name in await self._runner.in_thread(self._store.expired_files, now()):
                    await self._runner.in_thread(self._store.drop_file, name)
                await self._runner.in_thread(self._store.drop_batches, now() - ENDED_DAYS * DAY)
            await asyncio.sleep(SWEEP_EVERY)

    # -- with several gateways ------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Not in the threads of the runner, which may be busy for longer than a lease lasts."""
        while True:
            with suppress(StoreAway):
                await asyncio.to_thread(self._store.renew, tuple(self._runs))
            await asyncio.sleep(RENEW)

    async def _follow(self) -> None:
        """Work on the batches of all gateways, and see what the others have done with them."""
        while True:
            try:
                await self._opened()
                unfinished = await self._runner.in_thread(self._store.unfinished)
                self._latest = await self._runner.in_thread(self._store.latest, SHOWN_MOST)
            except (StoreAway, GatewayError) as error:
                log.debug("batches are not followed: %s", error)
            else:
                for record in unfinished:
                    self._follow_one(record)
            await asyncio.sleep(LOOK)

    def _follow_one(self, record: BatchRecord) -> None:
        """Of several gateways, one whose routes.yaml does not know the client leaves its batches to the others, until
        they expire: then any gateway ends them."""
        run = self._runs.get(record.id)
        if run is not None:
            run.follow(record)
        elif not self._store.shared or self._runner.knows(record.owner) or record.expires_at <= now():
            self._begin(record)


class Upload:
    """A file that is being received. `write` raises `request_too_large` and `resources_exhausted`."""

    def __init__(self, batches: Batches, owner: str, name: str, file: FileWriter, limit: int, share: Share) -> None:
        self._batches = batches
        self._owner = owner
        self._name = name
        self._file = file
        self._limit = limit
        self._share = share
        self._held = HeldBytes(share)
        self._kept = False
        self.kept_before = 0  # bytes of the other files of its client, as it began
        self.size = 0

    async def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._limit:
            raise GatewayError("request_too_large", f"The file is larger than {self._limit} bytes (`server.max_file`).")
        check_bytes(self.kept_before + self._batches.arriving(self._owner), self._limit)
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
        await self._batches.add_file(record, self._limit)
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
            message = f"The gateway cannot keep the file in its `server.data`: {error.strerror or error}"
            raise GatewayError("resources_exhausted", message, retry_after=60) from None


def check_bytes(size: int, limit: int) -> None:
    """May the files of one client have so many bytes, where one may have `limit`? Raises `rate_limit_exceeded`."""
    if size > limit * BYTES_MOST:
        raise _refused(f"The files of one client may have {limit * BYTES_MOST} bytes together: delete some first.")


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _lost(record: FileRecord) -> GatewayError:
    return GatewayError("not_found", f"The content of the file {record.id} was deleted.", param="file_id")


def _refused(message: str) -> GatewayError:
    return GatewayError("rate_limit_exceeded", message, retry_after=60)
