"""The litellm SDK, by the prefixes of its model names that lead to a server of one's own; each whole and streamed."""

from __future__ import annotations

from typing import Any

import litellm

from .conversation import MODEL, WEATHER, Client, Heard, Turn, main

TOOL = {"name": WEATHER["name"], "description": WEATHER["description"], "parameters": WEATHER["schema"]}


class Completion:
    def __init__(self, asked: dict[str, Any], streams: bool) -> None:
        self._asked, self.streams = asked, streams
        self._messages: list[Any] = []

    def ask(self, text: str, heard: Heard) -> Turn:
        self._messages.append({"role": "user", "content": text})
        return self._turn(heard)

    def tell(self, call: str, result: str, heard: Heard) -> Turn:
        self._messages.append({"role": "tool", "tool_call_id": call, "content": result})
        return self._turn(heard)

    def _turn(self, heard: Heard) -> Turn:
        asked: dict[str, Any] = {"messages": self._messages, "tools": [{"type": "function", "function": TOOL}]}
        got: Any = litellm.completion(**self._asked, **asked, stream=self.streams)
        if self.streams:
            chunks = []
            for chunk in got:
                chunks.append(chunk)
                if chunk.choices and chunk.choices[0].delta.content:
                    heard()
            got = litellm.stream_chunk_builder(chunks, messages=self._messages)
        message = got.choices[0].message
        self._messages.append(message.model_dump(exclude_none=True))
        calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        return Turn(message.content or "", calls)


class Responses:
    def __init__(self, asked: dict[str, Any], streams: bool) -> None:
        self._asked, self.streams = asked, streams
        self._items: list[Any] = []

    def ask(self, text: str, heard: Heard) -> Turn:
        self._items.append({"role": "user", "content": text})
        return self._turn(heard)

    def tell(self, call: str, result: str, heard: Heard) -> Turn:
        self._items.append({"type": "function_call_output", "call_id": call, "output": result})
        return self._turn(heard)

    def _turn(self, heard: Heard) -> Turn:
        tool: Any = {"type": "function", "strict": False, **TOOL}
        got: Any = litellm.responses(input=self._items, tools=[tool], stream=self.streams, **self._asked)
        if self.streams:
            for event in got:
                if event.type == "response.output_text.delta":
                    heard()
                elif event.type == "response.completed":
                    got = event.response
        output = [item if isinstance(item, dict) else item.model_dump(exclude_none=True) for item in got.output]
        self._items += output
        parts = [part for item in output if item["type"] == "message" for part in item["content"]]
        calls = [item for item in output if item["type"] == "function_call"]
        text = "".join(part["text"] for part in parts)
        return Turn(text, [(call["call_id"], call["name"], call["arguments"]) for call in calls])


def make(base_url: str, key: str, kind: str) -> Client:
    name, _, streamed = kind.partition("-")
    prefix = {"responses": "openai"}.get(name, name)
    place = base_url if name == "anthropic" else f"{base_url}/v1"
    # Without this, litellm asks for whole responses of a model that it does not know, and imitates the stream.
    litellm.register_model({MODEL: {"litellm_provider": "openai", "supports_native_streaming": True}})
    asked = {"model": f"{prefix}/{MODEL}", "api_base": place, "api_key": key}
    return (Responses if name == "responses" else Completion)(asked, streamed == "stream")


main(make)
