"""Vectors in the encoding that the client asked for."""

from __future__ import annotations

import json
from array import array
from base64 import b64decode, b64encode
from typing import Any

import pytest
from msgspec import Raw

from gateway.inspection.pooled import in_encoding

NUMBERS = [0.5, -1.0, 3.25]
PACKED = b64encode(array("f", NUMBERS).tobytes()).decode()


def encoded(embedding: Any, **asked: Any) -> tuple[Any, bool]:
    """(the vector that the client gets, is the answer unchanged?)"""
    items = [{"object": "embedding", "index": i, "embedding": embedding} for i in range(2)]
    body = json.dumps({"object": "list", "data": items, "model": "m"}).encode()
    got = in_encoding(body, Raw(json.dumps(items).encode()), {k: Raw(json.dumps(v).encode()) for k, v in asked.items()})
    vectors = [item["embedding"] for item in json.loads(got)["data"]]
    assert vectors[0] == vectors[1]
    return vectors[0], got == body


def test_floats_become_base64_where_that_was_asked_for() -> None:
    vector, _ = encoded(NUMBERS, encoding_format="base64")
    assert array("f", b64decode(vector)).tolist() == NUMBERS


@pytest.mark.parametrize("asked", [{}, {"encoding_format": "float"}, {"encoding_format": None}])
def test_base64_becomes_floats_where_these_were_asked_for(asked: dict[str, Any]) -> None:
    assert encoded(PACKED, **asked) == (NUMBERS, False)


@pytest.mark.parametrize(
    ("embedding", "asked"),
    [
        (NUMBERS, {}),
        (PACKED, {"encoding_format": "base64"}),
        (PACKED, {"embed_dtype": "float16"}),
        (PACKED, {"endianness": "big"}),
        ("no base64!", {}),
        (["a"], {"encoding_format": "base64"}),
        (None, {}),
    ],
)
def test_anything_else_is_left_as_it_is(embedding: Any, asked: dict[str, Any]) -> None:
    assert encoded(embedding, **asked) == (embedding, True)
