"""Fetches the lines of an engine's start-up log: from a file, or from the node's docker and journal over ssh."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import BinaryIO

from gateway.apps.control.unit_commands import SSH, with_credentials
from gateway.apps.fleet.learning.startup_log import LINES
from gateway.apps.fleet.preflight.host import CommandResult, run_bounded

_MOST_LINE = 65536  # bytes
_MOST_LINES = 2000
_MOST_ANSWER = 4 * 1024 * 1024
_SECONDS = 60.0

Send = Callable[[Sequence[str], str, float], CommandResult]  # argument vector, input, seconds
# The container's own log first; a container that is gone has its lines in the journal.
_SCRIPT = """\
found=$(docker logs {name} 2>&1 | grep -aE {lines} | tail -n 400)
[ -n "$found" ] || found=$(journalctl -u {name}.service --no-pager -o cat -n 500000 2>/dev/null |
  grep -aE {lines} | tail -n 400)
printf '%s\\n' "$found"
"""


class NoLog(Exception):
    """There is no log to read; the message says why, and what to do."""


def lines_of_file(path: Path) -> list[str]:
    """The start-up lines of a log file, the last of them; `-` is the standard input. Raises NoLog."""
    try:
        if str(path) == "-":
            return _wanted(sys.stdin.buffer)
        with path.open("rb") as file:
            return _wanted(file)
    except OSError as error:
        raise NoLog(f"'{path}' cannot be read: {error.strerror or error}") from None


def _wanted(file: BinaryIO) -> list[str]:
    """The lines that tell something, without holding the whole log."""
    wanted = re.compile(LINES.encode())
    found: deque[bytes] = deque(maxlen=_MOST_LINES)
    while line := file.readline(_MOST_LINE):
        if wanted.search(line):
            found.append(line)
    return [line.decode("utf-8", "replace") for line in found]


def send(argv: Sequence[str], text: str, seconds: float) -> CommandResult:
    return run_bounded(argv, seconds, text, _MOST_ANSWER)


def lines_of_node(target: str, container: str, send: Send = send) -> list[str]:
    """The start-up lines of a container, or of the unit of that name, on the node that ssh reaches at `target`. Raises
    NoLog."""
    argv = with_credentials((*SSH, target, "sh", "-s"))
    ran = send(argv, _SCRIPT.format(name=quote(container), lines=quote(LINES)), _SECONDS)
    if not ran.ok:
        raise NoLog(f"ssh {target}: {ran.why[:200] or 'no answer'}")
    return ran.out.splitlines()
