"""Translates a chat's messages into Ollama's format. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.engines.base import InexpressibleRequest, UnmetDemand

_decode = msgspec.json.Decoder(Any).decode


def read_messages(value: Any) -> tuple[list[dict[str, Any]], int]:
    """(Ollama's messages, UTF-8 bytes of their text). Raises Refused."""
    if not isinstance(value, list) or not value:
        raise InexpressibleRequest("`messages` must be a list with at least one message.", "messages")
    names: dict[str, str] = {}  # id of a call -> name of its tool: Ollama's templates identify results by tool name
    messages = [_message(message, f"messages[{index}]", names) for index, message in enumerate(value)]
    return messages, sum(len(message["content"].encode(errors="replace")) for message in messages)


def _message(received: Any, where: str, names: dict[str, str]) -> dict[str, Any]:
    if not isinstance(received, dict) or not isinstance(received.get("role"), str):
        raise InexpressibleRequest(f"`{where}` must be an object with a `role`.", where)
    role = {"developer": "system", "function": "tool"}.get(received["role"], received["role"])
    text, images = _content(received.get("content"), where)
    message: dict[str, Any] = {"role": role, "content": text}
    if images:
        message["images"] = images
    if role == "assistant":
        thought = received.get("reasoning") or received.get("reasoning_content")
        if isinstance(thought, str):
            message["thinking"] = thought
        if calls := received.get("tool_calls"):
            message["tool_calls"] = list(_calls(calls, where, names))
    elif role == "tool":
        name = received.get("name") or names.get(str(received.get("tool_call_id")))
        message |= {"tool_name": name} if name else {}
        message |= {"tool_call_id": received["tool_call_id"]} if received.get("tool_call_id") else {}
    return message


def _content(content: Any, where: str) -> tuple[str, list[str]]:
    """(text, images as base64) of a message's content, which is a string, null, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise InexpressibleRequest(f"`{where}.content` must be a string or a list of parts.", where)
    texts, images = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "refusal") and isinstance(part.get(kind), str):
            texts.append(part[kind])
        elif kind == "image_url":
            images.append(_picture(part.get("image_url"), where))
        else:
            raise UnmetDemand(f"`{where}.content`: Ollama takes text and pictures, not a part of type {kind!r}.", where)
    return "\n".join(texts), images


def _picture(image: Any, where: str) -> str:
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str):
        raise InexpressibleRequest(f"`{where}.content`: an image_url part needs a `url`.", where)
    if url[:5].lower() != "data:":
        hint = "Send the image itself, as data:image/png;base64,..., or let the gateway fetch it (`images.fetch`)."
        raise UnmetDemand(f"`{where}.content`: Ollama fetches no pictures. {hint}", where)
    head, found, data = url.partition(",")
    if not found or not head.endswith(";base64"):
        raise InexpressibleRequest(
            f"`{where}.content`: the data URL must be in base64 (data:image/png;base64,...).", where
        )
    return data


def _calls(calls: Any, where: str, names: dict[str, str]) -> Iterable[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InexpressibleRequest(f"`{where}.tool_calls` must be a list.", where)
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InexpressibleRequest(f"`{where}.tool_calls`: every call needs a `function` with a `name`.", where)
        ours: dict[str, Any] = {"function": {"name": function["name"], "arguments": _object(function.get("arguments"))}}
        if isinstance(call.get("id"), str):
            ours["id"] = call["id"]
            names[call["id"]] = function["name"]
        yield ours


def _object(arguments: Any) -> dict[str, Any]:
    """A call's arguments as an object, which Ollama requires. Arguments of an earlier turn that are no object are kept
    as text: refusing them would make the conversation impossible to continue."""
    value: Any = {} if arguments is None else arguments
    if isinstance(arguments, str):
        try:
            value = _decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError):
            value = arguments
    return value if isinstance(value, dict) else {"arguments": value}
