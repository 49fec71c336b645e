"""Content blocks of a message as parts of a chat message."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.apps.dialects.fields import an_object, brief, expected, invalid, string, text_part

Block = dict[str, Any]
Part = dict[str, Any]  # {"type": "text", "text"}, {"type": "image_url", "image_url": {"url"}} or `_pdf`'s

_encode = msgspec.json.Encoder().encode


# What the gateway would have to fetch.
_ELSEWHERE = {
    "url": "an address, and the gateway fetches nothing for a client",
    "file": "a file that Anthropic keeps",
}


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


def text_of(block: Block, where: str) -> str:
    """The text of a block that must be of type text."""
    if block["type"] != "text":
        raise expected(f"{where}.type", "text", block["type"])
    return string(block, "text", where)


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
    source = an_object(block.get("source"), f"{where}.source")
    kind = source.get("type")
    head = _strings(block, "title", "context")
    if kind == "base64":
        return [*head, _pdf(block, source, where)]
    if kind == "text":
        return [*head, text_part(string(source, "data", f"{where}.source"))]
    if kind == "content":
        inner = blocks_of(source.get("content"), f"{where}.source.content")
        return [*head, *(part for place, one in inner for part in parts_of(one, place))]
    if kind in _ELSEWHERE:
        what = f"is {_ELSEWHERE[kind]}. Send the document itself (source.type base64), or its text."
        raise invalid(f"{where}.source", what, unsupported=True)
    raise expected(f"{where}.source.type", "base64, text or content", kind)


def _pdf(block: Block, source: dict[str, Any], where: str) -> Part:
    """The part of a chat that is a PDF, in OpenAI's form. Whether a backend takes it is for the plan to say."""
    media, data = (string(source, name, f"{where}.source") for name in ("media_type", "data"))
    if media != "application/pdf":
        what = f"is {brief(media)}: a document is application/pdf, or text (source.type text)."
        raise invalid(f"{where}.source.media_type", what, unsupported=True)
    title = block.get("title")
    name = title if isinstance(title, str) and title else "document.pdf"
    return {"type": "file", "file": {"filename": name, "file_data": f"data:{media};base64,{data}"}}
