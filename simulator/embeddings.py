"""Simulated embeddings: `/v1/embeddings` of a vLLM pooling server and `/api/embed` of Ollama 0.12.6."""

from __future__ import annotations

import base64
import hashlib
import math
import struct
from collections.abc import Mapping
from typing import Any

from simulator import tokens
from simulator.chat import new_shape_id, seconds
from simulator.server import Exchange
from simulator.validation import ApiError

WIDTH = 64  # numbers in a vector


def _vector(text: bytes) -> list[float]:
    """WIDTH numbers that depend on the text alone."""
    return [(byte - 127.5) / 1024 for byte in hashlib.blake2b(text, digest_size=WIDTH).digest()]


# -- vLLM -------------------------------------------------------------------------------------------------------------


async def send_embeddings(exchange: Exchange, body: Mapping[str, Any], model: str, fresh_id: str) -> None:
    """Vectors that depend on the text alone. Raises ApiError."""
    given = body.get("input")
    inputs = given if isinstance(given, list) and given and isinstance(given[0], str | list) else [given]
    texts = [p if isinstance(p, str) else tokens.decode(p or []) for p in inputs]
    if body.get("dimensions"):
        asked = body["dimensions"]
        text = f"Model '{model}' does not support Matryoshka embeddings; dimensions must be unset"
        raise ApiError(400, f"{text} (received dimensions={asked}).")
    used = sum(tokens.count(t.encode()) for t in texts)
    data = [
        {
            "index": i,
            "object": "embedding",
            "embedding": _encoded(_vector(t.encode()), body.get("encoding_format") == "base64"),
        }
        for i, t in enumerate(texts)
    ]
    usage = {"prompt_tokens": used, "total_tokens": used, "completion_tokens": 0, "prompt_tokens_details": None,
             "completion_tokens_details": None}  # fmt: skip
    head = {"id": new_shape_id(exchange.headers, fresh_id, "embd"), "object": "list", "created": seconds()}
    await exchange.send_json(200, {**head, "model": model, "data": data, "usage": usage}, [("vary", "Origin")])


def _encoded(values: list[float], as_base64: bool) -> list[float] | str:
    return base64.b64encode(struct.pack(f"<{WIDTH}f", *values)).decode() if as_base64 else values


# -- Ollama -----------------------------------------------------------------------------------------------------------


class BadInput(Exception):
    """An input that Ollama refuses with 400."""


def embed(body: Mapping[str, Any], model: str, window: int) -> dict[str, Any]:
    """The answer, without its durations: vectors of length one that depend on the text alone. An input over the window
    is cut, or with `truncate: false` an error. Raises BadInput."""
    texts = _inputs(body.get("input"))
    used = [tokens.count(text.encode()) for text in texts]
    if body.get("truncate", True) is False and any(count > window for count in used):
        raise BadInput("input exceeds maximum context length")
    kept = [text.encode()[: window * tokens.BYTES_PER_TOKEN] for text in texts]
    vectors = [_normalised(text, body.get("dimensions") or 0) for text in kept]
    return {"model": model, "embeddings": vectors, "prompt_eval_count": sum(min(count, window) for count in used)}


def _inputs(given: Any) -> list[str]:
    if given is None or given == "":
        return []
    inputs = given if isinstance(given, list) else [given]
    if not all(isinstance(text, str) for text in inputs):
        raise BadInput("invalid input type")
    return inputs


def _normalised(text: bytes, dimensions: int) -> list[float]:
    """A vector of length one with `dimensions` numbers; 0, or more than there are: WIDTH."""
    values = _vector(text)
    values = values[:dimensions] if 0 < dimensions < WIDTH else values
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]
