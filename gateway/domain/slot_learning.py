"""How many sequences an engine bears, learned from what it shows of its work, where nobody declares its slots. Pure.

While all slots are in use and the engine takes more without queueing, they rise: to twice as many until they have
stopped once, then by an eighth. They fall to what runs when requests wait inside the engine in two looks in a row, or
when it preempts. An eighth that waits inside is no reason to fall, and one that waits is a reason not to rise: so they
stand still where the engine is just busy. Beyond a number at which it preempted, or at which the first token came late,
more are tried only after a pause.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Literal

from gateway.domain.progress import Sample

MOST = 256  # vLLM's own usual --max-num-seqs
STEP = 8  # they rise by an eighth
KV_MOST = 0.85  # share of the KV cache in use beyond which no more are tried
LATER_TIMES, LATER_LEAST = 2.0, 0.25  # late: so many times the seconds to the first token with fewer slots, and so many
FIRSTS = 4  # first tokens of which a mean is made
PAUSE_LEAST, PAUSE_MOST = 30.0, 600.0  # seconds

Why = Literal["assumed", "begun", "rising", "queues", "preempts", "memory", "later", "most"]

WORDS: Mapping[str, str] = {
    "declared": "as routes.yaml says",
    "reported": "as its server says",
    "assumed": "assumed: nothing tells how many it bears",
    "begun": "assumed at first; more are tried when all are in use",
    "rising": "learned: it takes so many without queueing",
    "queues": "learned: more have to wait inside the engine",
    "preempts": "learned: with more it preempts",
    "memory": "learned: with so many its KV cache is nearly full",
    "later": "learned: with more the first token comes later",
    "most": "learned: the most that are tried",
}


class LearnedSlots:
    """`base`: where they begin. `why`: the reason of their number, a key of WORDS. Times are those of the samples."""

    __slots__ = (
        "_before",
        "_doubles",
        "_first_seconds",
        "_firsts",
        "_most",
        "_pause",
        "_queued",
        "_until",
        "base",
        "slots",
        "why",
    )

    def __init__(self, base: int) -> None:
        self.begin(base)

    def begin(self, base: int) -> None:
        """As if nothing was learned yet."""
        self.base = self.slots = base
        self.why: Why = "assumed"
        self._doubles = True  # they have not stopped yet
        self._most: float = inf  # no more until the pause is over
        self._until = 0.0  # when it is
        self._pause = PAUSE_LEAST
        self._queued = False  # requests waited inside at the last look
        self._firsts = self._first_seconds = 0.0  # first tokens with as many slots as now, and their seconds
        self._before: float | None = None  # mean seconds to the first token before they rose last

    @property
    def eager(self) -> bool:
        """Is it likely that the next look finds that it bears more?"""
        return self._doubles and self.slots < MOST and self.why != "memory"

    def observe(self, before: Sample, after: Sample, *, full: bool) -> bool:
        """Take two samples in a row. `full`: all slots are in use. True = their number has changed."""
        known, running = self.slots, int(after.running)
        self._firsts += after.firsts - before.firsts
        self._first_seconds += after.first_seconds - before.first_seconds
        queued, self._queued = self._queued, after.waiting > max(1, running // STEP)
        if after.preemptions > before.preemptions:
            self._fall(min(known - 1, running), "preempts")
            self._rest(after)
        elif queued and self._queued and after.running <= before.running:
            self._fall(running, "queues")
        elif full and not after.waiting and after.moved_from(before):
            self._rise(after)
        elif self.why == "assumed":
            self.why = "begun"
        return self.slots != known

    def _fall(self, bears: int, why: Why) -> None:
        """To what it bears, and by at most a half with each look: prompts that queue are soon computed."""
        to = max(1, bears, self.slots // 2)
        if to < self.slots:
            self._doubles = False
            self._set(to, why)

    def _rise(self, sample: Sample) -> None:
        slots, mean = self.slots, self._first_seconds / self._firsts if self._firsts >= FIRSTS else None
        if slots >= MOST:
            self.why = "most"
        elif sample.kv >= KV_MOST:
            self.why = "memory"
        elif mean is not None and self._before is not None and mean > LATER_TIMES * self._before + LATER_LEAST:
            self.why, self._before, self._doubles = "later", mean, False
            self._rest(sample)
        else:
            to = min(MOST, slots + (slots if self._doubles else max(1, slots // STEP)))
            if to > self._most:
                if sample.at < self._until:
                    return
                self._pause, self._most = max(PAUSE_LEAST, self._pause / 2), to
                self._until = sample.at + self._pause
            self._before = self._before if mean is None else mean
            self._set(to, "rising")

    def _rest(self, sample: Sample) -> None:
        """Try no more for a while, each time longer."""
        self._pause = PAUSE_LEAST if self._most == inf else min(PAUSE_MOST, 4 * self._pause)
        self._most, self._until = self.slots, sample.at + self._pause

    def _set(self, slots: int, why: Why) -> None:
        self.slots, self.why = slots, why
        self._firsts = self._first_seconds = 0.0
