"""The log off the event loop: lines are queued, and a thread encodes and writes them.

A slow reader of the log cannot delay a request: while lines cannot be written (a full pipe, a full disk), the newest
are kept, and older ones are dropped and counted.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable

from gateway.accounting.record import RequestLine
from gateway.config.snapshot import LogForm
from gateway.observe.log import EventLine, as_json, as_pretty
from gateway.supervision import Failures

EVERY = 0.1  # seconds from a line to its write
KEPT = 10_000  # lines in the queue
PIECE = 200  # lines that are encoded at a time
PAUSE = 0.5  # seconds between two tries to write
LAST = 2.0  # seconds at the end for the remaining lines

Form = Callable[[RequestLine | EventLine], bytes]


class LogWriter:
    """`form` encodes a line; `write` writes some of the bytes and returns how many (it may block, and raise
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
        """The thread's loop, which no line can end. Failures are counted, not logged: a log line would come back
        here."""
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
