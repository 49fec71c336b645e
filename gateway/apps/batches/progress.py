"""How quickly a batch goes on. Pure: times (seconds of any clock) are passed in."""

from __future__ import annotations

from collections import deque

LONGEST = 60.0  # seconds that a rate looks back
APART = 1.0  # seconds between two samples


class Progress:
    """Samples of how many lines are done, by all gateways together."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, done: int, now: float) -> None:
        """So many lines are done by now."""
        samples = self._samples
        if not samples or now - samples[-1][0] >= APART:
            samples.append((now, done))
        while len(samples) > 1 and samples[1][0] <= now - LONGEST:
            samples.popleft()

    def rate(self, done: int, now: float) -> float | None:
        """Lines per second over the last minute; None = not known yet."""
        since = next(((at, before) for at, before in self._samples if at > now - LONGEST), None)
        if since is None or now - since[0] < APART:
            return None
        return (done - since[1]) / (now - since[0])
