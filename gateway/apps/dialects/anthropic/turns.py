"""The `messages` of a Messages body as those of a chat: content blocks as parts, turns, and the changes of tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.apps.dialects.fields import (
    an_object,
    assistant_message,
    brief,
    call_of,
    expected,
    invalid,
    string,
    text_part,
    user_message,
)
from gateway.engines.forms import reminder
from gateway.errors import GatewayError

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


_SIDES = {"user": "user", "assistant": "assistant", "system": "user"}
_IMAGE_ONLY = "The result is the picture in the next message."
_FILE_ONLY = "The result is the file in the next message."
_OWN_PICTURES = "What follows belongs to your own message before this one."


class ChatMessages:
    """`chat`: the messages. `loaded`: deferred tools (`defer_loading`) that the conversation has loaded, in that order.
    `added`: name -> (where, definition) of tools that were added later. `removed`: names of removed tools. `file_at`:
    where the first file is, empty = there is none. `left_out`: types of tools that no backend here can run."""

    def __init__(self, messages: list[Any]) -> None:
        self.loaded: dict[str, None] = {}
        self.added: dict[str, tuple[str, Block]] = {}
        self.removed: set[str] = set()
        self.left_out: list[str] = []
        self.file_at = ""
        self.chat: list[dict[str, Any]] = []
        self._shown: list[Part] = []  # of the assistant's last turn: chat templates have pictures in users' turns only
        turns = _merged(messages)
        for side, blocks in turns:
            self.chat += self._assistant(blocks) if side == "assistant" else self._user(blocks)
        if self._shown:
            raise _no_turn_behind(turns[-1][1])

    def begun(self) -> dict[str, Any] | None:
        """The last message, if it is the assistant's and so the beginning of the answer; else None. An empty
        one, as Anthropic's API allows, is taken away: it begins nothing. Nothing follows a call but its result."""
        last = self.chat[-1] if self.chat else {"role": None}
        if last["role"] != "assistant" or "tool_calls" in last:
            return None
        if not last["content"] and "reasoning_content" not in last:
            self.chat.pop()
            return None
        return last

    def _user(self, blocks: list[tuple[str, Block]]) -> Iterator[dict[str, Any]]:
        """First the results of calls, as chats require, then the user's text and pictures."""
        parts: list[Part] = [text_part(reminder(_OWN_PICTURES)), *self._shown] if self._shown else []
        self._shown = []
        spoken = False
        for where, block in blocks:
            kind = block["type"]
            if kind == "tool_result":
                text, pictures = self._result(block, where)
                yield {"role": "tool", "tool_call_id": string(block, "tool_use_id", where), "content": text}
                parts += pictures
            elif kind in ("tool_addition", "tool_removal"):
                self._change(kind, block.get("tool"), where)
            else:
                parts += self._parts(block, where)
            spoken = spoken or kind == "tool_result"
        if parts or not spoken:  # an empty turn is kept: else two assistant turns would follow each other
            yield user_message(parts)

    def _assistant(self, blocks: list[tuple[str, Block]]) -> Iterator[dict[str, Any]]:
        """Text, calls and thoughts of an assistant turn. Its pictures are kept for the user's turn behind it."""
        texts, thought, calls = [], [], []
        for where, block in blocks:
            kind = block["type"]
            if kind == "thinking":
                thought.append(string(block, "thinking", where))
            elif kind == "tool_use":
                name, arguments = string(block, "name", where), _encode(block.get("input") or {}).decode()
                calls.append(call_of(string(block, "id", where), name, arguments))
            elif kind != "redacted_thinking":  # encrypted for Anthropic
                parts = self._parts(block, where)
                texts += [part["text"] for part in parts if part["type"] == "text"]
                self._shown += [part for part in parts if part["type"] != "text"]
        yield assistant_message(texts, thought, calls)

    def _parts(self, block: Block, where: str) -> list[Part]:
        parts = parts_of(block, where)
        if not self.file_at and any(part["type"] == "file" for part in parts):
            self.file_at = where
        return parts

    def _result(self, block: Block, where: str) -> tuple[str, list[Part]]:
        """A call's result: (its text, its pictures, which a tool message cannot hold)."""
        texts, pictures = [], []
        content = block.get("content")
        for place, inner in blocks_of(content, f"{where}.content") if content is not None else []:
            if inner["type"] == "tool_reference":
                name = string(inner, "tool_name", place)
                self.loaded[name] = None
                self.removed.discard(name)
                texts.append(f"The tool {name} can be called from now on.")
                continue
            for part in self._parts(inner, place):
                if part["type"] == "text":
                    texts.append(part["text"])
                else:
                    pictures.append(part)
        alone = _FILE_ONLY if any(part["type"] == "file" for part in pictures) else _IMAGE_ONLY
        text = "\n".join(texts) or (alone if pictures else "")
        if block.get("is_error") is True and "error" not in text.lower():
            text = f"Error: {text}"
        return text, pictures

    def _change(self, kind: str, tool: Any, where: str) -> None:
        """Add or remove a tool within the conversation, by its name or with its definition."""
        tool = an_object(tool, f"{where}.tool")
        definition = tool.get("definition")
        named = definition if isinstance(definition, dict) else tool
        name = string(named, "name" if "name" in named else "tool_name", f"{where}.tool")
        if kind == "tool_removal":
            self.removed.add(name)
            return
        self.removed.discard(name)
        if named is definition:
            self.added[name] = f"{where}.tool.definition", named
        else:
            self.loaded[name] = None


def _merged(messages: list[Any]) -> list[tuple[str, list[tuple[str, Block]]]]:
    """(user | assistant, blocks) in turn: equal roles in a row are joined, as Anthropic does and many chat templates
    require. They also refuse a system message that is not the first. It becomes a part of the user's turn, marked like
    Claude Code's own reminders, so that it keeps its place and everything before it stays in the prefix cache."""
    turns: list[tuple[str, list[tuple[str, Block]]]] = []
    for i, message in enumerate(messages):
        where = f"messages.{i}"
        message = an_object(message, where)
        side = _SIDES.get(role) if isinstance(role := message.get("role"), str) else None
        if side is None:
            raise expected(f"{where}.role", "user, assistant or system", role)
        content = message.get("content")
        if role == "system":  # it may have settings only
            content = content if content is not None else []
        blocks = blocks_of(content, f"{where}.content")
        if role == "system":
            blocks = [(place, _reminder(block)) for place, block in blocks]
        if turns and turns[-1][0] == side:
            turns[-1][1].extend(blocks)
        else:
            turns.append((side, blocks))
    return turns


def _no_turn_behind(blocks: list[tuple[str, Block]]) -> GatewayError:
    """The error for a picture or file in the last message, where that is the assistant's."""
    shown = (where for where, block in blocks if any(part["type"] != "text" for part in parts_of(block, where)))
    what = "is in the last message of the assistant, behind which a model cannot be shown anything."
    return invalid(next(shown), f"{what} Send it in the user's message.", unsupported=True)


def _reminder(block: Block) -> Block:
    """A system message's block as a part of the user's turn."""
    text = block.get("text")
    if block["type"] != "text" or not isinstance(text, str) or not text:
        return block
    return {"type": "text", "text": reminder(text)}
