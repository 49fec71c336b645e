"""Reading the fields of a client's body, and the errors that name the field which is wrong."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from gateway.errors import GatewayError
from gateway.routing.refusal import MISLEADING

_decode = msgspec.json.Decoder(Any).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode
_OPENING_BRACKET = ord("[")
# Bytes of a list that is read and written item by item: the event loop has its turn between two, where that is done in
# a thread. Reading all of it is one step, in which no other thread runs.
SLICED = 1024 * 1024


def invalid(where: str, what: str, *, unsupported: bool = False) -> GatewayError:
    """`where`: the field, in the notation of the API (`messages.3.content.0`, `input[3].content[0]`). Quotes of the
    client's text in `what` that agents would act on are masked."""
    code = "input_unsupported" if unsupported else "invalid_request_body"
    return GatewayError(code, f"`{where}` {MISLEADING.sub('[...]', what)}", param=where)


class UntranslatableRequest(GatewayError):
    """No chat can carry it; a server that has the client's API itself may. The arguments are those of `invalid`."""

    def __init__(self, where: str, what: str) -> None:
        refusal = invalid(where, what, unsupported=True)
        super().__init__(refusal.code, refusal.message, param=where)


def expected(where: str, what: str, found: Any) -> GatewayError:
    """The error for a field that must be `what`, and is `found` (None: missing)."""
    if found is None:
        return invalid(where, f"is missing: it must be {what}.")
    shown = brief(found) if isinstance(found, str) else f"of type {brief(found)}"
    return invalid(where, f"must be {what}, and is {shown}.")


def brief(found: Any) -> str:
    """A value in an error message, at most 40 characters of it."""
    return repr(found if len(found) <= 40 else found[:40] + "...") if isinstance(found, str) else type(found).__name__


def an_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise expected(where, "an object", value)
    return value


def string(block: dict[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise expected(f"{where}.{name}", "a string", value)
    return value


def value_in(raw: Raw | None, name: str) -> Any:
    """The value of the body's field `name`; None when it is missing."""
    try:
        if raw is None:
            return None
        if len(memoryview(raw)) > SLICED and memoryview(raw)[0] == _OPENING_BRACKET:
            return [_decode(item) for item in _decode_items(raw)]
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(name, f"is not valid JSON: {error}") from None


def list_in(raw: Raw | None, name: str) -> list[Any]:
    value = value_in(raw, name)
    if not isinstance(value, list):
        raise expected(name, "a list", value)
    return value


def encoded(values: list[Any]) -> Raw:
    """A list that may be large, as JSON."""
    return Raw(b"[" + b",".join(map(_encode, values)) + b"]")


def put(fields: dict[str, Raw], name: str, value: object) -> None:
    """Set the field, unless the value is empty."""
    if value not in (None, [], {}):
        fields[name] = Raw(_encode(value))


def text_part(text: str) -> dict[str, Any]:
    """A part of a chat message."""
    return {"type": "text", "text": text}


def user_message(parts: list[dict[str, Any]]) -> dict[str, Any]:
    alone = len(parts) == 1 and parts[0]["type"] == "text"
    return {"role": "user", "content": parts[0]["text"] if alone else parts or ""}


def assistant_message(texts: list[str], thoughts: list[str], calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Models that reason between calls need their thoughts."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    if thought := "".join(thoughts):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def call_of(id_: str, name: str, arguments: str) -> dict[str, Any]:
    """A tool call of a chat message."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
