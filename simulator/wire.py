"""Writes server-sent events and JSON bodies, with the faults that change bytes on the wire."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence

from simulator.faults import Fault
from simulator.server import Exchange

DONE = b"data: [DONE]\n\n"


class EventStream:
    """Writes whole events; the wire faults (crlf, comments, multiline, gzip, cut_chunks) are applied here."""

    def __init__(self, exchange: Exchange, faults: Mapping[str, Fault], content_type: str, vary: bool = True) -> None:
        self._exchange, self._faults = exchange, faults
        self._headers = [("content-type", content_type), *([("vary", "Origin")] if vary else [])]
        self._gzip = zlib.compressobj(wbits=31) if "gzip" in faults else None
        self._cuts = 0

    async def open(self) -> None:
        headers = list(self._headers)
        if self._gzip:
            headers.append(("content-encoding", "gzip"))
        await self._exchange.start(200, headers)

    async def send(self, events: Sequence[bytes]) -> None:
        if events:
            await self._write(b"".join(self._dressed(event) for event in events))

    async def end(self) -> None:
        """A clean end: the terminating chunk."""
        if self._gzip:
            await self._exchange.write(self._gzip.flush())
        await self._exchange.write(b"", more=False)

    def _dressed(self, event: bytes) -> bytes:
        if "multiline" in self._faults and event.startswith(b"data: {"):
            # the first comma outside a string is a place where JSON may be broken over lines
            event = event.replace(b',"', b',\ndata: "', 1)
        if "comments" in self._faults:
            event = b": a comment\n\n" + event
        return event.replace(b"\n", b"\r\n") if "crlf" in self._faults else event

    async def _write(self, data: bytes) -> None:
        if self._gzip:
            data = self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
        cut = self._faults.get("cut_chunks")
        if cut is None:
            await self._exchange.write(data)
            return
        while data:
            size = max(1, cut.sizes[self._cuts % len(cut.sizes)])
            self._cuts += 1
            await self._exchange.write(data[:size])
            data = data[size:]
            await asyncio.sleep(0)  # so that each part is sent on its own


async def break_off(exchange: Exchange, stream: EventStream, cut: Fault, error: Sequence[bytes]) -> None:
    """End a stream in the middle: `die_mid` cuts the connection, `error_event` sends `error` first."""
    if cut.kind == "die_mid":
        await exchange.cut(cut.reset)
    if cut.kind == "error_event":
        await stream.send(error)
    await stream.end()


async def send_body(exchange: Exchange, faults: Mapping[str, Fault], body: bytes, vary: bool = True) -> None:
    """A JSON answer with the wire faults that make sense for it; die_mid cuts it in the middle."""
    headers = [("content-type", "application/json"), *([("vary", "Origin")] if vary else [])]
    if "gzip" in faults:
        packer = zlib.compressobj(wbits=31)
        body = packer.compress(body) + packer.flush()
        headers.append(("content-encoding", "gzip"))
    await exchange.start(200, [("content-length", str(len(body))), *headers])
    if die := faults.get("die_mid"):
        await exchange.write(body[: len(body) // 2])
        await exchange.cut(die.reset)
    cut = faults.get("cut_chunks")
    index = 0
    while cut and len(body) > 1:
        size = max(1, min(len(body) - 1, cut.sizes[index % len(cut.sizes)]))
        await exchange.write(body[:size])
        body, index = body[size:], index + 1
        await asyncio.sleep(0)
    await exchange.write(body, more=False)
