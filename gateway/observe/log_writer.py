"""The log off the event loop: lines are queued, and formed and written by a thread of its own.

Whoever reads the log can't hold up a request: while nobody takes the lines (a full pipe, a full disk) the newest are
kept, older ones are given up and counted.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from gateway.accounting.record import RequestRecord
from gateway.config.snapshot import LogForm
from gateway.observe.log import EventLine, RequestLine, as_json, as_pretty, request_line
from gateway.supervision import Failures

EVERY = 0.1  # seconds from a line to its write
KEPT = 10_000  # lines that wait
PIECE = 200  # lines that are formed at a time
PAUSE = 0.5  # seconds between two tries to write
LAST = 2.0  # seconds for what is left at the end

Form = Callable[[RequestLine | EventLine], bytes]


class LogWriter:
    """`form` makes bytes of a line, `write` takes some of them and says how many (it may wait, and raise OSError).
    `requests` False = no lines of single requests. Anybody may put lines into it."""

    def __init__(self, form: Form, write: Callable[[bytes], int], *, requests: bool = True) -> None:
        self.requests = requests
        self.lost = 0  # lines that were given up
        self._form = form
        self._write = write
        self._queue: deque[RequestLine | EventLine] = deque(maxlen=KEPT)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self.failures = Failures()
        self._thread = threading.Thread(target=self._keep, name="log", daemon=True)
        self._thread.start()

    def put(self, line: RequestLine | EventLine) -> None:
        """Never waits."""
        if len(self._queue) == KEPT:
            self.lost += 1
        self._queue.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def request_ended(self, record: RequestRecord) -> None:
        if self.requests:
            self.put(request_line(record, time.time()))

    def close(self) -> None:
        """Write what is left, for some seconds at most."""
        self._stop.set()
        self._wake.set()
        self._thread.join(LAST)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """No line ends the thread. (What fails here is counted, not logged: it would come back here.)"""
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
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while self._queue:
            lines = [self._queue.popleft() for _ in range(min(PIECE, len(self._queue)))]
            formed = [data for line in lines if (data := self._formed(line))]
            try:
                self._write_all(b"".join(formed))
            except Exception:  # there is nobody who could be told
                self.lost += len(formed)

    def _formed(self, line: RequestLine | EventLine) -> bytes:
        """b"" for one that cannot be formed: it takes no other with it."""
        try:
            return self._form(line)
        except Exception:
            self.lost += 1
            self.failures.count("log")
            return b""

    def _write_all(self, data: bytes) -> None:
        """Tried again until it is written, or all ends."""
        while data:
            try:
                data = data[self._write(data) :]
            except OSError:
                if self._stop.wait(PAUSE):
                    raise


class QueueHandler(logging.Handler):
    """Puts everything that is logged into the same queue."""

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
    """Everything that is logged goes to `fd` from now on, in this form; what is left is written at the exit."""
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
