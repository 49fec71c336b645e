"""How long speech is, in seconds: by the head of a WAV or MP3 file, or by what a server says. Untrusted: a value that
cannot be is 0."""

from __future__ import annotations

import struct
from math import isfinite
from typing import Any

from gateway.domain.body import value_of
from gateway.domain.tokens import count_of
from gateway.domain.upstream import ProtocolFailure
from gateway.transport.sse import Framer, data_of

SECONDS_MOST = 7 * 86400.0
# Layer III of MP3, by the version bits of a frame: 3 = MPEG 1, 2 = MPEG 2, 0 = MPEG 2.5.
_MP3_HERTZ = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_MP3_KBITS = {
    3: (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}


def file_seconds(beginning: bytes, size: int) -> float:
    """The length of a file of `size` bytes by its first bytes; 0 = its format is another one, or does not say."""
    return wav_seconds(beginning, size) or mp3_seconds(beginning, size)


def wav_seconds(beginning: bytes, size: int) -> float:
    """The length of a WAV file of `size` bytes by its first bytes; 0 = it is none, or does not say."""
    if beginning[:4] != b"RIFF" or beginning[8:12] != b"WAVE":
        return 0.0
    at, rate = 12, 0
    while at + 8 <= len(beginning):
        name, length = struct.unpack_from("<4sI", beginning, at)
        if name == b"fmt " and at + 24 <= len(beginning):
            rate = struct.unpack_from("<I", beginning, at + 16)[0]
        elif name == b"data":
            data = max(0, size - at - 8)  # a stream says 0 or the most that fits: the bytes that came count
            return _plausible(min(length or data, data) / rate) if rate else 0.0
        at += 8 + length + length % 2
    return 0.0


def mp3_seconds(beginning: bytes, size: int) -> float:
    """The length of an MP3 file of `size` bytes: by the number of its frames where the first one tells it, else by the
    bit rate of the first one. 0 = it is none."""
    at = 0
    if beginning[:3] == b"ID3" and len(beginning) >= 10:
        a, b, c, d = beginning[6:10]  # 7 bits each
        at = 10 + (a << 21 | b << 14 | c << 7 | d)
    if len(beginning) < at + 4 or beginning[at] != 0xFF or beginning[at + 1] & 0xE6 != 0xE2:
        return 0.0
    version, bit_rate, rate = beginning[at + 1] >> 3 & 3, beginning[at + 2] >> 4, beginning[at + 2] >> 2 & 3
    if version not in _MP3_HERTZ or bit_rate in (0, 15) or rate == 3:
        return 0.0
    hertz, mono = _MP3_HERTZ[version][rate], beginning[at + 3] >> 6 == 3
    side = (17 if mono else 32) if version == 3 else (9 if mono else 17)  # bytes of the frame before its first sound
    counts = beginning[at + 4 + side : at + 16 + side]
    if len(counts) == 12 and counts[:4] in (b"Xing", b"Info") and counts[7] & 1:
        return _plausible(int.from_bytes(counts[8:]) * (1152 if version == 3 else 576) / hertz)
    return _plausible((size - at) / (125 * _MP3_KBITS[3 if version == 3 else 2][bit_rate - 1]))


def said_seconds(answer: Any) -> float:
    """The length of the audio that a transcription reports: `usage.seconds` or `duration`."""
    if not isinstance(answer, dict):
        return 0.0
    usage = answer.get("usage")
    return _plausible(usage.get("seconds") if isinstance(usage, dict) else None) or _plausible(answer.get("duration"))


def said_tokens(answer: Any) -> dict[str, int] | None:
    """The tokens of a transcription by a model that counts them, under the names of a chat's (vLLM's streams use these
    themselves); None = not reported."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return None
    prompt = count_of(usage.get("input_tokens")) or count_of(usage.get("prompt_tokens"))
    completion = count_of(usage.get("output_tokens")) or count_of(usage.get("completion_tokens"))
    return {"prompt_tokens": prompt, "completion_tokens": completion} if prompt or completion else None


def is_error(answer: Any) -> bool:
    """Is this answer, or event, an error instead of one?"""
    return isinstance(answer, dict) and bool(answer.get("error")) and "text" not in answer


def is_page(answer: bytes) -> bool:
    """Is this a page for browsers: of a proxy, of a login, of another program on this port? The content-type does not
    tell: small servers send plain text as text/html."""
    return answer[:1000].lstrip().lower().startswith((b"<!doctype html", b"<html"))


class EventReader:
    """Reads what the events of a stream report as they pass: `seconds` and `tokens`, each of the last event with it.
    `begun`: an event has come, or none can be told. `error`: an event was an error, as servers write it when they fail
    after they have sent the status."""

    def __init__(self) -> None:
        self.begun = False
        self.error = False
        self.seconds = 0.0
        self.tokens: dict[str, int] | None = None
        self._framer: Framer | None = Framer()

    def read(self, data: bytes) -> None:
        if self._framer is None:
            return
        try:
            events = self._framer.feed(data)
        except ProtocolFailure:  # an event that is too long: it is passed on, and nothing more is read
            self._framer = None
            self.begun = True
            return
        for event in events:
            self._read_event(event)

    def finish(self) -> None:
        """The stream has ended."""
        for event in self._framer.finish() if self._framer is not None else ():
            self._read_event(event)

    def _read_event(self, event: bytes) -> None:
        self.begun = True
        if b'"usage"' not in event and b'"error"' not in event:
            return
        said = value_of(data_of(event))
        self.error = self.error or is_error(said)
        self.seconds = said_seconds(said) or self.seconds
        self.tokens = said_tokens(said) or self.tokens


def _plausible(value: Any) -> float:
    try:
        seconds = float(value) if isinstance(value, int | float | str) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return seconds if isfinite(seconds) and 0 < seconds <= SECONDS_MOST else 0.0
