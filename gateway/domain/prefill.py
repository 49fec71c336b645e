"""The prompts that one backend still computes for this gateway, and how fast it has shown to compute them; and whose
turn it is to have one counted.

A prompt counts from its sending to the first sign of its answer. What the engine computes of it is an estimate (its
tokens without those that are probably cached), so the speed is learned slowly, and bounded. Times are monotonic
seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import exp

RATE_LEAST, RATE_MOST = 20.0, 200_000.0  # tokens per second: limits of what is learned
LEARN_FROM = 1024  # tokens that were computed meanwhile; fewer show mostly other costs
LEARN_BY = 0.3  # weight of one prompt
STEP_MOST = 2.0  # factor by which one prompt may differ from what is known
LATELY = 20.0  # seconds after which a third of what was computed still counts


class Prefill:
    """`tokens`: of the prompts that are computed or wait for it. `rate`: tokens per second; None until learned."""

    __slots__ = ("_at", "_prompts", "_tokens", "rate", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.rate: float | None = None
        self._tokens = self._prompts = 0.0  # of the last seconds, as they counted at `_at`
        self._at = 0.0

    def begin(self, tokens: int, now: float) -> PromptUnderWay:
        """A prompt of which so many tokens are to be computed is sent."""
        part = self._part(now)
        self._tokens, self._prompts, self._at = self._tokens * part + tokens, self._prompts * part + 1, now
        self.tokens += tokens
        return PromptUnderWay(self, tokens, now)

    def lately(self, now: float) -> float:
        """Tokens that it had to compute in the last seconds, older ones counting less."""
        return self._tokens * self._part(now)

    def prompts(self, now: float) -> float:
        """Prompts that were sent to it in the last seconds, older ones counting less."""
        return self._prompts * self._part(now)

    def _part(self, now: float) -> float:
        return exp((self._at - now) / LATELY) if self._prompts else 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        """So many tokens were computed in this time."""
        if tokens < LEARN_FROM or seconds <= 0:
            return
        seen = min(RATE_MOST, max(RATE_LEAST, tokens / seconds))
        if self.rate is not None:
            seen = min(self.rate * STEP_MOST, max(self.rate / STEP_MOST, seen))
            seen = self.rate + (seen - self.rate) * LEARN_BY
        self.rate = seen


class PromptUnderWay:
    """One prompt that a backend computes."""

    __slots__ = ("_prefill", "_since", "_tokens", "_work")

    def __init__(self, prefill: Prefill, tokens: int, now: float) -> None:
        self._prefill: Prefill | None = prefill
        self._tokens = tokens
        self._work = prefill.tokens  # of this prompt, and of those before it
        self._since = now

    def computed(self, now: float) -> None:
        """The answer has begun. Calling it again does nothing."""
        if self._prefill is not None:
            self._prefill.learn(self._work, now - self._since)
            self.end()

    def end(self) -> None:
        """It is not computed any more."""
        prefill, self._prefill = self._prefill, None
        if prefill is not None:
            prefill.tokens -= self._tokens


class Turns:
    """`each`: how many turns a sender has at a time. Its others wait in order; nobody waits for another sender."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._senders: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}  # (turns, one None for each that uses them)

    def __len__(self) -> int:
        """Senders that have turns, or wait for one."""
        return len(self._senders)

    @asynccontextmanager
    async def turn(self, sender: str) -> AsyncIterator[None]:
        turns, users = self._senders.setdefault(sender, (asyncio.Semaphore(self._each), []))
        users.append(None)
        try:
            async with turns:
                yield
        finally:
            users.pop()
            if not users:
                del self._senders[sender]
