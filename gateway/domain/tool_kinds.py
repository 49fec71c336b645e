"""Whether a chat offers tools, and whether all of them are functions in a chat's form."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

ToolKinds = Literal["none", "functions", "others"]

_BRACKET, _BRACE = ord("["), ord("{")
_KEPT_MOST = 64  # lists whose kind is kept
_SIZE_MOST = 64 * 1024  # bytes of one
_END = 48  # bytes at the end of a list by which it is found


class _Tool(msgspec.Struct):
    type: Any = None
    function: Raw | UnsetType = UNSET


_decode = msgspec.json.Decoder(list[_Tool]).decode
_kept: dict[tuple[int, bytes], tuple[bytes, ToolKinds]] = {}


def offers_tools(raw: Raw) -> bool:
    """Is this value of `tools` a list with an entry?"""
    view = memoryview(raw)
    return view[0] == _BRACKET and (view[1] == _BRACE or bytes(view[1:-1]).strip() != b"")


def tool_kinds(raw: Raw) -> ToolKinds:
    """`others`: there is a tool that is no function, or a function in another API's form. The latest lists are known:
    agents send the same one every time, and comparing costs less than reading."""
    view = memoryview(raw)
    key = len(view), bytes(view[-_END:])
    known = _kept.get(key)
    if known is not None and view == known[0]:
        return known[1]
    kinds = _read(raw)
    if len(view) <= _SIZE_MOST:
        if len(_kept) >= _KEPT_MOST:
            _kept.clear()
        _kept[key] = bytes(view), kinds
    return kinds


def _read(raw: Raw) -> ToolKinds:
    if not offers_tools(raw):
        return "none"
    try:
        tools = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "functions"  # what is no tool at all is refused by the server
    usual = all(tool.type in ("function", None) and tool.function is not UNSET for tool in tools)
    return "functions" if usual else "others"
