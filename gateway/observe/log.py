"""The log lines of requests and of everything else, in two forms: JSON for machines, pretty for people. Pure;
log_writer.py writes them. No line has a prompt, a key, or any text of a client except its `x-request-id`."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from gateway.accounting.record import RequestLine
from gateway.domain.usage import NO_TOKENS
from gateway.printable import visible, visible_json, visible_lines

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
