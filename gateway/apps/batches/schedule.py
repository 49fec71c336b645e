"""When a batch may run: in which mode, and between which times of the day. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

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
