"""`/api/embed` of Ollama 0.12.6."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from simulator import tokens

WIDTH = 64  # numbers in a vector


class BadInput(Exception):
    """What Ollama answers with 400."""


def embed(body: Mapping[str, Any], model: str, window: int) -> dict[str, Any]:
    """The answer, without its durations: vectors of length one that depend on the text alone. An input over the window
    is cut, or with `truncate: false` an error. Raises BadInput."""
    texts = _inputs(body.get("input"))
    used = [tokens.count(text.encode()) for text in texts]
    if body.get("truncate", True) is False and any(count > window for count in used):
        raise BadInput("input exceeds maximum context length")
    kept = [text.encode()[: window * tokens.BYTES_PER_TOKEN] for text in texts]
    vectors = [_vector(text, body.get("dimensions") or 0) for text in kept]
    return {"model": model, "embeddings": vectors, "prompt_eval_count": sum(min(count, window) for count in used)}


def _inputs(given: Any) -> list[str]:
    if given is None or given == "":
        return []
    inputs = given if isinstance(given, list) else [given]
    if not all(isinstance(text, str) for text in inputs):
        raise BadInput("invalid input type")
    return inputs


def _vector(text: bytes, dimensions: int) -> list[float]:
    """`dimensions` of its numbers, all of them where it has no more."""
    values = [(byte - 127.5) / 1024 for byte in hashlib.blake2b(text, digest_size=WIDTH).digest()]
    values = values[:dimensions] if 0 < dimensions < WIDTH else values
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]
