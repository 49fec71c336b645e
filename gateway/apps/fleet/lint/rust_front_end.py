"""vLLM's Rust front end: what puts it before the engine, and what it lacks (vllm_rust.json)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

RUST_VARIABLE = "VLLM_USE_RUST_FRONTEND"
RUST_SINCE = "0.22"  # the first wheels with the binary
BODY_VARIABLE = "VLLM_HTTP_MAX_REQUEST_BODY_SIZE"
BODY_MOST = 32 * 1024 * 1024  # bytes of a request where that variable is not set; 0 = no limit

# Parsers of calls that are one with the parser of thoughts of the same name: without it every chat is a 500.
RUST_UNIFIED = frozenset(("gemma4",))


@dataclass(frozen=True, slots=True)
class RustFrontEnd:
    """`tool_parsers`, `reasoning_parsers`: those it has. `refused_flags`: flags that end its start where they have
    another value than this default of vLLM's; None = whatever value they have."""

    version: str
    tool_parsers: frozenset[str]
    reasoning_parsers: frozenset[str]
    refused_flags: Mapping[str, Any]


@cache
def rust_front_end() -> RustFrontEnd:
    """The table of the version that was read last."""
    return msgspec.json.decode(Path(__file__).with_name("vllm_rust.json").read_bytes(), type=RustFrontEnd)


def chooses_rust(environment: Mapping[str, str]) -> bool:
    """Do these variables put the Rust front end before the engine?"""
    value = environment.get(RUST_VARIABLE, "0").strip()
    return value.isdecimal() and int(value) != 0


def body_most(environment: Mapping[str, str]) -> int | None:
    """The bytes that it takes of a request; None = any number, or that is not known."""
    value = environment.get(BODY_VARIABLE, str(BODY_MOST)).strip()
    return int(value) or None if value.isdecimal() and len(value) < 19 else None
