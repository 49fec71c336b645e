"""A backend that sends exactly the bytes a test wants, and a client that sees exactly the bytes that come."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 30.0  # seconds until a wait in a test is called hung
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunked(*pieces: bytes) -> bytes:
    """Each piece as one HTTP chunk; not ended."""
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


def answer(body: bytes, status: str = "200 OK", content_type: str = "application/json", *more: str) -> bytes:
    """A whole HTTP answer."""
    head = [f"HTTP/1.1 {status}", f"content-type: {content_type}", f"content-length: {len(body)}", *more]
    return "\r\n".join([*head, "", ""]).encode() + body


def json_answer(value: object, status: str = "200 OK") -> bytes:
    return answer(json.dumps(value).encode(), status)


# -- the backend ------------------------------------------------------------------------------------------------------


@dataclass
class Turn:
    """One POST, from the backend's side; `connection` counts the accepted connections from 0."""

    headers: dict[str, str]
    body: bytes
    connection: int
    path: str
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()

    async def stream(self, *events: bytes, end: bool = True) -> None:
        """A whole event stream, one HTTP chunk per event."""
        await self.send(SSE_HEAD + chunked(*events) + (END if end else b""))

    async def until_lost(self) -> None:
        """Wait until the gateway closes this connection."""
        await self._reader.read()

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Script = Callable[[Turn], Awaitable[object]]


@dataclass
class ScriptedBackend:
    """Answers probes as a vLLM that serves `model`. POST number n is answered by script n; the last repeats.
    `responds`: it has `/v1/responses`, as newer servers do. `apart`: the gateway's own harmless requests, which come
    whenever an earlier test has made the backend suspect, are answered well and are no turns."""

    scripts: tuple[Script, ...]
    turns: list[Turn] = field(default_factory=list)
    url: str = ""
    connections: int = 0
    model: str = "served/model"
    window: int | None = 131072
    responds: bool = False
    apart: bool = False
    _to_all: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    def deafen(self) -> None:
        """Nobody listens any more."""
        assert self._server is not None
        self._server.close()

    def play(self, *scripts: Script, to_all: bool = False) -> None:
        """From here on other scripts, counted anew. `to_all`: also to the gateway's own requests."""
        self.scripts = scripts
        self._to_all = to_all
        self.turns.clear()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        server = self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        number = self.connections
        self.connections += 1
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.split("\r\n")
                method, path, _ = first.split(" ")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                if method == "GET":
                    writer.write(json_answer(self._probed(path)))
                    continue
                if path.endswith("/responses") and not self.responds:
                    writer.write(json_answer({"detail": "Not Found"}, "404 Not Found"))
                    continue
                turn = Turn(headers, body, number, path, reader, writer)
                if self.apart and not self._to_all and headers.get("x-request-id", "").startswith("probe-"):
                    await _answer_well(turn)
                    continue
                self.turns.append(turn)
                await self.scripts[min(len(self.turns), len(self.scripts)) - 1](turn)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _probed(self, path: str) -> object:
        window = {} if self.window is None else {"max_model_len": self.window}
        models = {"object": "list", "data": [{"id": self.model, **window}]}
        return {"/v1/models": models, "/version": {"version": "0.32.0"}}.get(path, {})


async def _answer_well(turn: Turn) -> None:
    choice = {"index": 0, "text": "a", "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    said = {"id": "up-1", "created": 1, "model": "served/model", "usage": usage}
    if turn.json.get("stream"):
        event = json.dumps({**said, "choices": [{**choice, "delta": {"content": "a"}}]}).encode()
        await turn.stream(b"data: " + event + b"\n\n", b"data: [DONE]\n\n")
    else:
        await turn.send(
            json_answer({**said, "choices": [{**choice, "message": {"role": "assistant", "content": "a"}}]})
        )


@asynccontextmanager
async def scripted(*scripts: Script, apart: bool = False) -> AsyncIterator[ScriptedBackend]:
    backend = ScriptedBackend(scripts, apart=apart)
    async with backend.serve():
        yield backend


# -- the client -------------------------------------------------------------------------------------------------------


@dataclass
class RawReply:
    """What came over the wire until the gateway closed the connection. `body` is without its chunk framing; `ended`
    tells whether it came to its proper end."""

    status: int
    headers: dict[str, str]
    body: bytes
    ended: bool

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[bytes]:
        """The events of a stream, each without its blank line."""
        assert self.body.endswith(b"\n\n")
        return self.body.split(b"\n\n")[:-1]

    @property
    def chunks(self) -> list[Any]:
        """The decoded data events; comments and [DONE] left out."""
        data = [e.removeprefix(b"data: ") for e in self.events if e.startswith(b"data: ")]
        return [json.loads(d) for d in data if d != b"[DONE]"]

    @property
    def text(self) -> str:
        """What a stream's first choice said."""
        said = [c["choices"][0] for c in self.chunks if c.get("choices")]
        return "".join(s["delta"].get("content") or "" if "delta" in s else s["text"] for s in said)


def request_bytes(
    url: str, body: bytes | object, path: str = "/v1/chat/completions", headers: Iterable[str] = ()
) -> bytes:
    """A POST that closes its connection afterwards. A body that is not bytes is sent as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"host: {urlsplit(url).netloc}", "connection: close", *headers]
    if not any(h.lower().startswith(("content-length", "transfer-encoding")) for h in headers):
        lines.append(f"content-length: {len(raw)}")
    return "\r\n".join([*lines, "", ""]).encode() + raw


async def raw_post(
    url: str, body: bytes | object, path: str = "/v1/chat/completions", headers: Iterable[str] = ()
) -> RawReply:
    """Send a POST and read its answer: to the end of the connection, or of an answer whose length is told."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(request_bytes(url, body, path, headers))
            raw = b""
            while not has_its_length(raw) and (piece := await reader.read(65536)):
                raw += piece
            return read_reply(raw)
    finally:
        writer.close()


def has_its_length(raw: bytes) -> bool:
    head, _, body = raw.partition(b"\r\n\r\n")
    _, found, length = head.lower().partition(b"\r\ncontent-length: ")
    return bool(found) and len(body) >= int(length.partition(b"\r\n")[0])


def read_reply(raw: bytes) -> RawReply:
    """The bytes of one answer, taken apart."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    status = int(first.split(" ")[1])
    if headers.get("transfer-encoding") != "chunked":
        return RawReply(status, headers, rest, len(rest) == int(headers.get("content-length", "-1")))
    body, ended = b"", False
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body, tail, rest = body + rest[:length], rest[length : length + 2], rest[length + 2 :]
        assert tail == b"\r\n", "a chunk that is cut short"
        if length == 0:
            assert rest == b""
            ended = True
    return RawReply(status, headers, body, ended)
