"""Vectors in the encoding that the client asked for: lists of numbers, or base64 of little-endian float32. Pure."""

from __future__ import annotations

import re
import sys
from array import array
from base64 import b64encode
from binascii import Error, a2b_base64
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gateway.domain.body import UNREADABLE, value_of

_BEGINNING = re.compile(rb'"embedding"\s*:\s*([\["])')
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items = msgspec.json.Decoder(list[dict[str, Raw]]).decode
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
        items = [{**item, "embedding": _converted(item["embedding"])} for item in _decode_items(results)]
        return _encode({**_decode_fields(body), "data": Raw(_encode(items))})
    except (*UNREADABLE, Error, ValueError, TypeError, KeyError):
        return body


def _converted(raw: Raw) -> Raw:
    value: Any = msgspec.json.decode(raw)
    vector = array("f", a2b_base64(value) if isinstance(value, str) else value)
    if sys.byteorder == "big":
        vector.byteswap()
    return Raw(_encode(vector.tolist() if isinstance(value, str) else b64encode(vector.tobytes()).decode()))
