"""Simulated embeddings and scores: those of a vLLM pooling server, and `/api/embed` of Ollama 0.12.6."""

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
from simulator.validation import ApiError, check_window, invalid

WIDTH = 64  # numbers in a vector


def _vector(text: bytes) -> list[float]:
    """WIDTH numbers that depend on the text alone."""
    return [(byte - 127.5) / 1024 for byte in hashlib.blake2b(text, digest_size=WIDTH).digest()]


# -- vLLM -------------------------------------------------------------------------------------------------------------


async def send_embeddings(exchange: Exchange, body: Mapping[str, Any], model: str, fresh_id: str, window: int) -> None:
    """Vectors that depend on the text alone. Raises ApiError."""
    given = body.get("input")
    inputs = given if isinstance(given, list) and given and isinstance(given[0], str | list) else [given]
    texts = [p if isinstance(p, str) else tokens.decode(p or []) for p in inputs]
    if body.get("dimensions"):
        asked = body["dimensions"]
        text = f"Model '{model}' does not support Matryoshka embeddings; dimensions must be unset"
        raise ApiError(400, f"{text} (received dimensions={asked}).")
    if given == []:
        raise ApiError(400, "You must pass at least one prompt")
    used = sum(_count(t, window, body) for t in texts)
    data = [
        {
            "index": i,
            "object": "embedding",
            "embedding": _encoded(_vector(t.encode()), body.get("encoding_format") == "base64"),
        }
        for i, t in enumerate(texts)
    ]
    usage = _usage(used)
    head = {"id": new_shape_id(exchange.headers, fresh_id, "embd"), "object": "list", "created": seconds()}
    await exchange.send_json(200, {**head, "model": model, "data": data, "usage": usage}, [("vary", "Origin")])


def _encoded(values: list[float], as_base64: bool) -> list[float] | str:
    return base64.b64encode(struct.pack(f"<{WIDTH}f", *values)).decode() if as_base64 else values


def _usage(used: int) -> dict[str, Any]:
    return {"prompt_tokens": used, "total_tokens": used, "completion_tokens": 0, "prompt_tokens_details": None,
            "completion_tokens_details": None}  # fmt: skip


def _count(text: str, window: int, body: Mapping[str, Any]) -> int:
    """The tokens of one input. Raises ApiError where they are too many, and not to be cut."""
    count = tokens.count(text.encode())
    if body.get("truncate_prompt_tokens"):
        return min(count, window)
    check_window(count, window)
    return count


async def send_ranking(exchange: Exchange, body: Mapping[str, Any], model: str, fresh_id: str, window: int) -> None:
    """`/v1/rerank`: the documents, best first. Raises ApiError."""
    _require(body, "query")
    _require(body, "documents")
    documents = body["documents"] if isinstance(body["documents"], list) else [body["documents"]]
    scores, used = _scores([body["query"]], documents, window, body)
    order = sorted(range(len(documents)), key=lambda i: -scores[i])[: body.get("top_n") or None]
    results = [
        {"index": i, "document": {"text": documents[i], "multi_modal": None}, "relevance_score": scores[i]}
        for i in order
    ]
    id_ = new_shape_id(exchange.headers, fresh_id, "score")
    usage = {"prompt_tokens": used, "total_tokens": used}
    await exchange.send_json(200, {"id": id_, "model": model, "usage": usage, "results": results}, [("vary", "Origin")])


async def send_scores(exchange: Exchange, body: Mapping[str, Any], model: str, fresh_id: str, window: int) -> None:
    """`/v1/score`: one for each pair. Raises ApiError."""
    names = next((pair for pair in _PAIRS if pair[0] in body and pair[1] in body), _PAIRS[0])
    for name in names:
        _require(body, name)
    sides = [body[name] if isinstance(body[name], list) else [body[name]] for name in names]
    scores, used = _scores(sides[0], sides[1], window, body)
    data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores)]
    head = {"id": new_shape_id(exchange.headers, fresh_id, "score"), "object": "list", "created": seconds()}
    answer = {**head, "model": model, "data": data, "usage": _usage(used)}
    await exchange.send_json(200, answer, [("vary", "Origin")])


_PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


def _require(body: Mapping[str, Any], name: str) -> None:
    if body.get(name) is None:
        where = f"body.{name}"
        shown = f"'<dict of {len(body)} items>'"
        raise invalid(f"{{'type': 'missing', 'loc': '{where}', 'msg': 'Field required', 'input': {shown}}}", where)


def _scores(one: list[Any], other: list[Any], window: int, body: Mapping[str, Any]) -> tuple[list[float], int]:
    """(the likeness of each pair, -1 to 1, the tokens of all). Equal texts are alike; nothing else is meant by it."""
    if not one or not other:
        raise ApiError(400, "At least one text_pair element must be given")
    if len(one) not in (1, len(other)):
        raise ApiError(400, "Input lengths must be either 1:1, 1:N or N:N")
    pairs = list(zip(one * len(other) if len(one) == 1 else one, other, strict=True))
    vectors = {str(text): _normalised(str(text).encode(), 0) for pair in pairs for text in pair}
    scores = [sum(a * b for a, b in zip(vectors[str(x)], vectors[str(y)], strict=True)) for x, y in pairs]
    return scores, sum(_count(str(x), window, body) + _count(str(y), window, body) for x, y in pairs)


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
