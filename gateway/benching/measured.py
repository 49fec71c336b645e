"""What one request showed, and what follows from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

CACHED_MOST = 0.05  # share of a prompt that may come out of the prefix cache before its prefill says nothing
PIECES_LEAST = 0.25  # pieces per token: with fewer, tokens came in heaps and their pace is not told


@dataclass(frozen=True, slots=True)
class Run:
    """One request. Times are seconds of one clock; None = it never came. Tokens are as the server counts them, the
    answer's with its thoughts; None = it did not say. `pieces`: events that held text. `error` None = it went well."""

    started: float
    ended: float
    first: float | None = None  # the first text, thoughts included
    last: float | None = None
    prompt: int | None = None
    completion: int | None = None
    reasoning: int | None = None
    cached: int | None = None
    pieces: int = 0
    finish: str | None = None
    backend: str | None = None  # as the gateway tells it
    queued: float | None = None  # seconds that it waited for a slot of the gateway
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def seconds(self) -> float:
        return self.ended - self.started

    @property
    def ttft(self) -> float | None:
        """Seconds until the first text."""
        return None if self.first is None else self.first - self.started

    @property
    def is_fresh(self) -> bool:
        """Was (nearly) all of its prompt computed for it?"""
        return not self.cached or not self.prompt or self.cached <= CACHED_MOST * self.prompt

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens per second until the first text: of short prompts mostly the way there and the first step."""
        ttft = self.ttft
        return self.prompt / ttft if self.prompt and ttft and self.is_fresh else None

    @property
    def is_steady(self) -> bool:
        """Did the text come piece by piece? Drafted tokens come several at a time; a parser may hold back much more."""
        return self.completion is not None and self.pieces >= max(2, PIECES_LEAST * self.completion)

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second after the first."""
        if self.completion is None or self.completion < 2 or self.first is None or self.last is None:
            return None
        return (self.completion - 1) / (self.last - self.first) if self.is_steady and self.last > self.first else None
