"""Content blocks of a message as parts of a chat message, and what is said where that cannot be."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.errors import GatewayError

Block = dict[str, Any]
Part = dict[str, Any]  # {"type": "text", "text"} or {"type": "image_url", "image_url": {"url"}}

_encode = msgspec.json.Encoder().encode


def invalid(where: str, what: str, *, unsupported: bool = False) -> GatewayError:
    """`where` is the field, as Anthropic's own errors write it: `messages.3.content.0`."""
    code = "input_unsupported" if unsupported else "invalid_request_body"
    return GatewayError(code, f"`{where}` {what}", param=where)


def expected(where: str, what: str, found: Any) -> GatewayError:
    """`what` should have been there."""
    if found is None:
        return invalid(where, f"is missing: it must be {what}.")
    shown = repr(found) if isinstance(found, str) and len(found) < 40 else f"of type {type(found).__name__}"
    return invalid(where, f"must be {what}, and is {shown}.")


def blocks_of(content: Any, where: str) -> list[tuple[str, Block]]:
    """(where, block) of each; a string is one text."""
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


def text_of(block: Any, where: str) -> str:
    """The text of a block that can only be one."""
    if not isinstance(block, dict) or block.get("type") != "text":
        raise expected(where, "a text block", block)
    return string(block, "text", where)


def text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def parts_of(block: Block, where: str) -> list[Part]:
    """The block as what a chat message can carry. Kinds that are not known here are told to the model as they are."""
    kind = block["type"]
    if kind == "text":
        text = string(block, "text", where)
        return [text_part(text)] if text else []
    if kind == "image":
        return [{"type": "image_url", "image_url": {"url": _picture(block.get("source"), where)}}]
    if kind == "document":
        return _document(block, where)
    if kind == "search_result":
        found = [part for place, inner in blocks_of(block.get("content"), where) for part in parts_of(inner, place)]
        return [text_part(f"{block.get('title', '')}\n{block.get('source', '')}".strip()), *found]
    if isinstance(block.get("source"), dict):
        raise invalid(where, f"is of type {kind!r}, which no backend can read. Send text.", unsupported=True)
    return [text_part(_encode(block).decode())]


def _picture(source: Any, where: str) -> str:
    """An image's URL; with the image inside where it came so."""
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "url":
        return string(source, "url", f"{where}.source")
    if kind == "base64":
        media, data = (string(source, name, f"{where}.source") for name in ("media_type", "data"))
        return f"data:{media};base64,{data}"
    raise expected(f"{where}.source", "of type base64 or url", source)


def _document(block: Block, where: str) -> list[Part]:
    source = block.get("source")
    if not isinstance(source, dict):
        raise expected(f"{where}.source", "an object", source)
    kind = source.get("type")
    head = [text_part(block["title"])] if isinstance(block.get("title"), str) else []
    if kind == "text":
        return [*head, text_part(string(source, "data", f"{where}.source"))]
    if kind == "content":
        inner = blocks_of(source.get("content"), f"{where}.source.content")
        return [*head, *(part for place, one in inner for part in parts_of(one, place))]
    raise invalid(f"{where}.source", f"is of type {kind!r}: no backend reads that. Send its text.", unsupported=True)
