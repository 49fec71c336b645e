"""A simulated speech server (Parakeet, Chatterbox): it is healthy, reads forms, and answers with the right type."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.base import Sim
from simulator.engine import Engine
from simulator.faults import Fault
from simulator.server import Exchange

PATHS = {
    "transcriptions": "/v1/audio/transcriptions",
    "translations": "/v1/audio/translations",
    "speech": "/v1/audio/speech",
}
VOICES = "/v1/audio/voices"
SPEECH_SECONDS, PIECE_SECONDS = 0.2, 0.05


class SimAudio(Sim):
    """`serves`: transcriptions, translations, speech. `paths`: where, if not below OpenAI's paths."""

    def __init__(
        self,
        name: str = "audio",
        serves: Sequence[str] = ("transcriptions",),
        *,
        paths: Mapping[str, str] | None = None,
        speedup: float = 1.0,
    ) -> None:
        super().__init__(name, speedup=speedup)
        self.serves = tuple(serves)
        self.paths = {**PATHS, "voices": VOICES, **(paths or {})}

    def engines(self) -> list[Engine]:
        return []

    def describe(self) -> dict[str, Any]:
        return {"engine": "http", "serves": list(self.serves)}

    async def route(self, exchange: Exchange, faults: Mapping[str, Fault]) -> None:
        served = {self.paths[name]: name for name in self.serves if name in self.paths}
        if exchange.path in ("/", "/health") and exchange.method == "GET":
            await exchange.send_json(503 if "unhealthy" in faults else 200, {"status": "ok"})
        elif exchange.path == self.paths["voices"] and "speech" in self.serves:
            await exchange.send_json(200, {"voices": ["alloy", {"id": "emily", "name": "Emily"}]})
        elif exchange.path not in served:
            await exchange.send_json(404, {"detail": "Not Found"})
        elif served[exchange.path] == "speech":
            await self._speak(exchange)
        else:
            await self._transcribe(exchange)

    async def _speak(self, exchange: Exchange) -> None:
        """The audio as it is made, piece by piece."""
        whole = silence(SPEECH_SECONDS)
        await exchange.start(200, [("content-type", "audio/wav"), ("transfer-encoding", "chunked")])
        step = len(whole) // int(SPEECH_SECONDS / PIECE_SECONDS)
        for at in range(0, len(whole), step):
            await exchange.write(whole[at : at + step])
            await asyncio.sleep(PIECE_SECONDS / self.speedup)
        await exchange.write(b"", more=False)

    async def _transcribe(self, exchange: Exchange) -> None:
        kind = exchange.headers.get("content-type", "")
        fields = form_fields(kind, exchange.body) if "boundary=" in kind else {"file": exchange.body}
        file = fields.get("file", b"")
        if not file:
            await exchange.send_json(422, {"detail": [{"loc": ["body", "file"], "msg": "Field required"}]})
            return
        text = f"This is {self.name}, simulated, after {len(file)} bytes of audio."
        if fields.get("response_format") == b"text":
            await exchange.send(200, text.encode(), "text/plain; charset=utf-8")
        else:
            usage = {"type": "duration", "seconds": max(1, len(file) // 32000)}
            await exchange.send_json(200, {"text": text, "usage": usage})


def form_fields(content_type: str, body: bytes) -> dict[str, bytes]:
    """The parts of a form by name; of a repeated one the last."""
    _, _, boundary = content_type.partition("boundary=")
    found = {}
    for part in body.split(b"--" + boundary.strip('"').encode())[1:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        name = re.search(rb'[; ]name="([^"]*)"', head)
        if name is not None:
            found[name[1].decode()] = value.removesuffix(b"\r\n")
    return found


def silence(seconds: float, rate: int = 16000) -> bytes:
    """A WAV file of silence: 16 bit, mono."""
    data = bytes(2 * int(seconds * rate))
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return (
        struct.pack("<4sI4s", b"RIFF", 4 + len(form) + 8 + len(data), b"WAVE")
        + form
        + struct.pack("<4sI", b"data", len(data))
        + data
    )
