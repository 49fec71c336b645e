"""The log lines of requests and of everything else, in two forms: JSON for machines, pretty for people; and what writes
them. No line has a prompt, a key, or any text of a client except its `x-request-id`."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from gateway.accounting.record import RequestLine
from gateway.config.snapshot import LogForm
from gateway.domain.tokens import NO_TOKENS
from gateway.printable import visible, visible_json, visible_lines
from gateway.supervision import Failures

EVERY = 0.1  # seconds from a line to its write
KEPT = 10_000  # lines in the queue
PIECE = 200  # lines that are encoded at a time
PAUSE = 0.5  # seconds between two tries to write
LAST = 2.0  # seconds at the end for the remaining lines

_encode = msgspec.json.Encoder().encode


class EventLine(NamedTuple):
    """Anything else that was logged; `text` may have several lines (a traceback)."""

    at: float
    level: int
    logger: str
    text: str


# -- for machines -----------------------------------------------------------------------------------------------------


def as_json(line: RequestLine | EventLine) -> bytes:
    """One JSON object, with its line end."""
    fields = _logged(line) if isinstance(line, RequestLine) else _event_fields(line)
    return visible_json(_encode(fields)) + b"\n"


def _logged(line: RequestLine) -> dict[str, Any]:
    fields = {"time": _stamp(line.at), "level": _level(line.level), "event": "request", **line.shown()}
    if line.left:
        fields["left"] = [f"{left.backend}: {left.kind}" for left in line.left]
    return fields


def _event_fields(line: EventLine) -> dict[str, Any]:
    text = line.text.encode(errors="replace").decode()  # a lone surrogate is not valid JSON
    return {
        "time": _stamp(line.at),
        "level": _level(line.level),
        "event": "log",
        "logger": line.logger,
        "message": text,
    }


def _stamp(at: float) -> str:
    return _stamp_of(int(at * 1000))


@lru_cache(maxsize=8)
def _stamp_of(milliseconds: int) -> str:
    second, rest = divmod(milliseconds, 1000)
    return f"{_second(second)}.{rest:03d}Z"


@lru_cache(maxsize=8)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@lru_cache(maxsize=16)
def _level(level: int) -> str:
    return logging.getLevelName(level).lower()


# -- for people -------------------------------------------------------------------------------------------------------

_COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}
_PLAIN = "\x1b[0m"


def as_pretty(line: RequestLine | EventLine, *, colours: bool = False) -> bytes:
    """One line (an event's traceback may need more, indented), with its end; times are this machine's. Control
    characters are shown as escapes."""
    text = visible(_request_text(line)) if isinstance(line, RequestLine) else visible_lines(line.text)
    stamp = f"{_local_second(int(line.at))}.{int(line.at % 1 * 1000):03d}"
    level = f"{logging.getLevelName(line.level):7}"
    if colours and line.level in _COLOURS:
        level = f"{_COLOURS[line.level]}{level}{_PLAIN}"
    return f"{stamp} {level} {text}\n".encode(errors="replace")


@lru_cache(maxsize=8)
def _local_second(at: int) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def _request_text(line: RequestLine) -> str:
    """`200 hermes chat* writer -> gemma4 (fallback: down)  1203+45 tokens, first 0.08 s, 1.20 s  ID`; * = a stream."""
    words = [line.outcome, line.client, line.endpoint + ("*" if line.stream else "")]
    if line.alias:
        words.append(line.alias)
    if line.backend:
        words.append(f"-> {line.backend}")
    notes = [f"{line.detour[0]}: {line.detour[1]}"] if line.detour is not None else []
    notes += [f"resumed: {line.resumed}"] if line.resumed else []
    notes += line.adapted
    notes += [f"left {left.backend}: {left.kind}" for left in line.left]
    if notes:
        words.append(f"({'; '.join(notes)})")
    numbers = []
    if line.tokens is not NO_TOKENS:
        cached = f" ({line.tokens.cached} cached)" if line.tokens.cached else ""
        numbers.append(f"{line.tokens.prompt}{cached}+{line.tokens.completion} tokens")
    if line.queued >= 0.001:
        numbers.append(f"queued {line.queued:.2f} s")
    if line.stream and line.first_token is not None:
        numbers.append(f"first {line.first_token:.2f} s")
    numbers.append(f"{line.total:.2f} s")
    return f"{' '.join(words)}  {', '.join(numbers)}  {line.id}"


# -- writing ----------------------------------------------------------------------------------------------------------

Form = Callable[[RequestLine | EventLine], bytes]


class LogWriter:
    """The log off the event loop: lines are queued, and a thread encodes and writes them. A slow reader of the log
    cannot delay a request: while lines cannot be written (a full pipe, a full disk), the newest are kept, and older
    ones are dropped and counted.

    `form` encodes a line; `write` writes some of the bytes and returns how many (it may block, and raise
    OSError). `requests` False = no lines of single requests. `put` may be called from any thread."""

    def __init__(self, form: Form, write: Callable[[bytes], int], *, requests: bool = True) -> None:
        self.requests = requests
        self.lost = 0  # lines that were dropped
        self._form = form
        self._write = write
        self._queue: deque[RequestLine | EventLine] = deque(maxlen=KEPT)
        self._wake = threading.Event()
        self._awake = False  # it is set; asking it costs more
        self._stop = threading.Event()
        self.failures = Failures()
        self._thread = threading.Thread(target=self._keep, name="log", daemon=True)
        self._thread.start()

    def put(self, line: RequestLine | EventLine) -> None:
        """Put a line into the queue. Never blocks."""
        if len(self._queue) == KEPT:
            self.lost += 1
        self._queue.append(line)
        if not self._awake:
            self._awake = True
            self._wake.set()

    def close(self) -> None:
        """Write the remaining lines, for some seconds at most."""
        self._stop.set()
        self._wake.set()
        self._thread.join(LAST)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """The thread's loop, which no line can end. Failures are counted: a logged one would come back here."""
        while True:
            try:
                self._run()
            except Exception:
                self.failures.count("log")
                if self._stop.wait(EVERY):
                    return
            else:
                return

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._stop.wait(EVERY)
            self._wake.clear()
            self._awake = False  # before the queue is looked at
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while self._queue:
            lines = [self._queue.popleft() for _ in range(min(PIECE, len(self._queue)))]
            formed = [data for line in lines if (data := self._formed(line))]
            try:
                self._write_all(b"".join(formed))
            except Exception:  # an error of the log cannot be logged
                self.lost += len(formed)

    def _formed(self, line: RequestLine | EventLine) -> bytes:
        """The encoded line; b"" if it cannot be encoded, so that the other lines are still written."""
        try:
            return self._form(line)
        except Exception:
            self.lost += 1
            self.failures.count("log")
            return b""

    def _write_all(self, data: bytes) -> None:
        """Write all bytes, with retries until they are written or the time at the end is over."""
        while data:
            try:
                data = data[self._write(data) :]
            except OSError:
                if self._stop.wait(PAUSE):
                    raise


class QueueHandler(logging.Handler):
    """A logging handler that puts every record into the queue."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer
        self.setFormatter(logging.Formatter())  # the message, and a traceback below it

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.put(EventLine(record.created, record.levelno, record.name, self.format(record)))
        except Exception:
            self.handleError(record)


def open_log(form: LogForm, fd: int = 2) -> LogWriter:
    """Write everything that is logged to `fd` from now on, in this form. The remaining lines are written at exit."""
    terminal = os.isatty(fd)
    pretty = form == "pretty" or (form != "json" and terminal)
    colours = terminal and "NO_COLOR" not in os.environ
    writer = LogWriter(
        (lambda line: as_pretty(line, colours=colours)) if pretty else as_json,
        lambda data: os.write(fd, data),
        requests=form != "none",
    )
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, QueueHandler)]:
        root.removeHandler(handler)
    root.addHandler(QueueHandler(writer))
    root.setLevel(logging.INFO)
    atexit.register(writer.close)
    return writer
