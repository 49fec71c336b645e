"""How long speech is, in seconds: by a WAV file's own head, or by what a server says. Untrusted: a value that cannot be
is 0."""

from __future__ import annotations

import struct
from math import isfinite
from typing import Any

from gateway.domain.usage import count_of

SECONDS_MOST = 7 * 86400.0


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


def said_seconds(answer: Any) -> float:
    """The length of the audio that a transcription reports: `usage.seconds` or `duration`."""
    if not isinstance(answer, dict):
        return 0.0
    usage = answer.get("usage")
    return _plausible(usage.get("seconds") if isinstance(usage, dict) else None) or _plausible(answer.get("duration"))


def said_tokens(answer: Any) -> dict[str, int] | None:
    """The tokens of a transcription by a model that counts them, under the names of a chat's; None = not reported."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return None
    counts = count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens"))
    return {"prompt_tokens": counts[0], "completion_tokens": counts[1]} if any(counts) else None


def _plausible(value: Any) -> float:
    try:
        seconds = float(value) if isinstance(value, int | float | str) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return seconds if isfinite(seconds) and 0 < seconds <= SECONDS_MOST else 0.0
