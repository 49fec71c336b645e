"""Content blocks of a message as parts of a chat message, and the errors for blocks that cannot be translated."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.errors import GatewayError
from gateway.routing.refusal import MISLEADING

Block = dict[str, Any]
Part = dict[str, Any]  # {"type": "text", "text"} or {"type": "image_url", "image_url": {"url"}}

_encode = msgspec.json.Encoder().encode


def invalid(where: str, what: str, *, unsupported: bool = False) -> GatewayError:
    """`where`: the field in Anthropic's notation, `messages.3.content.0`. Quotes of the client's text in `what` that
    agents would act on are masked."""
    code = "input_unsupported" if unsupported else "invalid_request_body"
    return GatewayError(code, f"`{where}` {MISLEADING.sub('[...]', what)}", param=where)


def expected(where: str, what: str, found: Any) -> GatewayError:
    """The error for a field that must be `what`, and is `found` (None = missing)."""
    if found is None:
        return invalid(where, f"is missing: it must be {what}.")
    shown = brief(found) if isinstance(found, str) else f"of type {brief(found)}"
    return invalid(where, f"must be {what}, and is {shown}.")


def brief(found: Any) -> str:
    """A value in an error message, at most 40 characters of it."""
    return repr(found if len(found) <= 40 else found[:40] + "...") if isinstance(found, str) else type(found).__name__


def blocks_of(content: Any, where: str) -> list[tuple[str, Block]]:
    """(where, block) of each block; a string is one text block."""
    if isinstance(content, str):
        return [(where, text_part(content))]
    if not isinstance(content, list):
        raise expected(where, "a string or a list of blocks", content)
    found = [(f"{where}.{i}", block) for i, block in enumerate(content)]
    for place, block in found:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise expected(place, "an object with a `type`", block)
    return found


def string(block: Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise expected(f"{where}.{name}", "a string", value)
    return value


def text_of(block: Block, where: str) -> str:
    """The text of a block that must be of type text."""
    if block["type"] != "text":
        raise expected(f"{where}.type", "text", block["type"])
    return string(block, "text", where)


def text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def parts_of(block: Block, where: str) -> list[Part]:
    """The block as parts of a chat message. A block of an unknown type is passed to the model as JSON text."""
    kind = block["type"]
    if kind == "text":
        text = string(block, "text", where)
        return [text_part(text)] if text else []
    if kind == "image":
        return [{"type": "image_url", "image_url": {"url": _picture(block.get("source"), where)}}]
    if kind == "document":
        return _document(block, where)
    if kind == "search_result":
        inner = blocks_of(block.get("content"), f"{where}.content")
        return [*_strings(block, "title", "source"), *(part for place, one in inner for part in parts_of(one, place))]
    if isinstance(block.get("source"), dict):
        raise invalid(where, f"is of type {brief(kind)}, which no backend can read. Send text.", unsupported=True)
    return [text_part(_encode(block).decode())]


def _strings(block: Block, *names: str) -> list[Part]:
    """The non-empty fields, joined to one text."""
    text = "\n".join(value for name in names if isinstance(value := block.get(name), str) and value)
    return [text_part(text)] if text else []


def _picture(source: Any, where: str) -> str:
    """The URL of an image; a data URL for an inline image."""
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "url":
        return string(source, "url", f"{where}.source")
    if kind == "base64":
        media, data = (string(source, name, f"{where}.source") for name in ("media_type", "data"))
        return f"data:{media};base64,{data}"
    if kind == "file":
        raise invalid(f"{where}.source", "is a file that Anthropic keeps. Send the picture itself.", unsupported=True)
    raise expected(f"{where}.source.type", "base64 or url", kind)


def _document(block: Block, where: str) -> list[Part]:
    source = block.get("source")
    if not isinstance(source, dict):
        raise expected(f"{where}.source", "an object", source)
    kind = source.get("type")
    head = _strings(block, "title", "context")
    if kind == "text":
        return [*head, text_part(string(source, "data", f"{where}.source"))]
    if kind == "content":
        inner = blocks_of(source.get("content"), f"{where}.source.content")
        return [*head, *(part for place, one in inner for part in parts_of(one, place))]
    raise invalid(
        f"{where}.source", f"is of type {brief(kind)}: no backend reads that. Send its text.", unsupported=True
    )
