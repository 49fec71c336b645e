"""What an answer says, of any of the APIs that clients speak, as a whole or as a stream: for people who compare two.
Pure; whatever does not look like an answer says nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

SHOWN_MOST = 256 * 1024  # characters of one part


class AnswerText:
    """The parts of one answer. `calls`: name and arguments of each tool call; `end`: why it ended; `error`: its
    message."""

    def __init__(self) -> None:
        self.text = self.thoughts = self.end = self.error = ""
        self.calls: dict[Any, list[str]] = {}

    def fields(self) -> dict[str, Any]:
        calls = [f"{name}({arguments})"[:SHOWN_MOST] for name, arguments in self.calls.values()]
        said = {"text": self.text[:SHOWN_MOST], "thoughts": self.thoughts[:SHOWN_MOST], "calls": calls}
        return {**said, "end": self.end, "error": self.error}

    def add(self, event: Mapping[str, Any]) -> None:
        """A whole answer, or an event of a stream."""
        if isinstance(error := event.get("error"), Mapping):
            self.error = _text(error.get("message"))
        if isinstance(whole := event.get("response"), Mapping):  # a Responses stream ends with the whole answer
            if str(event.get("type")).endswith(("completed", "incomplete", "failed")):
                self.add({**whole, "response": None})
            return
        for choice in _all(event.get("choices")):
            self._choice(choice)
        for item in _all(event.get("output")):
            self._item(item)
        for number, block in enumerate(_all(event.get("content"))):
            self._block(number, block)
        if isinstance(begun := event.get("content_block"), Mapping):
            self._block(event.get("index"), begun)
        if isinstance(delta := event.get("delta"), Mapping):
            self._block(event.get("index"), delta)
        if isinstance(message := event.get("message"), Mapping) and "role" in message:  # Ollama's
            self._choice({"message": message, "finish_reason": event.get("done_reason")})
        self.end = _text(event.get("stop_reason")) or self.end

    def _choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or choice.get("message") or {}
        if isinstance(delta, Mapping):
            self.text += _text(delta.get("content"))
            self.thoughts += _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
            for number, call in enumerate(_all(delta.get("tool_calls"))):
                function = call.get("function")
                if isinstance(function, Mapping):
                    arguments = function.get("arguments")
                    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
                    self._call(call.get("index", number), _text(function.get("name")), written)
        self.text += _text(choice.get("text"))
        self.end = _text(choice.get("finish_reason")) or self.end

    def _item(self, item: Mapping[str, Any]) -> None:
        for part in _all(item.get("content")) + _all(item.get("summary")):
            if item.get("type") == "reasoning":
                self.thoughts += _text(part.get("text"))
            else:
                self.text += _text(part.get("text"))
        if item.get("type") == "function_call":
            self._call(len(self.calls), _text(item.get("name")), _text(item.get("arguments")))

    def _block(self, number: Any, block: Mapping[str, Any]) -> None:
        self.text += _text(block.get("text"))
        self.thoughts += _text(block.get("thinking"))
        if block.get("type") == "tool_use":
            given = block.get("input")
            self._call(number, _text(block.get("name")), json.dumps(given) if given else "")
        elif partial := _text(block.get("partial_json")):
            self._call(number, "", partial)
        self.end = _text(block.get("stop_reason")) or self.end

    def _call(self, number: Any, name: str, arguments: str) -> None:
        call = self.calls.setdefault(str(number), ["", ""])
        call[0] += name
        call[1] += arguments


def said(answer: bytes) -> dict[str, Any]:
    """`{text, thoughts, calls, end, error}`."""
    found = AnswerText()
    for event in _events(answer):
        if isinstance(event, Mapping):
            found.add(event)
    return found.fields()


def _events(answer: bytes) -> Iterator[Any]:
    whole = _json(answer)
    if whole is not None:
        yield whole
        return
    for line in answer.splitlines():  # server-sent events, or Ollama's lines
        yield _json(line.removeprefix(b"data:").strip())


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _all(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
