"""What one backend asks of one node: memory that must be free when it starts, and what it holds once it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["yes", "barely", "no", "unknown"]
Source = Literal["measured", "observed", "estimated", "unknown"]


@dataclass(frozen=True, slots=True)
class Demand:
    """The memory that `backend` asks of one node, in GiB. `needs`: free at its start; `resident`: held once it runs, as
    `source` says; `overhead`: gone beside that; `loading`: the most that is gone while it loads and profiles, None
    where that is not known to be more. `weights`, `kv`: this node's share; `tokens`, `windows`: of the whole engine;
    `span`: the fewest and the most tokens where `tokens` is not sure enough to be named. `verdict`, `reason`: whether
    the engine starts where it is alone. `note`: a remark for the operator."""

    backend: str
    needs: float | None = None
    resident: float | None = None
    overhead: float = 0.0
    target: float | None = None
    weights: float | None = None
    kv: float | None = None
    tokens: int | None = None
    windows: float | None = None
    span: tuple[int, int] | None = None
    loading: float | None = None
    source: Source = "unknown"
    verdict: Verdict = "yes"
    reason: str = ""
    note: str = ""

    @property
    def held(self) -> float | None:
        """GiB of the node's memory that are gone once it runs."""
        return None if self.resident is None else self.resident + self.overhead


@dataclass(frozen=True, slots=True)
class Place:
    """Where a backend is planned: GiB of this node, and of every node it runs on whose memory is known."""

    memory: float
    memories: tuple[float, ...]
