"""A simulated speech server (Parakeet, Chatterbox): it is healthy, and answers with the right type."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.base import Sim
from simulator.engine import Engine
from simulator.faults import Fault
from simulator.server import Exchange

_PATHS = {
    "transcriptions": "/v1/audio/transcriptions",
    "translations": "/v1/audio/translations",
    "speech": "/v1/audio/speech",
}


class SimAudio(Sim):
    """`serves`: transcriptions, translations, speech."""

    def __init__(
        self, name: str = "audio", serves: Sequence[str] = ("transcriptions",), *, speedup: float = 1.0
    ) -> None:
        super().__init__(name, speedup=speedup)
        self.serves = tuple(serves)

    def engines(self) -> list[Engine]:
        return []

    def describe(self) -> dict[str, Any]:
        return {"engine": "http", "serves": list(self.serves)}

    async def route(self, exchange: Exchange, faults: Mapping[str, Fault]) -> None:
        served = [_PATHS[s] for s in self.serves if s in _PATHS]
        if exchange.path in ("/", "/health") and exchange.method == "GET":
            await exchange.send_json(503 if "unhealthy" in faults else 200, {"status": "ok"})
        elif exchange.path not in served:
            await exchange.send_json(404, {"detail": "Not Found"})
        elif exchange.path == _PATHS["speech"]:
            await exchange.send(200, silence(0.2), "audio/wav")
        else:
            text = f"This is {self.name}, simulated, after {len(exchange.body)} bytes of audio."
            await exchange.send_json(200, {"text": text})


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
