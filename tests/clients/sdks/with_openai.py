"""The openai SDK: `chat` and `responses`, whole and streamed."""

from __future__ import annotations

from typing import Any

from openai import OpenAI

from .conversation import MODEL, WEATHER, Client, Heard, Turn, main

TOOL = {"name": WEATHER["name"], "description": WEATHER["description"], "parameters": WEATHER["schema"]}


class Chat:
    def __init__(self, client: Any, streams: bool) -> None:
        self._client, self.streams = client, streams
        self._messages: list[Any] = []

    def ask(self, text: str, heard: Heard) -> Turn:
        self._messages.append({"role": "user", "content": text})
        return self._turn(heard)

    def tell(self, call: str, result: str, heard: Heard) -> Turn:
        self._messages.append({"role": "tool", "tool_call_id": call, "content": result})
        return self._turn(heard)

    def _turn(self, heard: Heard) -> Turn:
        asked: Any = {"model": MODEL, "messages": self._messages, "tools": [{"type": "function", "function": TOOL}]}
        if self.streams:
            with self._client.chat.completions.stream(**asked) as stream:
                for event in stream:
                    if event.type == "content.delta":
                        heard()
                message = stream.get_final_completion().choices[0].message
        else:
            message = self._client.chat.completions.create(**asked).choices[0].message
        self._messages.append(message.to_dict())
        calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        return Turn(message.content or "", calls)


class Responses:
    def __init__(self, client: Any, streams: bool) -> None:
        self._client, self.streams = client, streams
        self._items: list[Any] = []

    def ask(self, text: str, heard: Heard) -> Turn:
        self._items.append({"role": "user", "content": text})
        return self._turn(heard)

    def tell(self, call: str, result: str, heard: Heard) -> Turn:
        self._items.append({"type": "function_call_output", "call_id": call, "output": result})
        return self._turn(heard)

    def _turn(self, heard: Heard) -> Turn:
        tool = {"type": "function", "strict": False, **TOOL}
        asked: Any = {"model": MODEL, "input": self._items, "tools": [tool], "store": False}
        if self.streams:
            with self._client.responses.stream(**asked) as stream:
                for event in stream:
                    if event.type == "response.output_text.delta":
                        heard()
                response = stream.get_final_response()
        else:
            response = self._client.responses.create(**asked)
        self._items += [item.to_dict() for item in response.output]
        calls = [item for item in response.output if item.type == "function_call"]
        return Turn(response.output_text, [(call.call_id, call.name, call.arguments) for call in calls])


def make(base_url: str, key: str, kind: str) -> Client:
    client = OpenAI(base_url=f"{base_url}/v1", api_key=key)
    api, _, streamed = kind.partition("-")
    return (Responses if api == "responses" else Chat)(client, streamed == "stream")


main(make)
