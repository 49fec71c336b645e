"""Forms as clients send them, and speech servers that answer as a test wants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from simulator.audio import form_fields, silence
from tests.scripted import RawReply, ScriptedBackend, Turn, json_answer, raw_post, scripted
from tests.support import RunningGateway, running_gateway

TRANSCRIPTIONS, SPEECH = "/v1/audio/transcriptions", "/v1/audio/speech"
BOUNDARY = "xxBOUNDARYxx"
TYPE = f"content-type: multipart/form-data; boundary={BOUNDARY}"
WAV = silence(0.5)  # 16,044 bytes
LARGE = silence(40.0)  # 1.28 MB: goes to the disk
ROUTES = """
server: {{max_body: 4MiB}}
defaults: {{timeouts: {{first_byte: 10s, idle: 10s}}, queue: {{max_wait: 0s}}, health: {{fail_after: 10000}}}}
backends:
  a: {{engine: http, url: "{a}", serves: [transcriptions, translations, speech], model: own-name}}
  b: {{engine: http, url: "{b}", serves: [transcriptions, translations, speech]}}
aliases:
  pair: [a, b]
{more}
"""


def part(name: str, value: bytes, filename: str | None = None, kind: str = "") -> bytes:
    head = f'content-disposition: form-data; name="{name}"' + (f'; filename="{filename}"' if filename else "")
    return f"--{BOUNDARY}\r\n{head}\r\n{kind}\r\n".encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def usual(file: bytes = WAV, model: bytes = b"pair") -> bytes:
    """As the openai SDK sends it, the model first."""
    return form(part("model", model), part("file", file, "speech.wav", "content-type: audio/wav\r\n"))


async def heard(turn: Turn) -> None:
    """A transcription that says what came."""
    await turn.send(json_answer({"text": f"{len(received(turn).get('file', b''))} bytes", "duration": 2.5}))


async def fails(turn: Turn) -> None:
    await turn.send(json_answer({"detail": "out of memory"}, "500 Internal Server Error"))


def received(turn: Turn) -> dict[str, bytes]:
    return form_fields(turn.headers["content-type"], turn.body)


@dataclass
class House:
    gateway: RunningGateway
    a: ScriptedBackend
    b: ScriptedBackend

    async def transcribe(self, body: bytes, *headers: str, kind: str = TYPE) -> RawReply:
        return await raw_post(self.gateway.url, body, TRANSCRIPTIONS, [kind, *headers])

    async def speak(self, **body: Any) -> RawReply:
        asked = {"model": "pair", "input": "hello", "voice": "alloy", **body}
        return await raw_post(self.gateway.url, asked, SPEECH, ["content-type: application/json"])

    def memory(self) -> int:
        return self.gateway.gateway.memory.used

    def seconds(self, endpoint: str, backend: str = "a") -> float:
        labels = {"client": "open", "alias": "pair", "backend": backend, "endpoint": endpoint}
        return self.gateway.metric("gateway_audio_seconds_total", **labels)


@asynccontextmanager
async def house(more: str = "", routes: str = ROUTES, ready: Sequence[str] = ("a", "b")) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        a, b = [await stack.enter_async_context(scripted(heard)) for _ in "ab"]
        gateway = await stack.enter_async_context(running_gateway(routes.format(a=a.url, b=b.url, more=more)))
        await gateway.until_ready(*ready)
        yield House(gateway, a, b)
