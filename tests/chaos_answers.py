"""What the clients of the storm ask, and whether what they get is what has to come back (test_chaos.py)."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.raw_client import RawClient, post_bytes

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
ANY = ["main", "main", "chain", "chain", "turns", "turns", "risky"]
REFUSED = {400, 429, 500, 502, 503, 504}  # 500: the backend's own, of a request that two have failed
INTERRUPTED = "upstream connect error: backend reset"
LOOKUP = {"name": "lookup", "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}}


class Asked:
    """One request and what has to come back: `text` from vLLM, which says what it is told, a product from Ollama."""

    def __init__(self, random: Random) -> None:
        self.nonce = f"N{random.getrandbits(40):010x}"
        self.text = " ".join(f"{self.nonce}w{number}" for number in range(random.randrange(5, 40)))
        self.stream = random.random() < 0.6
        self.tools = random.random() < 0.2
        self.choices = random.choice([1, 1, 1, 2])
        self.message = self.choices == 1 and random.random() < 0.3  # asked for by Anthropic's API
        simple = self.choices == 1 and not self.tools
        self.model = random.choice([*ANY, "local"] if simple else ANY)
        a, b = random.randrange(1000, 9999), random.randrange(1000, 9999)
        self.product = str(a * b)
        padding = "x" * 200_000 if random.random() < 0.1 else ""
        script = self.text
        self.body: dict[str, Any] = {
            "model": self.model,
            "stream": self.stream,
            "messages": [{"role": "user", "content": f"{padding} What is {a}*{b}?"}],
        }
        if self.choices > 1:
            self.body["n"] = self.choices
        if self.tools:
            as_message = {"name": LOOKUP["name"], "input_schema": LOOKUP["parameters"]}
            self.body["tools"] = [as_message if self.message else {"type": "function", "function": LOOKUP}]
            call = {"name": "lookup", "arguments": {"key": self.text}}
            script = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        self.body["vllm_xargs"] = {"script": script}

    @property
    def sent(self) -> bytes:
        return post_bytes(MESSAGES if self.message else CHAT, self.body)

    def judge(self, said: dict[int, str], calls: dict[int, str], *, whole: bool) -> None:
        """Is this what was asked for, and (not whole) a beginning of it?"""
        for index in range(self.choices):
            text, arguments = said.get(index, ""), calls.get(index, "")
            foreign = set(re.findall(r"N[0-9a-f]{10}w", text + arguments)) - {self.nonce + "w"}
            assert not foreign, "another request's answer"
            if not (text or arguments):
                assert not whole, "whole, and nothing was said"
            elif self.nonce in text:
                assert self.text == text or (not whole and self.text.startswith(text))
            elif self.tools and self.nonce in arguments:
                assert not whole or json.loads(arguments) == {"key": self.text}
            elif whole and not self.tools:
                assert self.product in text, "neither what vLLM was told to say nor what Ollama works out"


@dataclass
class Answer:
    """`ended`: came to its proper end, and not only to the end of the connection."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    ended: bool = False


async def read_answer(client: RawClient) -> Answer:
    head, *lines = (await client.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    answer = Answer(int(head.split(" ")[1]), {name.lower(): value.strip() for name, _, value in pairs})
    try:
        if "content-length" in answer.headers:
            answer.body = await client.reader.readexactly(int(answer.headers["content-length"]))
            answer.ended = True
        while not answer.ended:
            size = int(await client.reader.readuntil(b"\r\n"), 16)
            answer.body += (await client.reader.readexactly(size + 2))[:-2]
            answer.ended = size == 0
    except asyncio.IncompleteReadError as cut:
        partial = cut.partial
    else:
        partial = b""
    assert not partial, "cut inside a chunk"
    return answer


def check(asked: Asked, answer: Answer) -> str:
    """What kind of answer this is. Fails when it is none of the three that are allowed."""
    if answer.headers["content-type"] == "application/json":
        assert answer.ended
        value = json.loads(answer.body)
        if answer.status != 200:
            return check_error(asked, value, answer.status)
        return check_message(asked, value, whole=True) if asked.message else check_whole(asked, value)
    assert asked.stream
    assert answer.status == 200
    return check_message_stream(asked, answer) if asked.message else check_stream(asked, answer)


def check_error(asked: Asked, value: Any, status: int) -> str:
    assert set(value["error"]) == {"message", "type", "code"} | (set() if asked.message else {"param"})
    assert value["error"]["code"] != "internal_error"
    assert status in REFUSED
    return "refused"


def check_whole(asked: Asked, value: Any) -> str:
    assert not asked.stream
    choices = {choice["index"]: choice for choice in value["choices"]}
    assert len(choices) == asked.choices
    assert all(choice["finish_reason"] for choice in choices.values())
    said = {index: choice["message"]["content"] or "" for index, choice in choices.items()}
    calls = {i: c["message"].get("tool_calls") or [] for i, c in choices.items()}
    asked.judge(said, {i: c[0]["function"]["arguments"] for i, c in calls.items() if c}, whole=True)
    return "whole"


def data_of(answer: Answer) -> list[bytes]:
    """The data of a stream's events."""
    *events, rest = re.split(rb"\r\n\r\n|\n\n", answer.body)
    assert rest == b"", "cut inside an event"
    data = [b"\n".join(re.findall(rb"(?m)^data: ?(.*?)\r?$", event)) for event in events]
    return [d for d in data if d]


def check_stream(asked: Asked, answer: Answer) -> str:
    data = data_of(answer)
    finished, ids, content = set(), set(), False
    texts: dict[int, str] = dict.fromkeys(range(asked.choices), "")
    arguments = dict(texts)
    last = data.pop()
    for chunk in map(json.loads, data):
        assert "error" not in chunk, "something after the error"
        assert chunk["model"] == asked.model
        ids.add((chunk["id"], chunk["created"]))
        for choice in chunk["choices"]:
            index, delta = choice["index"], choice["delta"]
            texts[index] += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                arguments[index] += call["function"].get("arguments") or ""
            content = content or bool(delta.get("content") or delta.get("tool_calls"))
            if choice["finish_reason"]:
                finished.add(index)
    assert len(ids) <= 1
    asked.judge(texts, arguments, whole=answer.ended)
    if answer.ended:
        assert last == b"[DONE]"
        assert len(finished) == asked.choices
        return "stream"
    error = json.loads(last)["error"]
    if content:
        assert error == {
            "type": "server_error",
            "param": None,
            "code": "stream_interrupted",
            "message": INTERRUPTED,
        }
    else:
        assert error["code"] not in ("stream_interrupted", "internal_error")
    return "told to be broken"


def check_message(asked: Asked, value: Any, *, whole: bool) -> str:
    """The same of a message, or (not whole) of its beginning, its blocks put together."""
    assert (value["type"], value["role"], value["model"]) == ("message", "assistant", asked.model)
    assert bool(value["stop_reason"]) is whole
    said = "".join(block["text"] for block in value["content"] if block["type"] == "text")
    calls = [block["input"] for block in value["content"] if block["type"] == "tool_use"]
    arguments = calls[0] if calls and isinstance(calls[0], str) else json.dumps(calls[0]) if calls else ""
    asked.judge({0: said}, {0: arguments}, whole=whole)
    return "message"


def check_message_stream(asked: Asked, answer: Answer) -> str:
    *events, last = map(json.loads, data_of(answer))
    message: dict[str, Any] = {}
    open_blocks: set[int] = set()
    for event in events:
        match event["type"]:
            case "message_start":
                assert not message, "begun twice"
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"] | {"input": ""})
                open_blocks.add(event["index"])
            case "content_block_delta":
                assert event["index"] in open_blocks
                block, (name, piece) = message["content"][event["index"]], list(event["delta"].items())[1]
                name = "input" if name == "partial_json" else name
                block[name] = block[name] + piece
            case "content_block_stop":
                open_blocks.remove(event["index"])
            case "message_delta":
                message |= event["delta"]
            case other:
                assert other == "ping", "something after the error"
    content = bool(message) and any(block["type"] != "thinking" for block in message["content"])
    if message:
        check_message(asked, message, whole=answer.ended)
    if answer.ended:
        assert last == {"type": "message_stop"}
        assert not open_blocks
        return "message stream"
    assert last["type"] == "error"
    assert (last["error"]["message"] == INTERRUPTED) is content
    assert last["error"]["code"] != "internal_error"
    return "told to be broken"
