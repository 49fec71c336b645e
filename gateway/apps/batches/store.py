"""What keeps files and batches: the interface of the stores, and the threads in which the event loop uses one, because
it blocks. `sqlite_store.py` is the one of a gateway that is alone, `redis_store.py` the one that several share."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from gateway.apps.batches.lines import LineError
from gateway.apps.batches.records import BatchRecord, FileRecord, LineRecord, Status
from gateway.proxy.services import Services
from gateway.shortage import WORDS, shortage_of

log = logging.getLogger("gateway.apps.batches")
T = TypeVar("T")

DAY = 86400
OUTPUT_DAYS = 30  # days until the files that a batch wrote expire
KEPT_MOST = 4  # times `server.max_file`: bytes of all files of one client, and of its unfinished batches
LINES_MOST = 1_000_000  # of one batch
LINE_COST = 400  # bytes of the store for a line, about, without its name
MODELS_MOST = 8  # models of a batch that are named
AWAY = 0.5  # seconds until a store that is away is asked again
FULL = 5.0  # the same of one that is full, or whose disk fails: a validation begins anew each time
NOTED_EVERY = 60.0  # seconds between two reports of a store that fails
EXPIRED = "batch_expired", "The batch expired before this line was run."  # code and message of a row


class StoreAway(Exception):
    """The store cannot be used for now; the text says why and what to do. What was asked may be asked again."""


class StoreFull(StoreAway):
    """There is no room for more bytes."""


class StoreFailed(StoreAway):
    """Its disk does not do what was asked: it is full, locked or broken. Or its Redis refuses what was asked."""


class BatchGone(Exception):
    """The store has lost this batch."""


class NoEntry(Exception):
    """The list has no entry of the id that a page was to begin after."""


class Page(NamedTuple):
    """A part of a list. `after`: the id of the entry before it; None: it begins with the first one. `descending`: the
    newest first."""

    limit: int
    after: str | None = None
    descending: bool = True


class Usage(NamedTuple):
    """What one owner keeps. `bytes`: of its files, and of the lines and results of its unfinished batches."""

    files: int
    bytes: int
    unfinished: int


class FileWriter(Protocol):
    """The content of a new file. Raises StoreAway, StoreFull. It is kept once `BatchStore.add_file` was called after
    `finish`. `held`: bytes of it that are in memory."""

    @property
    def held(self) -> int: ...

    def write(self, data: bytes) -> None: ...

    def finish(self) -> None: ...

    def drop(self) -> None: ...


class BatchStore(Protocol):
    """`where`: the store, for people. `threads`: how many may use it at a time. `shared`: other gateways work on the
    same batches, so lines are leased to one gateway at a time, until `renew` is not called any more."""

    where: str
    threads: int
    shared: bool

    @property
    def there(self) -> bool:
        """May there be batches from before the start?"""

    def open(self) -> None: ...

    def close(self) -> None:
        """Lines that are leased to this gateway are free for the others at once."""

    # -- files ----------------------------------------------------------------------------------------------------

    def new_file(self, name: str) -> FileWriter: ...

    def read_file(self, name: str, at: int, size: int) -> bytes:
        """At most `size` bytes from `at` of its content; fewer where that ends, or was lost."""

    def path_of(self, name: str) -> Path | None:
        """Where its content is a file of its own; None = it is not."""
        return None

    def add_file(self, record: FileRecord) -> None:
        """Its content was written already."""

    def file(self, name: str) -> FileRecord | None: ...

    def files(self, owner: str) -> list[FileRecord]:
        """The newest first."""

    def drop_file(self, name: str) -> None: ...

    def expired_files(self, now: int) -> list[str]:
        """Their names; without those that unfinished batches read."""

    def usage(self, owner: str) -> Usage: ...

    # -- batches --------------------------------------------------------------------------------------------------

    def save(self, record: BatchRecord) -> None:
        """Keep a new batch."""

    def batch(self, name: str) -> BatchRecord | None: ...

    def batches(self, owner: str, page: Page) -> list[BatchRecord]:
        """One page, and one entry more where there are more. Raises NoEntry."""

    def unfinished(self) -> list[BatchRecord]:
        """Of all owners, the oldest first."""

    def latest(self, count: int) -> list[BatchRecord]:
        """Of all owners, the newest first."""

    def drop_batches(self, before: int) -> None:
        """Forget the batches that were created before this time and have ended."""

    def drop_ended(self, owner: str, most: int) -> None:
        """Forget all but the newest `most` batches of this owner that have ended."""

    def move(self, batch: str, before: Sequence[Status], status: Status, now: int, **changes: Any) -> BatchRecord:
        """Give the batch another status and these changes, if its status is one of `before`. Returns the batch as it
        is then. Raises BatchGone."""

    # -- lines ----------------------------------------------------------------------------------------------------

    def index(self, record: BatchRecord, line_most: int, kept_most: int, now: int) -> Iterator[BatchRecord | None]:
        """Find the lines of the input of a batch that is being validated. Lines that cannot be run get their row of the
        error file at once; the batch fails where lines are too many, or need more room than their client may use.
        `line_most`: bytes of one line; `kept_most`: that its client may keep together. May be repeated after an
        interruption. Step by step: between two steps other methods may be called. The last one gives the batch as it is
        then; its status is the same while another gateway does this. Raises BatchGone."""
        ...

    def take(self, batch: str, after: int, most: int, running: Collection[int]) -> list[LineRecord]:
        """At most so many lines without a result that no other gateway runs: with a higher number than `after`, or
        leased by this call. `running`: numbers of the lines that this gateway runs already. Raises BatchGone."""

    def read(self, record: BatchRecord, line: LineRecord) -> bytes:
        """Raises LineError where the input file was lost."""
        found = self.read_file(record.input_file_id, line.at, line.size)
        if len(found) < line.size:
            raise LineError(str(LOST["code"]), str(LOST["message"]), line.custom_id)
        return found

    def add_result(self, batch: str, number: int, row: bytes, *, ok: bool | None) -> BatchRecord:
        """Commit the result of a line; the first one counts. `ok` None: an admin has ended it. Returns the batch
        with its counts. Raises BatchGone."""

    def renew(self, batches: Collection[str]) -> None:
        """Keep the leases of this gateway, which works on these batches."""
        return

    def release(self, batch: str) -> None:
        """This gateway works on this batch no more: its lines are free for the others."""
        return

    def finalize(self, record: BatchRecord, now: int) -> Iterator[BatchRecord | None]:
        """Write the output and error files, and end the batch with its `ending`. May be repeated. Steps as those of
        `index`."""
        ...


class StoreThreads:
    """`store` is used nowhere else."""

    def __init__(self, store: BatchStore, services: Services) -> None:
        self._store = store
        self._services = services
        self._thread = ThreadPoolExecutor(store.threads, "batches")
        self._noted = float("-inf")  # when a failure of the store was last reported

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    async def run(self, work: Callable[..., T], *args: Any, **more: Any) -> T:
        """Run one method of the store. Raises StoreAway, also where its disk fails."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args, **more))
        except StoreAway as error:
            self._report(error)
            raise
        except (OSError, sqlite3.Error) as error:
            failure: StoreAway
            if (kind := shortage_of(error)) is not None:
                self._services.on_short(kind)
                failure = StoreFull(f"The gateway itself is short of {WORDS[kind]}: delete files, or make room there.")
            else:
                failure = StoreFailed(f"The gateway cannot use {self._store.where}: {error}")
            self._report(failure)
            raise failure from None

    def _report(self, failure: StoreAway) -> None:
        """One that is full or fails; not again for a while: what asks it goes on asking."""
        clock = time.monotonic()
        if clock - self._noted < NOTED_EVERY or not isinstance(failure, StoreFull | StoreFailed):
            return
        self._noted = clock
        if isinstance(failure, StoreFailed):
            self._services.metrics.failures.note("batches", f"using {self._store.where}")
        else:
            log.error("batches wait, and results that have come are kept in memory: %s", failure)

    async def patiently(self, work: Callable[..., T], *args: Any, **more: Any) -> T:
        """Run one method of the store; while that is away, full or broken, again and again."""
        return await _again(lambda: self.run(work, *args, **more))

    async def in_steps(self, begin: Callable[[], Iterator[BatchRecord | None]]) -> BatchRecord:
        """Long work of the store, step by step: what others ask of it comes between two steps. While the store is away,
        full or broken, from the beginning again and again."""

        async def all_steps() -> BatchRecord:
            steps = begin()
            done: BatchRecord | None = None
            while done is None:
                done = await self.run(next, steps)
            return done

        return await _again(all_steps)


async def _again(work: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await work()
        except StoreAway as error:
            log.debug("batches wait: %s", error)
            await asyncio.sleep(pause_of(error))


def pause_of(error: StoreAway) -> float:
    """Seconds until the store is asked again."""
    return FULL if isinstance(error, StoreFull | StoreFailed) else AWAY


# -- what both stores say of a batch ----------------------------------------------------------------------------------


def with_model(models: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The models of a batch with one more, as long as that is one of the first few."""
    return models if name in models or len(models) >= MODELS_MOST else (*models, name)


def too_much(lines: int, kept: int, kept_most: int) -> dict[str, Any] | None:
    """The error of a batch with so many lines, whose client keeps so many bytes; None where both are few enough."""
    if lines > LINES_MOST:
        return _failure("too_many_lines", f"The input file has more than {LINES_MOST} lines: divide it.")
    if kept > kept_most:
        message = f"Its lines and your files need more than {kept_most} bytes: delete some files, or divide it."
        return _failure("storage_full", message)
    return None


def _failure(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "message": message, "param": None, "line": None}


EMPTY_FILE = _failure("empty_file", "The input file has no lines.")
LOST = _failure("input_file_lost", "The gateway has lost a part of the input file: send it again.")


def duplicate(custom_id: str) -> LineError:
    message = f"`custom_id` '{custom_id}' is the one of an earlier line."
    return LineError("duplicate_custom_id", message, custom_id)


def output_files(record: BatchRecord, now: int) -> Iterator[tuple[bool, FileRecord]]:
    """(is it the output file, the file without its size) of the two files that a batch writes."""
    for key in ("output", "error"):
        name = f"file-{key}-{record.id.removeprefix('batch_')}"
        kept_until = now + (OUTPUT_DAYS * DAY if record.kept is None else record.kept)
        shown = f"{record.id}_{key}.jsonl"
        file = FileRecord(name, record.owner, "batch_output", shown, 0, now, kept_until, record.privacy)
        yield key == "output", file
