"""One agent's turn: a streamed chat, and when its first token came."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_CONTENT = re.compile(rb'"content":"[^"]')
_BACKEND = re.compile(rb"x-gateway-backend: (\S+)")
DONE = b"data: [DONE]"


@dataclass
class Answer:
    """`first`: seconds until the first token. `backend`: who answered; "" = nobody tells. `whole`: it came to its
    end."""

    first: float
    backend: str = ""
    whole: bool = False


async def ask(port: int, body: bytes, headers: Mapping[str, str]) -> Answer | None:
    """None: nobody is there, or the stream broke before its first token."""
    clock, began = asyncio.get_running_loop().time, asyncio.get_running_loop().time()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    answer, read = None, b""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + b"\r\n" + body)
        while data := await reader.read(65536):
            read = read[-100:] + data if answer is not None else read + data
            if answer is None and _CONTENT.search(read) is not None:
                backend = _BACKEND.search(read)
                answer = Answer(clock() - began, backend[1].decode() if backend else "")
            if answer is not None and DONE in read:
                answer.whole = True
        writer.close()
    except OSError:
        pass
    return answer


def body_of(model: str, system: str, turns: Sequence[tuple[str, str]], said: str, answer: int) -> bytes:
    """A chat with these turns (what was said, what was answered) behind it."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    for asked, answered in turns:
        messages += {"role": "user", "content": asked}, {"role": "assistant", "content": answered}
    messages.append({"role": "user", "content": said})
    chat = {"model": model, "messages": messages, "stream": True, "max_tokens": answer, "ignore_eos": True}
    return json.dumps(chat).encode()
