"""The anthropic SDK: `messages`, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

from anthropic import Anthropic

from .conversation import MODEL, WEATHER, Client, Heard, Turn, main

TOOL = {"name": WEATHER["name"], "description": WEATHER["description"], "input_schema": WEATHER["schema"]}


class Messages:
    def __init__(self, client: Any, streams: bool) -> None:
        self._client, self.streams = client, streams
        self._messages: list[Any] = []

    def ask(self, text: str, heard: Heard) -> Turn:
        self._messages.append({"role": "user", "content": text})
        return self._turn(heard)

    def tell(self, call: str, result: str, heard: Heard) -> Turn:
        told = {"type": "tool_result", "tool_use_id": call, "content": result}
        self._messages.append({"role": "user", "content": [told]})
        return self._turn(heard)

    def _turn(self, heard: Heard) -> Turn:
        asked: Any = {"model": MODEL, "max_tokens": 4096, "messages": self._messages, "tools": [TOOL]}
        if self.streams:
            with self._client.messages.stream(**asked) as stream:
                for _ in stream.text_stream:
                    heard()
                message = stream.get_final_message()
        else:
            message = self._client.messages.create(**asked)
        self._messages.append({"role": "assistant", "content": message.content})
        text = "".join(block.text for block in message.content if block.type == "text")
        calls = [block for block in message.content if block.type == "tool_use"]
        return Turn(text, [(call.id, call.name, json.dumps(call.input)) for call in calls])


def make(base_url: str, key: str, kind: str) -> Client:
    return Messages(Anthropic(base_url=base_url, api_key=key), kind == "messages-stream")


main(make)
