"""The `input` of a Responses body as the messages of a chat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.apps.dialects.fields import (
    UntranslatableRequest,
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
from gateway.apps.dialects.responses.tools import custom_arguments, function_name
from gateway.engines.forms import reminder

Item = dict[str, Any]
Part = dict[str, Any]

TOLD_MOST = 4000  # characters of an item that is told as text
_UNTOLD = ("type", "id", "status", "encrypted_content", "call_id")
_NAMED = ("text", "filename", "file_id", "file_url", "title", "url")  # of a part that is told as text
CARRIED = "thoughts:"  # how an `encrypted_content` of ours begins; the thoughts follow
_encode = msgspec.json.Encoder().encode
_SYSTEM = ("system", "developer")
_ASSISTANTS = ("reasoning", "function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")
TRIGGER = "compaction_trigger"
COMPACTIONS = ("compaction", "compaction_summary", "context_compaction")
SUMMARY = "summary:"  # how an `encrypted_content` of ours begins; the summary of what was before follows
CARRIED_SUMMARY = b'"summary:'  # as JSON writes it
_SILENT = ("additional_tools", TRIGGER, *COMPACTIONS)  # they say nothing to a model
SUMMARIZE = (
    "Write a summary of this conversation, for another assistant that will go on with the work and sees nothing else. "
    "Say what the user wants, what was decided and why, what was done and found (with the names of files, commands "
    "and values that are still needed), and what is to be done next. Write only the summary, and call no tool."
)
_SUMMARIZED = "This is a summary of the conversation so far; the work goes on from here.\n\n"
KEPT_MOST = 64 * 1024  # bytes of the client's own messages that stay beside a summary, the latest first
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_DETAILS = ("low", "high")  # of a picture; `auto` is the default, and others are known to OpenAI alone
_IMAGE_ONLY = "The result is the picture in the next message."


def to_messages(instructions: Any, input_: Any) -> list[dict[str, Any]]:
    """The messages of the chat. `instructions` and the system messages at the beginning of `input` are the first.
    Neighbours of the same side become one message, which many chat templates require."""
    if instructions is not None and not isinstance(instructions, str):
        raise expected("instructions", "a string", instructions)
    system = [instructions] if instructions else []
    turns: list[tuple[str, list[tuple[str, Item]]]] = []
    for where, item in _items(input_):
        side = _side(item, where)
        if side == "system":
            text = "\n".join(part["text"] for part in _parts(item.get("content"), f"{where}.content", pictures=False))
            if not turns:
                system.append(text)
                continue
            side, item = "user", {"type": "message", "content": reminder(text) if text else ""}
        if turns and turns[-1][0] == side:
            turns[-1][1].append((where, item))
        else:
            turns.append((side, [(where, item)]))
    first = "\n\n".join(text for text in system if text)
    messages: list[dict[str, Any]] = [{"role": "system", "content": first}] if first else []
    for side, items in turns:
        messages += _assistant(items) if side == "assistant" else _user(items)
    return messages


def is_item(item: Item) -> bool:
    """Is the item of a kind that a chat has? (One that names a stored item counts: it is refused in any case.)"""
    return item.get("type", "message") in ("message", *_ASSISTANTS, *_RESULTS, "item_reference")


def is_part(part: Part, *, text_only: bool) -> bool:
    """Is the part of a kind that a chat has there?"""
    kind = part.get("type")
    return kind in (*_TEXTS, "refusal") or (not text_only and kind in ("input_image", "input_audio"))


def _items(input_: Any) -> list[tuple[str, Item]]:
    """(where, item) of each; a string is one message of the user."""
    if isinstance(input_, str):
        return [("input", {"type": "message", "role": "user", "content": input_})]
    if not isinstance(input_, list):
        raise expected("input", "a string or a list of items", input_)
    items = [(f"input[{i}]", _summarized(an_object(item, f"input[{i}]"))) for i, item in enumerate(input_)]
    return [(where, _told(item)) for where, item in items if item.get("type") not in _SILENT]


def asks_to_compact(input_: Any) -> bool:
    """Does the client want the conversation compacted, and no answer?"""
    last = input_[-1] if isinstance(input_, list) and input_ else None
    return isinstance(last, dict) and last.get("type") == TRIGGER


def kept_messages(items: list[Any]) -> tuple[bytes, ...]:
    """The user's own messages, which stay beside a summary, as JSON."""
    kept: list[bytes] = []
    size = 0
    for item in reversed(items):
        if not isinstance(item, dict) or item.get("type", "message") != "message" or item.get("role") != "user":
            continue
        written = _encode({"type": "message", **item})
        size += len(written)
        if size > KEPT_MOST:
            break
        kept.append(written)
    return tuple(reversed(kept))


def _summarized(item: Item) -> Item:
    """A summary of ours as the user's message, which it was made for."""
    carried = item.get("encrypted_content")
    if item.get("type") not in COMPACTIONS or not isinstance(carried, str) or not carried.startswith(SUMMARY):
        return item
    return {"type": "message", "role": "user", "content": _SUMMARIZED + carried.removeprefix(SUMMARY)}


def _told(item: Item) -> Item:
    """An item that no chat has as a message that tells of it: what a cloud's tool was asked as the assistant's, what it
    answered as the user's."""
    kind = item.get("type")
    if not isinstance(kind, str) or is_item(item):
        return item
    role = "user" if kind.endswith(("_output", "_response", "_result")) else "assistant"
    said = {name: value for name, value in item.items() if name not in _UNTOLD and value not in (None, "", [], {})}
    return {"type": "message", "role": role, "content": f"[{kind}] {_encode(said).decode()[:TOLD_MOST]}"}


def _side(item: Item, where: str) -> str:
    """user | assistant | system: whose turn the item belongs to."""
    kind = item.get("type", "message" if "role" in item else None)
    if kind == "message":
        role = item.get("role")
        if role in _SYSTEM:
            return "system"
        if role in ("user", "assistant"):
            return str(role)
        raise expected(f"{where}.role", "user, assistant, system or developer", role)
    if kind in _ASSISTANTS:
        return "assistant"
    if kind in _RESULTS:
        return "user"
    if not isinstance(kind, str):
        raise expected(f"{where}.type", "the type of an item", kind)
    what = (
        "refers to an item, and none is kept (`server.keep_responses` keeps them). Send the item itself: a client with"
        " `store: false` does."
    )
    raise invalid(where, what, unsupported=True)


def _user(items: list[tuple[str, Item]]) -> Iterator[dict[str, Any]]:
    """First the results of calls, as chats require, then the user's text and pictures."""
    parts: list[Part] = []
    for where, item in items:
        if item.get("type") in _RESULTS:
            text, pictures = _result(item, where)
            yield {"role": "tool", "tool_call_id": string(item, "call_id", where), "content": text}
            parts += pictures
        else:
            parts += _parts(item.get("content"), f"{where}.content")
    spoken = any(item.get("type") in _RESULTS for _, item in items)
    if parts or not spoken:  # an empty turn is kept: else two assistant turns would follow each other
        yield user_message(parts)


def _assistant(items: list[tuple[str, Item]]) -> Iterator[dict[str, Any]]:
    """Text, calls and thoughts of an assistant turn. Thoughts alone are no turn."""
    texts, thoughts, calls = [], [], []
    for where, item in items:
        kind = item.get("type")
        if kind == "reasoning":
            thoughts.append(_thoughts(item, where))
        elif kind in ("function_call", "custom_tool_call"):
            name = function_name(string(item, "name", where), item.get("namespace"))
            if kind == "function_call":
                arguments = string(item, "arguments", where) or "{}"
            else:
                arguments = custom_arguments(string(item, "input", where))
            calls.append(call_of(string(item, "call_id", where), name, arguments))
        else:
            texts += [p["text"] for p in _parts(item.get("content"), f"{where}.content", pictures=False)]
    if not calls and all(item.get("type") == "reasoning" for _, item in items):
        return
    yield assistant_message(texts, thoughts, calls)


def _thoughts(item: Item, where: str) -> str:
    """The thoughts themselves if the item has them, in `content` or in an `encrypted_content` of this gateway; else
    their summary. Content encrypted by other servers is left out."""
    if content := item.get("content"):
        return _joined(content, f"{where}.content")
    carried = item.get("encrypted_content")
    if isinstance(carried, str) and carried.startswith(CARRIED):
        return carried.removeprefix(CARRIED)
    summary = item.get("summary")
    return _joined(summary, f"{where}.summary") if summary else ""


def _joined(content: Any, where: str) -> str:
    return "\n".join(part["text"] for part in _parts(content, where, pictures=False))


def _result(item: Item, where: str) -> tuple[str, list[Part]]:
    """A call's result: (its text, its pictures, which a tool message cannot hold)."""
    output = item.get("output")
    if output is None:
        raise expected(f"{where}.output", "a string or a list of parts", None)
    if isinstance(output, list):
        output = [_told_part(part) for part in output]
    parts = _parts(output, f"{where}.output")
    pictures = [part for part in parts if part["type"] != "text"]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    return text or (_IMAGE_ONLY if pictures else ""), pictures


def _told_part(part: Any) -> Any:
    """A part of a result that no chat has as a text that tells of it: a result is history, and nothing is asked of
    it."""
    if not isinstance(part, dict) or is_part(part, text_only=False) or not isinstance(part.get("type"), str):
        return part
    said = {name: value for name, value in part.items() if name in _NAMED and isinstance(value, str)}
    return text_part(f"[{part['type']}] {_encode(said).decode()[:TOLD_MOST]}")


def _parts(content: Any, where: str, *, pictures: bool = True) -> list[Part]:
    """The content of an item as parts of a chat message; a string is one text. `pictures`: and audio may be there."""
    if isinstance(content, str):
        return [text_part(content)] if content else []
    if not isinstance(content, list):
        raise expected(where, "a string or a list of parts", content)
    found = []
    for i, given in enumerate(content):
        place = f"{where}[{i}]"
        part = _part(an_object(given, place), place)
        if part["type"] != "text" and not pictures:
            raise invalid(place, f"is of type {brief(given['type'])}, where only text can be.", unsupported=True)
        if part["type"] != "text" or part["text"]:
            found.append(part)
    return found


def _part(part: Item, where: str) -> Part:
    kind = part.get("type")
    if kind in _TEXTS:
        return text_part(string(part, "text", where))
    if kind == "refusal":
        return text_part(string(part, "refusal", where))
    if kind == "input_image":
        return _picture(part, where)
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": an_object(part.get("input_audio"), f"{where}.input_audio")}
    if not isinstance(kind, str):
        raise expected(f"{where}.type", "the type of a part", kind)
    if isinstance(part.get("text"), str):
        return text_part(part["text"])  # of a type that is newer than this
    if part.get("file_id") is not None:
        raise invalid(f"{where}.file_id", "is a file that OpenAI keeps. Send the file itself.", unsupported=True)
    raise UntranslatableRequest(where, f"is of type {brief(kind)}: no backend reads that. Send its text.")


def _picture(part: Item, where: str) -> Part:
    url = part.get("image_url")
    if url is None and part.get("file_id") is not None:
        raise invalid(f"{where}.file_id", "is a file that OpenAI keeps. Send the picture itself.", unsupported=True)
    if not isinstance(url, str):
        raise expected(f"{where}.image_url", "a URL", url)
    detail = part.get("detail")
    return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail in _DETAILS else {})}}
