"""What the store keeps of files and batches, and how OpenAI's API shows it; when a batch may run: in which mode, and
between which times of the day. Times are whole Unix seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from gateway.domain.privacy import NO_MARKS, Privacy
from gateway.errors import GatewayError

_TIMES = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
PARAM = "metadata.when"


@dataclass(frozen=True, slots=True)
class Schedule:
    """`mode`: the one in which its lines run, "" = any; the fleet is switched to it. `begins`, `ends`: minutes of the
    day, by the clock of the gateway's machine; equal = all day."""

    mode: str = ""
    begins: int = 0
    ends: int = 0

    @property
    def between(self) -> str:
        return "-".join(f"{at // 60:02}:{at % 60:02}" for at in (self.begins, self.ends))

    def is_open(self, at: float) -> bool:
        """At this time (Unix seconds)? A window may go over midnight."""
        local = time.localtime(at)
        since = (local.tm_hour * 60 + local.tm_min - self.begins) % 1440
        return self.begins == self.ends or since < (self.ends - self.begins) % 1440


def schedule_of(metadata: Mapping[str, str] | None, modes: Collection[str]) -> Schedule | None:
    """That of a new batch's `metadata.when`; None = it runs whenever it can. Raises `invalid_request_body`."""
    text = (metadata or {}).get("when")
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise _wrong("it is not JSON") from None
    if unknown := found.keys() - {"mode", "between"}:
        raise _wrong(f"unknown key {min(unknown)!r}")
    mode, between = found.get("mode", ""), found.get("between")
    if not isinstance(mode, str) or (mode and mode not in modes):
        raise _wrong(f"there is no mode {str(mode)[:64]!r}; modes: {', '.join(modes) or 'none'}")
    if between is None:
        return Schedule(mode)
    times = _TIMES.fullmatch(between) if isinstance(between, str) else None
    if times is None:
        raise _wrong("`between` must be two times of the day, as 01:00-06:00")
    hour, minute, until, past = map(int, times.groups())
    return Schedule(mode, hour * 60 + minute, until * 60 + past)


def _wrong(what: str) -> GatewayError:
    wanted = '\'{"mode": "judges", "between": "01:00-06:00"}\', as a string'
    return GatewayError("invalid_request_body", f"`{PARAM}` must be {wanted}: {what}.", param=PARAM)


Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
UNFINISHED: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
RUNNING: tuple[Status, ...] = ("in_progress", "cancelling")

# Of a line that is answered, failed, or was ended by an admin: the counter of the batch, and the number in the stores.
KINDS = {True: ("completed", 1), False: ("failed", 0), None: ("cancelled", 2)}

# The field of a batch that says when it came to a status.
STAMPS: dict[Status, str] = {status: f"{status}_at" for status in get_args(Status) if status != "validating"}


class Waiting(NamedTuple):
    """Why no line of a batch runs now."""

    code: str
    message: str


def _fields(record: FileRecord | BatchRecord, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One stored file. `owner`: the client's name; "open" without `clients`. `expires_at` None = kept. `privacy`: of
    the request that it came with."""

    id: str
    owner: str
    purpose: str
    filename: str
    bytes: int
    created_at: int
    expires_at: int | None = None
    privacy: Privacy = NO_MARKS

    def as_json(self) -> dict[str, Any]:
        fields = _fields(self, "bytes", "created_at", "filename", "purpose")
        shown = {"id": self.id, "object": "file", **fields, "status": "processed"}
        return shown if self.expires_at is None else {**shown, "expires_at": self.expires_at}


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch. `ending`: the status that follows when it is finalized. `models`: what its lines name, the first few.
    `stamps`: field of `STAMPS` -> time. `kept`: seconds until the files that it writes expire; None = the usual.
    `cancelled`: lines that an admin has ended. `stored`: bytes of its lines and results in the store, about.
    `privacy`: of the request that began it and of its input; that of its lines and of the files that it writes.
    `schedule`: when it may run; None = always. `switched`: the operation that has put its mode in force, "" = none has.
    `mode_before`: the one to go back to, "" = none."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    window: str
    status: Status
    created_at: int
    expires_at: int
    ending: Status = "completed"
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    metadata: dict[str, str] | None = None
    models: tuple[str, ...] = ()
    errors: list[dict[str, Any]] = field(default_factory=list)
    stamps: dict[str, int] = field(default_factory=dict)
    kept: int | None = None
    stored: int = 0
    privacy: Privacy = NO_MARKS
    schedule: Schedule | None = None
    switched: str = ""
    mode_before: str = ""

    @property
    def unfinished(self) -> bool:
        return self.status in UNFINISHED

    @property
    def done(self) -> int:
        """Its lines that have a result."""
        return self.completed + self.failed + self.cancelled

    def moved(self, status: Status, now: int, **changes: Any) -> BatchRecord:
        """The same batch with another status and these changes."""
        stamp = STAMPS.get(status) if status != self.status else None
        stamps = self.stamps if stamp is None else {**self.stamps, stamp: now}
        return replace(self, status=status, stamps=stamps, **changes)

    def summary(self) -> dict[str, Any]:
        """For `/status`."""
        shown = _fields(
            self,
            "status",
            "endpoint",
            "models",
            "total",
            "completed",
            "failed",
            "cancelled",
            "created_at",
            "expires_at",
        )
        return {"id": self.id, "client": self.owner, **shown}

    def as_json(self, waits: Waiting | None = None) -> dict[str, Any]:
        """`waits`: why none of its lines runs now."""
        waiting = {**waits._asdict(), "param": None, "line": None} if waits is not None else {}
        errors = self.errors or ([waiting] if waiting else [])
        return {
            "id": self.id,
            "object": "batch",
            "errors": {"object": "list", "data": errors} if errors else None,
            "completion_window": self.window,
            **_fields(self, "endpoint", "input_file_id", "status", "output_file_id", "error_file_id", "metadata"),
            **_fields(self, "created_at", "expires_at"),
            **{stamp: self.stamps.get(stamp) for stamp in STAMPS.values()},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
        }


@dataclass(frozen=True, slots=True)
class LineRecord:
    """One line of a batch that has no result yet: `size` bytes from `at` of the input file. `number` counts from 0,
    `model` is the one that its request names."""

    number: int
    at: int
    size: int
    custom_id: str
    model: str
