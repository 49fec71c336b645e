"""A client that sees heads and bodies as they are on the wire, and captures of a real vLLM to hold against them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11

CAPTURES = Path(__file__).parent.parent / "data" / "captures"
# leaves that differ from run to run, or with the tokenizer
MASKED = {
    *("id", "created", "system_fingerprint", "usage", "tokens", "token_strs", "count", "embedding", "root", "prompt"),
    *("score", "relevance_score"),
}


@dataclass
class Reply:
    """One answer. `whole` is false when the connection ended before the body did."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes
    whole: bool = True

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of every event, decoded; `[DONE]` as text."""
        found = re.findall(r"^data: (.*)$", self.body.decode(), re.M)
        return [json.loads(d) if d != "[DONE]" else d for d in found]

    def header(self, name: str) -> str | None:
        return next((v for k, v in self.headers if k == name), None)


@dataclass
class Conversation:
    """One connection on which requests can be sent and read in steps."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    host: str
    state: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))

    async def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> None:
        head = [("host", self.host), *headers.items()]
        if body is not None:
            head.append(("content-length", str(len(body))))
        data = self.state.send(h11.Request(method=method, target=path, headers=head)) or b""
        data += (self.state.send(h11.Data(body)) or b"") if body else b""
        self.writer.write(data + (self.state.send(h11.EndOfMessage()) or b""))
        await self.writer.drain()

    async def event(self) -> Any:
        """The next h11 event. Raises ConnectionError when the peer is gone."""
        while True:
            try:
                event = self.state.next_event()
            except h11.RemoteProtocolError as problem:
                raise ConnectionResetError(str(problem)) from None
            if event is not h11.NEED_DATA:
                return event
            self.state.receive_data(await self.reader.read(65536))

    async def reply(self) -> Reply:
        head = await self.event()
        if isinstance(head, h11.ConnectionClosed):
            raise ConnectionResetError("closed before a byte")
        reply = Reply(
            head.status_code,
            head.reason.decode(),
            [(k.decode(), v.decode()) for k, v in head.headers],
            b"",
        )
        try:
            while isinstance(event := await self.event(), h11.Data):
                reply.body += bytes(event.data)
        except ConnectionError:
            reply.whole = False
        return reply

    async def read_until(self, mark: bytes) -> bytes:
        """Raw bytes of the answer up to and with `mark`."""
        return await asyncio.wait_for(self.reader.readuntil(mark), 5)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Conversation]:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        yield Conversation(reader, writer, where.netloc)
    finally:
        writer.close()


async def ask(
    url: str, path: str, body: Any = None, method: str | None = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """One request on a connection of its own; a dict is sent as JSON. Raises ConnectionError."""
    raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    given = dict(headers or {})
    if raw is not None and "content-type" not in {k.lower() for k in given}:
        given["content-type"] = "application/json"
    async with asyncio.timeout(10), connected(url) as conversation:
        await conversation.send(method or ("GET" if raw is None else "POST"), path, raw, given)
        return await conversation.reply()


def chat(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


@dataclass
class Capture:
    """One file: what was sent, and what a real vLLM answered."""

    method: str
    path: str
    body: bytes | None
    headers: dict[str, str]
    reply: Reply

    @property
    def scripted(self) -> bool:
        return b'"script"' in (self.body or b"")


def load(name: str) -> Capture:
    request, _, response = (CAPTURES / f"{name}.txt").read_bytes().partition(b"### ---- response, verbatim ----\n")
    lines = request.decode().splitlines()
    _, method, path = lines[0].split()
    body = next((line.removeprefix("### body: ") for line in lines if line.startswith("### body: ")), None)
    extra = next((line for line in lines if line.startswith("### curl extra: ")), "")
    headers = {k.lower(): v for k, v in re.findall(r"-H ([\w-]+): ((?:Bearer |bearer )?\S+)", extra)}
    if "--data-binary" in extra:
        body = extra.partition("--data-binary ")[2]
    head, _, content = response.partition(b"\r\n\r\n" if b"\r\n\r\n" in response else b"\n\n")
    status, *fields = head.decode().splitlines()
    _, code, reason = status.split(" ", 2)
    pairs = [(k, v) for k, _, v in (f.partition(": ") for f in fields)]
    content = content.removesuffix(b"\n") if not content.startswith((b"data", b":")) else content
    return Capture(
        method, path, body.encode() if body is not None else None, headers, Reply(int(code), reason, pairs, content)
    )


def masked(value: Any, texts: bool) -> Any:
    """`value` with key order kept and what can't be compared replaced; `texts` masks what was said as well."""
    if isinstance(value, dict):
        said = {"content", "reasoning", "arguments", "text"} if texts else set()
        hidden = MASKED | said
        return [(k, _kind(v) if k in hidden else masked(v, texts)) for k, v in value.items()]
    if isinstance(value, list):
        return [masked(v, texts) for v in value]
    return value


def _kind(value: Any) -> Any:
    if isinstance(value, dict):
        return [(k, _kind(v)) for k, v in value.items()]
    if isinstance(value, list):
        return "list"
    return value if value is None else type(value).__name__


def order(reply: Reply) -> list[Any]:
    """The masked events of a stream, each run of equal ones as one."""
    kept: list[Any] = []
    for event in reply.events:
        shape = masked(event, texts=True)
        if not kept or kept[-1] != shape:
            kept.append(shape)
    return kept


def said(reply: Reply) -> dict[str, str]:
    """What a chat stream said in all, per field; calls by index."""
    total: dict[str, str] = {}
    for event in reply.events:
        for choice in event["choices"] if isinstance(event, dict) else []:
            delta = choice["delta"]
            parts = {k: delta.get(k) or "" for k in ("content", "reasoning")}
            for call in delta.get("tool_calls", []):
                function = call["function"]
                parts[f"call {call['index']}"] = function.get("name", "") + function.get("arguments", "")
            for key, text in parts.items():
                total[key] = total.get(key, "") + text
    return {k: v for k, v in total.items() if v}
