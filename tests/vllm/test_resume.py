"""A stream from a real vLLM that breaks at a random token goes on at another backend (`resume: true`).

The scripted model is as strict as can be: it goes on only where the tokens of the text so far are exactly those that it
has written, so a text that is split otherwise at the join counts as another answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.scripted import RawReply, raw_post
from tests.support import RunningGateway, running_gateway

from .asks import chat, script
from .servers import VllmServer

CUTS, SAME_LEAST = 200, 0.95
TEXTS, LENGTH = 20, 320  # answers, characters of each
CONTENT = b'"delta":{"content":"'  # of an event with text; the role chunk has it elsewhere


@dataclass
class Breaking:
    """A relay in front of a vLLM. With `after` set, the next scripted answer is cut after so many events with text. The
    gateway's own harmless requests have no script."""

    url: str = ""
    after: int | None = None
    servers: list[asyncio.Task[Any]] = field(default_factory=list)

    async def relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: bytearray, seen: bytearray
    ) -> None:
        """The answers' bytes, until the cut. `asked`, `seen`: those of the present request and of its answer."""
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                seen += data
                end = self._end(seen) if b'"script"' in asked else None
                if end is not None:
                    writer.write(bytes(data[: len(data) - (len(seen) - end)]))
                    self.after = None
                    break
                writer.write(data)
                await writer.drain()
        writer.close()

    def _end(self, seen: bytearray) -> int | None:
        """Where the last event before the cut ends; None = it has not come yet, or there is no cut."""
        at = 0
        if self.after is None:
            return None
        for _ in range(self.after):
            if (at := seen.find(CONTENT, at) + 1) == 0:
                return None
        end = seen.find(b"\n\n\r\n", at)  # the event, and the chunk of the body that it fills
        return end + 4 if end >= 0 else None


@asynccontextmanager
async def breaking(url: str) -> AsyncIterator[Breaking]:
    parts, relay = urlsplit(url), Breaking()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        relay.servers.append(task)
        there, back = await asyncio.open_connection(parts.hostname, parts.port)
        asked, seen = bytearray(), bytearray()
        answer = asyncio.create_task(relay.relay(there, writer, asked, seen))
        with contextlib.suppress(OSError):
            while not answer.done() and (data := await reader.read(65536)):
                if seen:
                    asked.clear()
                    seen.clear()
                asked += data
                back.write(data)
        back.close()
        await answer

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    relay.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        server.close()
        for task in relay.servers:
            task.cancel()
        await asyncio.gather(*relay.servers, return_exceptions=True)


@asynccontextmanager
async def pair(server: VllmServer) -> AsyncIterator[tuple[Breaking, RunningGateway]]:
    """One vLLM as two backends; the first is reached through the relay."""
    async with breaking(server.url) as relay:
        key = f", api_key: {server.api_key}" if server.api_key else ""
        first = f"a: {{url: '{relay.url}'{key}}}"
        routes = f"""
defaults: {{health: {{every: 200ms, recover_after: 1}}}}
backends: {{{first}, {server.routes("b")}}}
aliases: {{front: {{use: [a, b], resume: true}}}}
"""
        async with running_gateway(routes) as gateway:
            await gateway.until_ready("a", "b")
            yield relay, gateway


async def ask(gateway: RunningGateway, text: str, **more: Any) -> RawReply:
    body = chat(**script(text), temperature=0, stream=True, stream_options={"include_usage": True}, **more)
    return await raw_post(gateway.url, body)


def texts() -> list[str]:
    """Prose, code and tables in several scripts, from this repository's documents, and what they lack."""
    root = Path(__file__).parent.parent.parent
    sources = ["docs/failover.md", "docs/admission.md", "gateway/proxy/reply.py", "gateway/config/urls.py"]
    whole = [(root / name).read_text() for name in sources]
    whole.append("Zażółć gęślą jaźń. 日本語のテキストです。 Ünïcödé 😀🚀 और हिन्दी, مرحبا.\n\n- eins\n- zwei\n\n" * 8)
    chooser = random.Random(7)
    found = []
    for i in range(TEXTS):
        source = whole[i % len(whole)]
        start = chooser.randrange(len(source) - LENGTH)
        found.append(source[start : start + LENGTH].strip())
    return found


async def test_the_joined_text_is_the_one_of_an_unbroken_stream(plain: VllmServer) -> None:
    """At temperature 0, for 200 cuts at random tokens. A cut counts when it came after content and before the end: on
    a busy machine vLLM may send several events at once."""
    chooser = random.Random(11)
    same = 0
    differing: list[str] = []
    async with pair(plain) as (relay, gateway):

        def broken() -> float:
            return gateway.metric("gateway_attempts_total", backend="a", outcome="interrupted")

        for i, text in enumerate(texts(), 1):
            whole = await ask(gateway, text)
            assert (whole.text, whole.ended) == (text, True)
            events = sum(bool(c["choices"] and c["choices"][0]["delta"].get("content")) for c in whole.chunks)
            while broken() < i * CUTS // TEXTS:
                await gateway.until_ready("a")
                before, relay.after = broken(), chooser.randrange(1, events)
                reply = await ask(gateway, text)
                if broken() == before:
                    continue
                if reply.ended and reply.text == text:
                    same += 1
                    assert b": x-gateway resumed=b" in reply.events
                    assert reply.chunks[-1]["usage"]["prompt_tokens"] == whole.chunks[-1]["usage"]["prompt_tokens"]
                else:
                    differing.append(reply.text)
        cuts = broken()
    print(f"\n{same} of {cuts:.0f} joined texts are those of the unbroken stream")
    assert cuts >= CUTS
    assert same >= SAME_LEAST * cuts, differing[:5]


async def test_it_goes_on_behind_a_reasoning_parser_when_nothing_is_thought(tools: VllmServer) -> None:
    async with pair(tools) as (relay, gateway):
        text = "The first half of it, and then the second half of it. " * 5
        unthinking = {"chat_template_kwargs": {"enable_thinking": False}}
        whole = await ask(gateway, text, **unthinking)
        assert whole.text == text
        while not gateway.metric("gateway_resumed_total", alias="front", backend="b"):
            await gateway.until_ready("a")
            relay.after = 20
            reply = await ask(gateway, text, **unthinking)
            assert (reply.text, reply.ended) == (text, True)
