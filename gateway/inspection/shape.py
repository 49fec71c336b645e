"""Checks the types of a backend's answer against OpenAI's API. Pure.

A wrong type is a failure of the backend: the client could not use the answer, and the code behind this check need not
handle it. Deviations that no client fails on are accepted: unknown fields, indexes of choices and calls that are no
numbers, and any value of `id`, `created`, `model`, `logprobs` and `usage`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.body import value_of
from gateway.transport.sse import BROKEN_ENDS

BRIEF_MOST = 300  # characters

_STATUSES = frozenset(("code", "status", "status_code"))  # of an error that is told without an envelope

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Any).decode

_WORDS: dict[type | tuple[type, ...], str] = {
    str: "text",
    dict: "an object",
    list: "a list",
    (str, list): "text",
    (str, int): "text",
}
# The fields of a message and of a delta; each may be null or missing.
_TYPES: dict[str, type | tuple[type, ...]] = {
    "role": str,
    "content": (str, list),  # some clouds send a list of parts
    "refusal": str,
    "reasoning": str,
    "reasoning_content": str,
    "tool_calls": list,
    "function_call": dict,
    "audio": dict,
}


def fault_in_delta(delta: object) -> str | None:
    """The fault in the `delta` of a streamed choice. A part of a call may lack fields that an earlier part had."""
    return None if delta is None else _fault_in(delta, "delta", False)


def fault_in_message(message: object) -> str | None:
    """The fault in the `message` of a whole answer; None = it is valid."""
    return _fault_in(message, "message", True)


def fault_in_end(finish_reason: object, *, whole: bool = False) -> str | None:
    """The fault in a `finish_reason`; None = it is valid. `whole`: it must not be missing."""
    if finish_reason is None:
        return "ended without a finish_reason" if whole else None
    if not isinstance(finish_reason, str):
        return _not("finish_reason", str)
    return f"ended with finish_reason {finish_reason}" if finish_reason in BROKEN_ENDS else None


def fault_in_text(text: object) -> str | None:
    """The fault in the `text` of a completion; None = it is valid or missing."""
    return None if text is None or isinstance(text, str) else _not("text", str)


def is_no_chunk(data: bytes, *, begun: bool) -> bool:
    """Is an event that could not be read as a chunk a failure? Data that is no JSON is passed on, and once content has
    `begun` also JSON that is no object: clients skip such events."""
    try:
        found = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(found, dict) or not begun


def error_in(data: bytes) -> object:
    """The error that an event or a whole answer without choices tells: the value of `error`, or the object itself."""
    found = value_of(data)
    if not isinstance(found, dict) or found.get("choices"):
        return None
    if isinstance(said := found.get("base_resp"), dict) and said.get("status_code"):  # MiniMax's cloud
        return {"message": said.get("status_msg"), "code": said["status_code"]}
    if "error" in (found.get("object"), found.get("type")) or ("message" in found and not _STATUSES.isdisjoint(found)):
        return found
    return found.get("error") or found.get("detail")


def brief(value: object, most: int = BRIEF_MOST) -> str:
    """Any decoded JSON value as a short text. Never raises."""
    try:
        text = value if isinstance(value, str) else _encode(value).decode()
    except (ValueError, TypeError, OverflowError, RecursionError):
        text = f"something of type {type(value).__name__}"
    return text[:most]


def _fault_in(message: object, where: str, whole: bool) -> str | None:
    if not isinstance(message, dict):
        return _not(where, dict)
    for name, value in message.items():
        if value is None or (type_ := _TYPES.get(name)) is None:
            continue
        if not isinstance(value, type_):
            return _not(f"{where}.{name}", type_)
        if isinstance(value, list):
            if name != "tool_calls" and not all(map(_is_part, value)):
                return _not(f"{where}.{name}", str)
            for call in value if name == "tool_calls" else ():
                if (fault := _fault_in_call(call, where, whole)) is not None:
                    return fault
    return None


def _is_part(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str)


def _fault_in_call(call: object, where: str, whole: bool) -> str | None:
    if not isinstance(call, dict):
        return _not(f"{where}.tool_calls[]", dict)
    id_ = call.get("id")
    if id_ is not None and not isinstance(id_, (str, int)):
        return _not(f"{where}.tool_calls[].id", str)
    function = call.get("function")
    if not isinstance(function, dict):
        return None if isinstance(call.get("custom"), dict) else _not(f"{where}.tool_calls[].function", dict)
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) and (whole or name is not None):
        return _not(f"{where}.tool_calls[].function.name", str)
    if arguments is not None and not isinstance(arguments, (str, dict)):  # an object is written as text (calls.py)
        return _not(f"{where}.tool_calls[].function.arguments", str)
    return None


def _not(where: str, type_: type | tuple[type, ...]) -> str:
    return f"sent a {where} that is not {_WORDS[type_]}"
