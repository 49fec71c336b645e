"""`/v1/embeddings` of a vLLM pooling server."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Mapping
from typing import Any

from simulator import tokens
from simulator.chat import new_shape_id, seconds
from simulator.checks import ApiError
from simulator.server import Exchange


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
        {"index": i, "object": "embedding", "embedding": _vector(t, body.get("encoding_format") == "base64")}
        for i, t in enumerate(texts)
    ]
    usage = {"prompt_tokens": used, "total_tokens": used, "completion_tokens": 0, "prompt_tokens_details": None,
             "completion_tokens_details": None}  # fmt: skip
    head = {"id": new_shape_id(exchange.headers, fresh_id, "embd"), "object": "list", "created": seconds()}
    await exchange.send_json(200, {**head, "model": model, "data": data, "usage": usage}, [("vary", "Origin")])


def _vector(text: str, as_base64: bool) -> list[float] | str:
    """64 numbers that depend on the text alone."""
    digest = hashlib.blake2b(text.encode(), digest_size=64).digest()
    values = [(b - 127.5) / 1024 for b in digest]
    return base64.b64encode(struct.pack("<64f", *values)).decode() if as_base64 else values
