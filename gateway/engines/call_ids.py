"""Ids of calls, as one server reads them. The same id is written the same way every time. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

Message = dict[str, Any]

_SAFE, _SHORT = re.compile(r"[a-zA-Z0-9_-]{1,64}"), re.compile(r"[a-zA-Z0-9_-]{1,40}")
_NINE = re.compile(r"[a-zA-Z0-9]{9}")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def safe_id(id_: str) -> str:
    """The id with letters, digits, "_" and "-" alone, the same every time; unchanged where it is so already."""
    return id_ if _SAFE.fullmatch(id_) else _made(id_)


def _short_id(id_: str) -> str:
    return id_ if _SHORT.fullmatch(id_) else _made(id_)


def _made(id_: str) -> str:
    return "call_" + _digest(id_).hex()[:24]


def _mistral_id(id_: str) -> str:
    if _NINE.fullmatch(id_):
        return id_
    number = int.from_bytes(_digest(id_), "big")
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)


def _digest(id_: str) -> bytes:
    return blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=16).digest()


_ID_OF: dict[str, Callable[[str], str]] = {"mistral": _mistral_id, "safe": safe_id, "short": _short_id}


def with_ids(messages: list[Message], ids: str) -> list[Message]:
    """The messages with ids of calls in this form (`ids` of domain/forms.py)."""
    if ids in ("unique", "kimi"):
        return _with_new_ids(messages, _unrepeated if ids == "unique" else _numbered)
    return [_with_ids(message, _ID_OF[ids]) for message in messages]


def _unrepeated(call: Message, id_: str, seen: dict[str, int]) -> str:
    """Another id for a call that repeats one of an earlier turn."""
    return id_ if seen[id_] == 1 else _made(f"{id_} {seen[id_]}")


def _numbered(call: Message, id_: str, seen: dict[str, int]) -> str:
    """The function's name and the number of the call in the conversation."""
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return f"functions.{name}:{sum(seen.values()) - 1}"


def _with_new_ids(messages: list[Message], id_of: Callable[[Message, str, dict[str, int]], str]) -> list[Message]:
    """The messages with the id that `id_of` gives each call, and its result. It gets the call, its id, and how often
    each id has come so far."""
    seen: dict[str, int] = {}
    now: dict[str, str] = {}  # the id of the latest call with it -> the one that is sent
    made = []
    for message in messages:
        for call in message.get("tool_calls") or () if message.get("role") == "assistant" else ():
            if isinstance(call, dict) and isinstance(id_ := call.get("id"), str):
                seen[id_] = seen.get(id_, 0) + 1
                now[id_] = id_of(call, id_, seen)
        made.append(_with_ids(message, lambda id_: now.get(id_, id_)))
    return made


def _with_ids(message: Message, id_of: Callable[[str], str]) -> Message:
    """The message with ids that the server takes; a call and its result keep the same one."""
    given = message.get("tool_call_id")
    if isinstance(given, str):
        message = {**message, "tool_call_id": id_of(given)}
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    made = [
        {**call, "id": id_of(call["id"])} if isinstance(call, dict) and isinstance(call.get("id"), str) else call
        for call in calls
    ]
    return {**message, "tool_calls": made}
