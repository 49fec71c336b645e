"""The memory of simulated nodes: what a process takes, and what it says when that is not free."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

GIB = 1024**3
SYSTEM = round(3.6 * GIB)  # what the system of a DGX Spark itself holds; the memory plan counts the same
UTILIZATION = 0.92  # vLLM's default of --gpu-memory-utilization
_OLLAMA_WEIGHT = 0.65  # bytes of a weight in Ollama's usual quantization
_OLLAMA_BESIDES = round(1.5 * GIB)  # the cache and the runner of a model


class Node(Protocol):
    """A machine, its memory in bytes."""

    memory: int

    def free(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Share:
    """What one process takes of a node: `holds` bytes from its start on. `utilization`: the part of the node's whole
    memory that vLLM asks to be free at its start; None for servers that do not look."""

    node: Node
    holds: int
    utilization: float | None = None

    @property
    def wants(self) -> float:
        """Bytes that must be free at the start."""
        return (self.utilization or 0.0) * self.node.memory


def refusal(shares: Iterable[Share]) -> str | None:
    """The last words of a process for which a node has too little memory free; None = it starts."""
    for share in shares:
        free, memory = share.node.free(), share.node.memory
        if share.utilization is not None and share.wants > free:
            return (
                f"ValueError: Free memory on device ({_gib(free)}/{_gib(memory)} GiB) on startup is less than desired "
                f"GPU memory utilization ({share.utilization}, {_gib(share.wants)} GiB). Decrease GPU memory "
                "utilization or reduce GPU memory used by other processes."
            )
        if share.holds > free:
            return (
                f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_gib(share.holds)} GiB. GPU 0 has a "
                f"total capacity of {_gib(memory)} GiB of which {_gib(free)} GiB is free."
            )
    return None


def _gib(count: float) -> float:
    return round(max(count, 0.0) / GIB, 2)


def ollama_model_size(model: str) -> int:
    """Bytes that a model of Ollama holds, guessed from the parameters in its name (`qwen3:8b`)."""
    found = re.search(r"(\d+(?:\.\d+)?)b\b", model.lower())
    return round(float(found[1] if found else 8) * 1e9 * _OLLAMA_WEIGHT) + _OLLAMA_BESIDES
