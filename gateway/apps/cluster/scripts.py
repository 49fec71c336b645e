"""The script that runs inside Redis, and how its operations are encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import msgspec

from gateway.config.snapshot import Backend

PREFIX = "spark-gateway:"  # of all keys: one fleet per database
FILES = ("base", "limits", "slots", "state", "operations", "main")  # in this order they are one script

Operation = Sequence[Any]  # its name, then its arguments; no None in it
Batch = list[tuple[Operation, Callable[[Any], None]]]  # each with the callback for its answer

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder().decode


def ignore(_: Any) -> None:
    """The callback of an operation without a result."""


def source() -> str:
    """The script as it is loaded into Redis."""
    folder = files("gateway.apps.cluster") / "lua"
    return "\n".join((folder / f"{name}.lua").read_text() for name in FILES)


def arguments(gateway: str, present: float, operations: Sequence[Operation], now: float | None = None) -> list[Any]:
    """ARGV of one batch. `present`: seconds that the gateway counts as present from now on. `now` (seconds) instead of
    Redis' own clock is for tests."""
    time = "" if now is None else str(round(now * 1000))
    return [time, gateway, round(present * 1000), encode(operations)]


def key_of(backend: Backend) -> str:
    """The name of a backend among gateways: the same running server has the same key everywhere."""
    return " ".join(part or "" for part in backend.identity)
