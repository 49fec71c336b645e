"""What keeps files and batches: the interface of the stores. `sqlite_store.py` is the one of a gateway that is alone,
`redis_store.py` the one that several gateways share. Everything here blocks: the event loop calls it in threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gateway.apps.batches.lines import LineError
from gateway.apps.batches.records import BatchRecord, FileRecord, LineRecord, Status

DAY = 86400
OUTPUT_DAYS = 30  # days until the files that a batch wrote expire
KEPT_MOST = 4  # times `server.max_file`: bytes of all files of one client, and of its unfinished batches
LINES_MOST = 1_000_000  # of one batch
LINE_COST = 400  # bytes of the store for a line, about, without its name
MODELS_MOST = 8  # models of a batch that are named
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


class Bounds(NamedTuple):
    """Bytes of one line of a batch, and bytes that its client may keep together."""

    line: int
    kept: int


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


class BatchStore(ABC):
    """`where`: the store, for people. `threads`: how many may use it at a time. `shared`: other gateways work on the
    same batches, so lines are leased to one gateway at a time, until `renew` is not called any more."""

    where: str
    threads: int
    shared: bool

    @property
    @abstractmethod
    def there(self) -> bool:
        """May there be batches from before the start?"""

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Lines that are leased to this gateway are free for the others at once."""

    # -- files ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def new_file(self, name: str) -> FileWriter: ...

    @abstractmethod
    def read_file(self, name: str, at: int, size: int) -> bytes:
        """At most `size` bytes from `at` of its content; fewer where that ends, or was lost."""

    def path_of(self, name: str) -> Path | None:
        """Where its content is a file of its own; None = it is not."""
        return None

    @abstractmethod
    def add_file(self, record: FileRecord) -> None:
        """Its content was written already."""

    @abstractmethod
    def file(self, name: str) -> FileRecord | None: ...

    @abstractmethod
    def files(self, owner: str) -> list[FileRecord]:
        """The newest first."""

    @abstractmethod
    def drop_file(self, name: str) -> None: ...

    @abstractmethod
    def expired_files(self, now: int) -> list[str]:
        """Their names; without those that unfinished batches read."""

    @abstractmethod
    def usage(self, owner: str) -> Usage: ...

    # -- batches --------------------------------------------------------------------------------------------------

    @abstractmethod
    def save(self, record: BatchRecord) -> None:
        """Keep a new batch."""

    @abstractmethod
    def batch(self, name: str) -> BatchRecord | None: ...

    @abstractmethod
    def batches(self, owner: str, page: Page) -> list[BatchRecord]:
        """One page, and one entry more where there are more. Raises NoEntry."""

    @abstractmethod
    def unfinished(self) -> list[BatchRecord]:
        """Of all owners, the oldest first."""

    @abstractmethod
    def latest(self, count: int) -> list[BatchRecord]:
        """Of all owners, the newest first."""

    @abstractmethod
    def drop_batches(self, before: int) -> None:
        """Forget the batches that were created before this time and have ended."""

    @abstractmethod
    def drop_ended(self, owner: str, most: int) -> None:
        """Forget all but the newest `most` batches of this owner that have ended."""

    @abstractmethod
    def move(self, batch: str, before: Sequence[Status], status: Status, now: int, **changes: Any) -> BatchRecord:
        """Give the batch another status and these changes, if its status is one of `before`. Returns the batch as it
        is then. Raises BatchGone."""

    # -- lines ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def index(self, record: BatchRecord, most: Bounds, now: int) -> BatchRecord:
        """Find the lines of the input of a batch that is being validated. Lines that cannot be run get their row of
        the error file at once; the batch fails where lines are too many, or need more room than their client may use.
        May be repeated after an interruption. Returns the batch as it is then; its status is the same while another
        gateway does this. Raises BatchGone."""

    def indexing(self, record: BatchRecord, most: Bounds, now: int) -> Iterator[BatchRecord | None]:
        """`index` step by step: between two steps other methods may be called. The last step gives the batch."""
        yield self.index(record, most, now)

    @abstractmethod
    def take(self, batch: str, after: int, most: int, running: Collection[int]) -> list[LineRecord]:
        """At most so many lines without a result that no other gateway runs: with a higher number than `after`, or
        leased by this call. `running`: numbers of the lines that this gateway runs already. Raises BatchGone."""

    def read(self, record: BatchRecord, line: LineRecord) -> bytes:
        """Raises LineError where the input file was lost."""
        found = self.read_file(record.input_file_id, line.at, line.size)
        if len(found) < line.size:
            raise LineError(str(LOST["code"]), str(LOST["message"]), line.custom_id)
        return found

    @abstractmethod
    def add_result(self, batch: str, number: int, row: bytes, *, ok: bool) -> BatchRecord:
        """Commit the result of a line; the first one counts. Returns the batch with its counts. Raises BatchGone."""

    @abstractmethod
    def renew(self, batches: Collection[str]) -> None:
        """Keep the leases of this gateway, which works on these batches."""

    @abstractmethod
    def release(self, batch: str) -> None:
        """This gateway works on this batch no more: its lines are free for the others."""

    @abstractmethod
    def finalize(self, record: BatchRecord, now: int) -> BatchRecord:
        """Write the output and error files, and end the batch with its `ending`. May be repeated. Returns the batch as
        `index` does."""

    def finalizing(self, record: BatchRecord, now: int) -> Iterator[BatchRecord | None]:
        """`finalize` step by step, as `indexing` is."""
        yield self.finalize(record, now)


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
