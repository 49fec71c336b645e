"""What a request to Ollama's API asks for, read as the simulated model takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from simulator import tokens
from simulator.ollama_format import BadFormat, check_format, plain_schema
from simulator.say import text_of


class OllamaError(Exception):
    """An answer in Ollama's error shape, a plain string."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def openai_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that decide what is said, in OpenAI's names."""
    request: dict[str, Any] = {"messages": body["messages"], "tools": body.get("tools") or []}
    wanted = body.get("format")
    try:
        check_format(wanted)
    except BadFormat as problem:
        raise OllamaError(500, str(problem)) from None
    if isinstance(wanted, dict):
        said = " ".join(text_of(m.get("content")) for m in request["messages"] if m.get("role") == "user")
        schema = plain_schema(wanted, said)
        request["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    elif wanted == "json":
        request["response_format"] = {"type": "json_object"}
    for message in request["messages"]:
        for image in message.get("images") or []:
            if not isinstance(image, str) or image.startswith(("http:", "https:", "data:")):
                raise OllamaError(400, "illegal base64 data at input byte 4")
    return request


def prompt_tokens(request: Mapping[str, Any]) -> int:
    count = 5 + (tokens.count(json.dumps(request["tools"]).encode()) if request.get("tools") else 0)
    for message in request.get("messages", []):
        count += 6 + tokens.count(text_of(message.get("content")).encode()) + 256 * len(message.get("images") or [])
    return count


def keep_alive_seconds(keep_alive: Any) -> float:
    """`keep_alive`: seconds, or a duration like "5m"; negative = for ever."""
    if isinstance(keep_alive, int | float):
        value = float(keep_alive)
    else:
        text = str(keep_alive)
        unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
        try:
            value = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            raise OllamaError(400, f'time: invalid duration "{text}"') from None
    return 1e9 if value < 0 else value
