"""Streams whose lines end in CRLF or CR, cut anywhere: no client loses an event to where the network cut it."""

from __future__ import annotations

import asyncio
import json

import pytest
from openai._streaming import SSEDecoder

from tests.proxy.streams.stage import DONE, HELLO, ROLE, STOP, Stage, asking, sends
from tests.scripted import END, SSE_HEAD, Turn, chunked, request_bytes

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDS = {"crlf": b"\r\n", "cr": b"\r", "lf": b"\n"}
SAID = [ROLE, HELLO, STOP, DONE]


def written(end: bytes, *, bom: bool = False, space: bool = True) -> bytes:
    data = b"".join(SAID).replace(b"\n", end)
    return b"\xef\xbb\xbf" * bom + (data if space else data.replace(b"data: ", b"data:"))


def text_of(*pieces: bytes) -> str:
    """What the SDK's own parser makes of a stream that arrives in these pieces."""
    found = [event.data for event in SSEDecoder().iter_bytes(iter(pieces))]
    chunks = [json.loads(data) for data in found if data != "[DONE]"]
    assert found[-1] == "[DONE]"
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("space", [True, False], ids=["space", "no-space"])
@pytest.mark.parametrize("name", ENDS)
async def test_a_stream_cut_at_any_offset_reaches_the_sdk_whole(stage: Stage, name: str, space: bool) -> None:
    data = written(ENDS[name], space=space)
    said = text_of(data)
    assert said
    cuts = range(1, len(data)) if name == "crlf" and space else range(1, len(data), 7)
    stage.s.play(*(sends(data[:cut], data[cut:]) for cut in cuts))
    for cut in cuts:
        reply = await stage.ask()
        assert (reply.status, reply.ended) == (200, True), cut
        assert text_of(reply.body) == said, cut
        # Split where simple clients split: at blank lines, and nothing else.
        end = ENDS[name] * 2
        parts = [part for part in reply.body.replace(b"\n\n" if name != "lf" else end, end).split(end) if part]
        assert all(part.startswith(b"data:") and b"\r" not in part and b"\n" not in part for part in parts), cut
        assert len(parts) == len(SAID), cut


async def test_an_event_is_not_sent_before_the_second_half_of_its_end(stage: Stage) -> None:
    first, rest = written(b"\r\n").split(HELLO.strip(), 1)
    go = asyncio.Event()

    async def script(turn: Turn) -> None:
        await turn.send(SSE_HEAD + chunked(first + HELLO.strip() + b"\r\n\r"))
        await go.wait()
        await turn.send(chunked(rest[3:]) + END)

    stage.s.play(script)
    url = stage.gateway.url
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request_bytes(url, asking()))
        await stage.gateway.until(lambda: bool(stage.s.turns))
        asyncio.get_running_loop().call_later(0.1, go.set)
        raw = await reader.read()
    finally:
        writer.close()
    assert b"\r\n\r\r" not in raw
    assert raw.count(b"data: ") == len(SAID)


async def test_the_first_event_is_not_hidden_by_a_byte_order_mark(stage: Stage) -> None:
    stage.s.play(sends(written(b"\n", bom=True)))
    reply = await stage.ask()
    assert text_of(reply.body) == text_of(written(b"\n"))
    assert b"\xef\xbb\xbf" not in reply.body
