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

from gateway.admission.memory import Share
from gateway.apps.batches.lines import URLS
from gateway.apps.batches.mode_switches import ModeSwitches
from gateway.apps.batches.records import RUNNING, BatchRecord, FileRecord, Schedule, Waiting
from gateway.apps.batches.runner import LOOK, BatchRun, BatchRunner, now
from gateway.apps.batches.store import DAY, BatchStore, Page, StoreAway, StoreFailed, StoreThreads, Usage
from gateway.apps.batches.unserved import why_waiting
from gateway.apps.batches.upload import RETRY_AFTER, BatchUpload, check_bytes, too_much_kept
from gateway.domain.privacy import NO_MARKS, Privacy
from gateway.errors import GatewayError
from gateway.runtime.gateway import Gateway
from gateway.supervision import cancel

log = logging.getLogger("gateway.apps.batches")

FILES_MOST = 1000  # of one client
UNFINISHED_MOST = 50  # batches of one client
ENDED_MOST = 1000  # batches of one client that have ended: older ones are forgotten
ENDED_DAYS = 30  # days until a batch that has ended is forgotten
OPEN_AGAIN = 1.0  # seconds until a store that could not be opened at the start is tried again
LEFT = "This gateway is stopping: ask again, the one that takes over has the files and batches."
SWEEP_EVERY = 60.0  # seconds between two looks at what has expired
RENEW = 1.5  # seconds between two renewals of the leases on lines
CANCELLED_FROM = "validating", "in_progress"  # the statuses of a batch that can be cancelled
PIECE = 1024 * 1024  # bytes of a file that are read at a time
SHOWN_MOST = 20  # batches in `/status`
WINDOWS = {"24h": DAY}
PURPOSES = ("batch", "assistants", "fine-tune", "vision", "user_data", "evals")


class Batches:
    """`open` starts it. The store is opened with the first use, or when there is one from before."""

    def __init__(self, gateway: Gateway, store: BatchStore) -> None:
        self._services = gateway.services
        self._failures = gateway.services.metrics.failures
        self._store = store
        self._threads = StoreThreads(store, gateway.services)
        self._runner = BatchRunner(store, self._threads, gateway)
        self._switches = ModeSwitches(gateway, store, self._threads)
        self._runs: dict[str, BatchRun] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._opening = asyncio.Lock()
        self._adding = asyncio.Lock()  # from a look at what a client keeps until there is one more of it
        self._arriving: dict[str, list[BatchUpload]] = {}  # owner -> the files that come now
        self._is_open = False
        self._is_left = False  # the store is another gateway's
        self._leaving: asyncio.Task[Any] | None = None
        self._received = asyncio.Event()  # a file has come, or will not
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

    def begin_stop(self) -> None:
        """The gateway stops: leave the store to the one that takes over, as soon as no file is being received."""
        self._leaving = self._failures.once("batches", self._leave())

    async def _leave(self) -> None:
        """Lines under way are ended, and run again at the gateway that has the store next."""
        self._is_left = True
        tasks = [*self._helpers, *self._tasks.values()]
        await cancel(*tasks)
        while self._arriving:
            self._received.clear()
            await self._received.wait()
        await self._close_store()

    async def _close_store(self) -> None:
        async with self._opening:
            if self._is_open:
                self._is_open = False
                await self._threads.run(self._store.close)

    async def close(self) -> None:
        self._arriving.clear()  # whoever sends a file now is ended
        self._received.set()
        await (self._leaving or self._leave())
        self._threads.close()

    def status(self, may_see: Callable[[str], bool]) -> list[dict[str, Any]]:
        """For `/status`: the batches under way, then the last ones that have ended, of the clients that the viewer may
        see. `rate`: lines per second over the last minute; `left`: seconds until the last one is done at that rate;
        `waits`: why none of its lines is asked for now. None = not known, or not so."""
        records = [run.record for run in self._runs.values()] + self._latest
        shown = {record.id: record for record in reversed(records) if may_see(record.owner)}
        clock = time.monotonic()
        return [
            {**record.summary(), **self._pace(record, clock), "waits": waits.message if waits is not None else None}
            for record in sorted(shown.values(), key=lambda one: (not one.unfinished, -one.created_at))[:SHOWN_MOST]
            for waits in (self.waits(record),)
        ]

    def _pace(self, record: BatchRecord, clock: float) -> dict[str, float | None]:
        run, done = self._runs.get(record.id), record.done
        rate = run.progress.rate(done, clock) if run is not None and record.status in RUNNING else None
        left = round((record.total - done) / rate, 0) if rate else None
        return {"rate": None if rate is None else round(rate, 2), "left": left}

    # -- files ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def upload(self, owner: str, share: Share) -> AsyncIterator[BatchUpload]:
        """Write a new file. It exists when `Upload.keep` was called; otherwise its bytes are dropped. `share` counts
        those that are not written yet."""
        await self._opened()
        name = f"file-{secrets.token_hex(12)}"
        limit = self._services.snapshot.server.max_file
        arriving = self._arriving.setdefault(owner, [])
        upload = BatchUpload(
            *(owner, name, self._store.new_file(name), limit, share),
            arriving=lambda: sum(one.size for one in arriving),
            add=lambda record: self._add_file(record, limit),
        )
        arriving.append(upload)
        try:
            upload.kept_before = (await self._room(owner, len(arriving), 0, limit)).bytes
            yield upload
        finally:
            arriving.remove(upload)
            await upload.close()
            if not arriving and self._arriving.get(owner) is arriving:
                del self._arriving[owner]
            self._received.set()

    async def _add_file(self, record: FileRecord, limit: int) -> None:
        """`limit`: bytes of one file. Raises `rate_limit_exceeded` where its client keeps too much by now."""
        async with self._adding:
            await self._room(record.owner, 1, record.bytes, limit)
            await self.call(self._store.add_file, record)

    async def _room(self, owner: str, files: int, size: int, limit: int) -> Usage:
        """What this client keeps. Raises `rate_limit_exceeded` where it is too much with so many more files and
        bytes."""
        used: Usage = await self.call(self._store.usage, owner)
        if used.files + files > FILES_MOST:
            raise too_much_kept(f"{FILES_MOST} files are kept for one client: delete some first.")
        check_bytes(used.bytes + size, limit)
        return used

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
        schedule: Schedule | None = None,
    ) -> BatchRecord:
        """A new batch, which begins at once, or by its schedule. `kept`: seconds until the files that it writes
        expire. `privacy`: of the request; that of the input file is added. Raises `not_found`,
        `invalid_request_body`."""
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
            schedule=schedule,
        )
        async with self._adding:
            used = await self._room(owner, 1, 0, self._services.snapshot.server.max_file)
            if used.unfinished >= UNFINISHED_MOST:
                raise too_much_kept(f"{UNFINISHED_MOST} batches of one client may be under way: wait, or cancel some.")
            await self.call(self._store.save, batch)
            await self.call(self._store.drop_ended, owner, ENDED_MOST)
        self._begin(batch)
        return batch

    async def batches(self, owner: str, page: Page) -> list[BatchRecord]:
        """As `BatchStore.batches`."""
        await self._opened()
        found: list[BatchRecord] = await self.call(self._store.batches, owner, page)
        return found

    async def batch(self, owner: str, name: str) -> BatchRecord:
        """Raises `not_found`, also for a batch of another client."""
        await self._opened()
        found: BatchRecord | None = await self.call(self._store.batch, name)
        if found is None or found.owner != owner:
            raise GatewayError("not_found", f"No such batch: {name[:100]}", param="batch_id")
        return found

    def waits(self, record: BatchRecord) -> Waiting | None:
        """Why none of its lines runs now; None: nothing keeps them here."""
        run = self._runs.get(record.id)
        return why_waiting(run, self._services) if run is not None and record.unfinished else None

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
            if self._is_left:
                raise GatewayError("resources_exhausted", LEFT, retry_after=1.0)
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
            self._helpers.append(self._failures.task("batches", self._schedule, "batches with a schedule"))

    async def _open_later(self) -> None:
        while not self._goes_on:
            await asyncio.sleep(OPEN_AGAIN)
            with suppress(GatewayError):  # it is reported
                await self._opened()

    async def call(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run a method of the store in a thread of it. Raises `resources_exhausted` where that cannot be."""
        try:
            return await self._threads.run(work, *args)
        except StoreFailed as error:
            raise GatewayError("resources_exhausted", str(error), retry_after=60) from None
        except StoreAway as error:
            raise GatewayError("resources_exhausted", str(error), retry_after=RETRY_AFTER) from None

    def _begin(self, record: BatchRecord) -> None:
        run = self._runs[record.id] = BatchRun(record)
        task = self._failures.task("batches", lambda: self._runner.run(run), record.id)
        self._tasks[record.id] = task
        task.add_done_callback(lambda _: self._ended(run))

    def _ended(self, run: BatchRun) -> None:
        self._runs.pop(run.record.id, None)
        self._tasks.pop(run.record.id, None)
        if not run.record.unfinished:
            self._latest = [run.record, *self._latest][:SHOWN_MOST]

    async def _schedule(self) -> None:
        while True:
            await self._switches.look(self._runs, self._latest)
            await asyncio.sleep(LOOK)

    async def _sweep(self) -> None:
        while True:
            with suppress(StoreAway):
                for name in await self._threads.run(self._store.expired_files, now()):
                    await self._threads.run(self._store.drop_file, name)
                await self._threads.run(self._store.drop_batches, now() - ENDED_DAYS * DAY)
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
                unfinished = await self._threads.run(self._store.unfinished)
                self._latest = await self._threads.run(self._store.latest, SHOWN_MOST)
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


def _lost(record: FileRecord) -> GatewayError:
    return GatewayError("not_found", f"The content of the file {record.id} was deleted.", param="file_id")
