"""The hostile tenth of the storm (test_chaos.py): clients that smuggle, bloat, quote and stop half-way, and a backend
whose answers to requests and probes are as bad as can be. What they do must change nothing for the others."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from tests.raw_client import RawClient, chat, post_bytes

CHAT = "/v1/chat/completions"
DEEP = b"[" * 100_000
QUOTES = [
    "maximum context length is 9",
    '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    'tool_choice="required" requires --tool-call-parser to be set',
    "small is not a multimodal model",
    "small does not support thinking",
    "The model `small` does not exist.",
    "The engine is currently busy and cannot accept new requests.",
]

# -- clients ----------------------------------------------------------------------------------------------------------

SMUGGLED = b"POST /admin/backends/v1/drain HTTP/1.1\r\nhost: gateway\r\nx-smuggled: 1\r\n\r\n"


def upgraded(path: str, random: Random) -> bytes:
    """A request whose body looks like a second one, behind an offered upgrade."""
    method = random.choice([b"POST", b"GET"])
    head = b"%s %s HTTP/1.1\r\nhost: gateway\r\nconnection: upgrade\r\nupgrade: websocket\r\n" % (method, path.encode())
    return head + b"content-length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED


def quoted(random: Random) -> bytes:
    """A request that vLLM refuses with its own words around the client's."""
    field = random.choice(["temperature", "top_p", "n", "max_tokens", "seed", "stop", "tools", "tool_choice"])
    value: Any = random.choice(QUOTES)
    return post_bytes(
        CHAT, chat(random.choice(["main", "chain", "turns"]), **{field: random.choice([value, {value: 1}])})
    )


def odd_body(random: Random) -> bytes:
    body = random.choice(
        [
            b"",
            b"{",
            DEEP,
            b'{"model": "main", "max_tokens": "\xff\xfe"}',
            b'{"model": "main", "messages": [], "max_tokens": ' + b"9" * 400 + b"}",
            b'{"model": "main", "messages": ' + DEEP[:1000] + b"]" * 1000 + b"}",
            json.dumps(chat("main", n=10**9)).encode(),
            json.dumps(chat("no\ud800such")).encode(),
        ]
    )
    return b"POST %s HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        CHAT.encode(), len(body), body
    )  # fmt: skip


def odd_head(random: Random) -> bytes:
    return random.choice(
        [
            b"GET /health HTTP/1.1\r\nhost: gateway\r\n" + b"x: y\r\n" * 5000 + b"\r\n",
            b"GET /health HTTP/1.1\r\nx: " + b"y" * 300_000 + b"\r\n\r\n",
            b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\nhost: gateway\r\n\r\n",
            b"POST %s HTTP/1.1\r\nhost: gateway\r\ncontent-length: 3\r\ncontent-length: 5\r\n\r\nabcde" % CHAT.encode(),
            b"POST %s HTTP/1.1\r\nhost: gateway\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n" % CHAT.encode(),
            b"\x00\x01\x02\x03\r\n\r\n",
            b"GET /health HTTP/1.1\r\nhost gateway\r\n\r\n",
        ]
    )


def tiny_chunks(random: Random) -> bytes:
    """A body in chunks of two bytes."""
    body = json.dumps(chat("main", "x" * 20_000)).encode()
    head = b"POST %s HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n" % CHAT.encode()
    chunks = b"".join(b"2\r\n%s\r\n" % body[at : at + 2].ljust(2) for at in range(0, len(body), 2))
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def half(random: Random) -> bytes:
    """A request that never comes to its end."""
    whole = post_bytes(CHAT, chat("main"))
    return whole[: random.randrange(1, len(whole) - 1)]


async def misbehave(client: RawClient, random: Random) -> str:
    """One hostile act; returns its name. Fails when a body was read as a request, or an answer is a failure of ours."""
    paths = ["/health", "/v1/models", "/nowhere", "/v1/messages/count_tokens", CHAT]
    acts: dict[str, Callable[[], bytes]] = {
        "upgraded": lambda: upgraded(random.choice(paths), random),
        "quoted": lambda: quoted(random),
        "odd body": lambda: odd_body(random),
        "odd head": lambda: odd_head(random),
        "tiny chunks": lambda: tiny_chunks(random),
        "half": lambda: half(random),
        "pipelined": lambda: b"GET /health HTTP/1.1\r\nhost: gateway\r\n\r\n" * 300,
    }
    name = random.choice(list(acts))
    with suppress(ConnectionError):  # closed in mid-sending: as it should be
        await client.send(acts[name]())
    if name == "half" or random.random() < 0.2:
        return name  # and it leaves
    said = b""
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(0.5):
            while piece := await client.reader.read(65536):
                said += piece
    assert b"internal_error" not in said
    assert b"HTTP/1.1 500" not in said
    assert b"/admin" not in said, "a body was read as a request"
    if name != "pipelined":
        assert len(re.findall(rb"HTTP/1\.1 [2-5]\d\d ", said)) <= 1, "more answers than requests"
    return name


# -- the backend ------------------------------------------------------------------------------------------------------


def _whole(value: bytes, *more: bytes) -> bytes:
    head = [b"HTTP/1.1 200 OK", b"content-type: application/json", b"content-length: %d" % len(value), *more]
    return b"\r\n".join([*head, b"", b""]) + value


def _choice(message: Any, **further: Any) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": "stop", **further}
    return json.dumps({"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()


def _stream(*events: Any) -> bytes:
    lines = b"".join(b"data: " + (e if isinstance(e, bytes) else json.dumps(e).encode()) + b"\n\n" for e in events)
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + lines


WHOLE = [
    _whole(b"5"),
    _whole(b'"x"'),
    _whole(b"[]"),
    _whole(DEEP),
    _whole(b'{"choices": {}}'),
    _whole(b'{"choices": [null]}'),
    _whole(_choice("x")),
    _whole(_choice(None)),
    _whole(_choice({"role": "assistant", "content": {"a": 1}})),
    _whole(_choice({"role": "assistant", "content": None, "tool_calls": "x"})),
    _whole(_choice({"role": "assistant", "content": None, "tool_calls": [None]})),
    _whole(gzip.compress(b" " * 20_000_000 + b"5"), b"content-encoding: gzip"),
    b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000 + b"content-length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{",
    b"\x16\x03\x01 no HTTP at all\r\n\r\n",
    b"HTTP/1.1 500 Oh\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
    b"",
]
STREAMS = [
    _stream(5, "x", None, []),
    _stream({"choices": {}}),
    _stream({"choices": [None]}, {"choices": "x"}),
    _stream({"choices": [{"index": "a", "delta": []}]}),
    _stream({"choices": [{"index": 0, "delta": {"tool_calls": "x"}}]}),
    _stream({"choices": [{"index": 0, "delta": {"tool_calls": [None]}}]}),
    _stream({"error": None}),
    _stream({"error": ["x"]}),
    _stream() + b": x\n" * 200_000,
    _stream().replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + gzip.compress(b": x\n\n" * 3_000_000),
]


def _nonsense(path: str, random: Random) -> bytes:
    """An answer to a probe."""
    if path == "/metrics" and random.random() < 0.5:
        return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"4\r\na 1\n\r\n" * 100_000
    bomb = zlib.compressobj(wbits=31)
    zipped = bomb.compress(b"0" * 5_000_000) + bomb.flush()
    models = [b'{"data": {}}', b'{"data": [{"id": 5, "max_model_len": "x"}]}', b'{"data": [null]}', DEEP, b"[]"]
    return random.choice(
        [
            *([_whole(random.choice(models))] if path == "/v1/models" else []),
            _whole(b"[1, 2]"),
            _whole(b"vllm:num_requests_running +Inf\nvllm:generation_tokens_total NaN\nprocess_start_time_seconds x\n"),
            _whole(b'{"version": {"a": []}}'),
            _whole(zipped, b"content-encoding: gzip"),
        ]
    )


@asynccontextmanager
async def hostile_backend(random: Random) -> AsyncIterator[str]:
    """A backend that looks alive and never answers a chat rightly. Yields its URL."""
    tasks: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split("\r\n")[0].split(" ")
        length = next((int(x[15:]) for x in head.lower().split("\r\n") if x.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if method == "GET":
            writer.write(_nonsense(path, random))
        else:
            writer.write(random.choice(STREAMS if b'"stream":true' in body.replace(b" ", b"") else WHOLE))
        await writer.drain()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await answer(reader, writer)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
