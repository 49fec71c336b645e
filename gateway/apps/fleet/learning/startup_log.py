"""The figures that a vLLM logs when it starts: weights, cache, tokens, graphs, the share and the memory it saw.
Pure."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO

from gateway.apps.control.unit_commands import SSH, with_credentials
from gateway.apps.fleet.preflight.run import Send, send
from gateway.config.snapshot import Observed

GIB = 2**30
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = r"(-?\d[\d,]*(?:\.\d+)?)"
_MOST_LINE = 8192  # characters of a line that are looked at
# Where a start begins. The second stands behind the first in one start, and alone in the log of a worker.
_BEGINS = re.compile(r"vLLM API server version|vLLM (?:API )?server starting|Initializing a V\d LLM engine")
_VERSION = re.compile(r"(?:\bversion |LLM engine \(v)(\d+\.\d+[\w.+-]*)")
_MODEL = re.compile(r"""(?:\bmodel_tag['"]?: |\bmodel['"]?[:=] ?)['"]([^'"]{1,300})['"]""")
_FIGURES: Mapping[str, re.Pattern[str]] = {
    "weights": re.compile(rf"[Mm]odel (?:loading took|weights take) {_NUMBER} ?Gi?B"),
    "kv": re.compile(rf"Available KV cache memory: {_NUMBER} ?GiB"),
    "tokens": re.compile(rf"KV cache size: {_NUMBER} tokens"),
    "window": re.compile(rf"Maximum concurrency for {_NUMBER} tokens"),
    "concurrency": re.compile(rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x"),
    "graphs": re.compile(rf"Graph capturing finished in [\d.]+ secs?, took {_NUMBER} ?GiB"),
    "free": re.compile(rf"Free memory on device [^(]*\({_NUMBER}/"),
    "memory": re.compile(rf"Free memory on device [^(]*\([\d.]+/{_NUMBER} ?GiB"),
    "utilization": re.compile(r"(?:GPU|device) memory utilization (?:is )?\((0?\.\d+|1(?:\.0+)?)[,)]"),
}
_ARGUMENTS: Mapping[str, re.Pattern[str]] = {  # of the line `non-default args: {...}`
    "utilization": re.compile(r"'gpu_memory_utilization': (0?\.\d+|1(?:\.0+)?)"),
    "window": re.compile(r"'max_model_len': (\d+)"),
    "cache_dtype": re.compile(r"'kv_cache_dtype': '(\w{1,40})'"),
}
_SIZES = ("weights", "kv", "graphs", "free", "memory")
# Every line that is read, as an expression for `grep -E`.
LINES = (
    "vLLM API server version|LLM engine \\(v|odel loading took|odel weights take|Available KV cache memory|"
    "KV cache size|"
    "Maximum concurrency|Graph capturing finished|Free memory on device|non-default args"
)


@dataclass(frozen=True, slots=True)
class EngineStart:
    """One start of an engine: the names of its model, and what it said."""

    models: frozenset[str] = frozenset()
    observed: Observed = field(default_factory=Observed)

    @property
    def has_cache(self) -> bool:
        """Whether it came as far as its cache."""
        return self.observed.kv is not None or self.observed.tokens is not None


def last_start(lines: Iterable[str]) -> EngineStart | None:
    """The last start in a log that came as far as its cache; None if there is none. Of an engine over several processes
    the largest weights and the smallest cache count."""
    found: EngineStart | None = None
    start = EngineStart()
    for line in lines:
        text = _ANSI.sub("", line[:_MOST_LINE])
        if _BEGINS.search(text) and (start.observed.weights or start.has_cache or "API server" in text):
            found = start if start.has_cache else found
            start = EngineStart()
        start = _with_line(start, text)
    return start if start.has_cache else found


def _with_line(start: EngineStart, text: str) -> EngineStart:
    seen = start.observed
    version = _VERSION.search(text)
    if version and seen.engine is None:
        seen = replace(seen, engine=version[1])
    values = {key: match[1] for key, pattern in _FIGURES.items() if (match := pattern.search(text))}
    if "non-default args" in text:
        values |= {key: match[1] for key, pattern in _ARGUMENTS.items() if (match := pattern.search(text))}
    models = start.models | set(_MODEL.findall(text)[:8]) if "non-default args" in text or version else start.models
    for key, written in values.items():
        joined: Any = _joined(key, getattr(seen, key), _value(key, written))
        seen = replace(seen, **{key: joined})
    return EngineStart(models, seen)


def _value(key: str, written: str) -> float | int | str:
    if key == "cache_dtype":
        return written
    number = float(written.replace(",", ""))
    if key in _SIZES:
        return max(0, round(number * GIB))
    return round(number) if key in ("tokens", "window") else number


def _joined(key: str, before: float | int | str | None, now: float | int | str) -> float | int | str:
    if before is None or isinstance(before, str) or isinstance(now, str):
        return now
    if key == "weights":
        return max(before, now)
    return min(before, now) if key in ("kv", "tokens", "free") else now


_MOST_LINE = 65536  # bytes
_MOST_LINES = 2000
_SECONDS = 60.0

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


def lines_of_node(target: str, container: str, send: Send = send) -> list[str]:
    """The start-up lines of a container, or of the unit of that name, on the node that ssh reaches at `target`. Raises
    NoLog."""
    argv = with_credentials((*SSH, target, "sh", "-s"))
    ran = send(argv, _SCRIPT.format(name=quote(container), lines=quote(LINES)), _SECONDS)
    if not ran.ok:
        raise NoLog(f"ssh {target}: {ran.why[:200] or 'no answer'}")
    return ran.out.splitlines()
