"""What a check saw a backend do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Observation:
    """`mended`: the raw answer is wrong, but what the gateway's clients see is right. `seen` says in words what came.
    `at`: when, in Unix seconds; 0 = not said."""

    result: Literal["yes", "mended", "no", "untested"]
    seen: str
    at: float = 0.0
