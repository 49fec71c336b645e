"""A whole answer of vectors or scores: is there a usable result for every input, in the encoding that was asked for?

Vectors are large, so they are read one by one, and `steps` gives the event loop a turn after each bit of work."""

from __future__ import annotations

import re
import sys
from array import array
from base64 import b64encode
from binascii import Error, a2b_base64
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.body import UNREADABLE, value_of
from gateway.domain.endpoints import EMBEDDINGS, RERANK
from gateway.domain.pooled import count_inputs
from gateway.domain.request import InferenceRequest
from gateway.domain.tokens import count_of

STEP = 256 * 1024  # bytes that are read at a time, some milliseconds


class _Item(msgspec.Struct):
    """An entry of an answer's list."""

    index: int | None = None
    embedding: Raw = Raw()
    score: float | None = None
    relevance_score: float | None = None


_decode_items = msgspec.json.Decoder(list[_Item]).decode
_decode_vector = msgspec.json.Decoder(list[float]).decode
_decode_text = msgspec.json.Decoder(str).decode
# Fields of a request that leave the vectors as the model gives them. With others they may have any form.
_PLAIN = frozenset(
    {"model", "input", "messages", "encoding_format", "user", "priority", "truncate_prompt_tokens", "truncate",
     "keep_alive", "request_id"}
)  # fmt: skip
_SHAPED = _PLAIN | {"dimensions", "embed_dtype", "endianness"}
_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}  # vLLM's `embed_dtype`


class PooledCheck:
    """`fault`: what is wrong with the answer, a failure of its backend; `inability`: what the backend cannot do, though
    it is well. `dimensions`: of the model's vectors; None = not to be told from the answer. `params`: of the alias."""

    def __init__(self, request: InferenceRequest, results: Raw, params: Mapping[str, Any]) -> None:
        self.fault: str | None = None
        self.inability: str | None = None
        self.dimensions: int | None = None
        self._request = request
        self._results = results
        self._params = params
        self._asked = request.fields.keys() | params.keys()
        self._empty = True  # every number so far is zero

    def steps(self) -> Iterator[None]:
        """Read the answer. To be run to its end."""
        try:
            items = _decode_items(self._results)
        except UNREADABLE:
            self.fault = "answered 200 with results that are none"
            return
        self.fault = self._fault_of(items)
        if self.fault is None and self._request.endpoint is EMBEDDINGS and self._asked <= _SHAPED:
            yield from self._read_vectors(items)
            self._judge_vectors()
        if self.fault is not None or not self._asked <= _PLAIN:
            self.dimensions = None

    def _sent(self, name: str) -> Any:
        """The value of a field as the backend got it."""
        fields = self._request.fields
        return value_of(fields[name]) if name in fields else self._params.get(name)

    def _fault_of(self, items: list[_Item]) -> str | None:
        inputs, count = count_inputs(self._request), len(items)
        top = self._sent("top_n") if self._request.endpoint is RERANK else None
        wanted = inputs if inputs is None or type(top) is not int or top < 1 else min(top, inputs)
        if wanted is not None and count != wanted:
            return f"answered with {count} results where there are {wanted} to give"
        places = {item.index for item in items if _is_place(item.index, inputs)}
        unsaid = self._request.endpoint is not RERANK and all(item.index is None for item in items)  # in order
        if len(places) < count and not unsaid:
            return "answered with results that do not say which input each is of"
        if self._request.endpoint is EMBEDDINGS:
            return None
        scores = [item.relevance_score if self._request.endpoint is RERANK else item.score for item in items]
        if not all(score is not None and isfinite(score) for score in scores):
            return "answered with a score that is no number"
        return None

    def _read_vectors(self, items: list[_Item]) -> Iterator[None]:
        dtype = self._sent("embed_dtype") or "float32"
        read = 0
        for item in items:
            size = self._size_of(item.embedding, dtype)
            if self.fault is not None:
                return
            if self.dimensions not in (None, size):
                self.fault = f"answered with vectors of {self.dimensions} and of {size} numbers"
                return
            self.dimensions = size
            read += len(memoryview(item.embedding))
            if read > STEP:
                read = 0
                yield

    def _size_of(self, raw: Raw, dtype: Any) -> int:
        """The numbers in a vector, a list or base64; sets `fault` where there are none, or one that is not finite."""
        try:
            if bytes(memoryview(raw)[:1]) == b'"':
                packed = a2b_base64(_decode_text(raw))
                if dtype != "float32":
                    self._empty = self._empty and not any(packed)
                    return self._sound(len(packed) // _WIDTHS.get(dtype if isinstance(dtype, str) else "", 1))
                vector: Any = array("f", packed)
                if (self._sent("endianness") == "big") != (sys.byteorder == "big"):
                    vector.byteswap()
            else:
                vector = _decode_vector(raw)
        except (*UNREADABLE, Error, ValueError):
            self.fault = "answered with a vector that is none"
            return 0
        if vector and not isfinite(sum(vector)):
            self.fault = "answered with a vector that has numbers which are not finite"
        self._empty = self._empty and not any(vector)
        return self._sound(len(vector))

    def _sound(self, size: int) -> int:
        if not size and self.fault is None:
            self.fault = "answered with an empty vector"
        return size

    def _judge_vectors(self) -> None:
        asked = self._sent("dimensions")
        if self.fault is not None:
            return
        if self.dimensions is not None and self._empty:
            self.inability = "answers with vectors of zeros: it embeds nothing"
        elif type(asked) is int and self.dimensions not in (None, asked):
            self.inability = f"gives vectors of {self.dimensions} numbers, whatever `dimensions` says"


def _is_place(place: int | None, below: int | None) -> bool:
    return place is not None and place >= 0 and (below is None or place < below)


def prompt_usage(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """The usage with `prompt_tokens`: servers with Jina's API count only `total_tokens`, all of them of the prompt."""
    if usage is None or usage.get("prompt_tokens") is not None or not count_of(usage.get("total_tokens")):
        return usage
    return {**usage, "prompt_tokens": usage["total_tokens"]}


# -- the encoding ------------------------------------------------------------------------------------------------------

_BEGINNING = re.compile(rb'"embedding"\s*:\s*([\["])')
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_entries = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_encode = msgspec.json.Encoder().encode


def in_encoding(body: bytes, results: Raw, asked: Mapping[str, Raw]) -> bytes:
    """The answer with its vectors as `encoding_format` asks. `results`: the list in it; `asked`: the request. Unchanged
    where it is so already, and where a vector is not of float32."""
    wants_text = value_of(asked.get("encoding_format")) == "base64"
    beginning = _BEGINNING.search(memoryview(results)[:4000])
    if beginning is None or (beginning[1] == b'"') is wants_text:
        return body
    if value_of(asked.get("embed_dtype")) not in (None, "float32") or value_of(asked.get("endianness")) == "big":
        return body
    try:
        items = [{**item, "embedding": _converted(item["embedding"])} for item in _decode_entries(results)]
        return _encode({**_decode_fields(body), "data": Raw(_encode(items))})
    except (*UNREADABLE, Error, ValueError, TypeError, KeyError):
        return body


def _converted(raw: Raw) -> Raw:
    value: Any = msgspec.json.decode(raw)
    vector = array("f", a2b_base64(value) if isinstance(value, str) else value)
    if sys.byteorder == "big":
        vector.byteswap()
    return Raw(_encode(vector.tolist() if isinstance(value, str) else b64encode(vector.tobytes()).decode()))
