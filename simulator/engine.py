"""The simulated engine: slots, a FIFO queue, prefill in chunks, and one timer per step for everything that runs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from collections.abc import Sequence as List

from simulator.counters import Counters
from simulator.tokens import BYTES_PER_TOKEN

_BURST = 512  # steps applied per wake-up when the simulated engine is faster than the event loop
_LAG = 0.05  # seconds of delay beyond which lost time is not made up
POOL_FULL = "pool_full"  # the end of a sequence that has no memory left
_BLOCK = 64  # bytes of prompt per block of the prefix cache: 16 tokens


class EngineDied(Exception):
    """The engine has died: requests in flight produce nothing more."""


class PoolFull(EngineDied):
    """The running sequences have filled the memory that they share: they have all been ended."""


class Sequence:
    """One running answer. Its tokens are planned; the engine decides when each is produced."""

    __slots__ = (
        "arrived",
        "cached",
        "engine",
        "event",
        "finish",
        "first_at",
        "frozen",
        "hold_at",
        "kv",
        "last_at",
        "made",
        "max_tokens",
        "outcome",
        "prompt",
        "scheduled_at",
        "step_prompt",
        "todo",
        "tokens",
    )

    def __init__(
        self,
        engine: Engine,
        prompt: int,
        tokens: List[str],
        outcome: str,
        event: asyncio.Event,
        cached: int = 0,
        max_tokens: int = 0,
    ) -> None:
        self.engine = engine
        self.prompt = prompt  # tokens
        self.cached = cached  # prompt tokens found in the prefix cache
        self.todo = max(1, prompt - cached)  # prompt tokens that are still to be computed
        self.tokens = tokens
        self.outcome = outcome  # the finish reason after all tokens
        self.max_tokens = max_tokens
        self.made = 0  # tokens produced
        self.step_prompt = 0  # prompt tokens in the running step
        self.kv = 0
        self.finish: str | None = None
        self.frozen = False
        self.hold_at: int | None = None  # freeze after so many tokens
        self.event = event  # set at every progress; the sequences of one request share it
        self.arrived = engine.now()
        self.scheduled_at = self.first_at = self.last_at = 0.0

    @property
    def started(self) -> bool:
        """It has left the queue."""
        return self.scheduled_at > 0 or self.finish is not None


class Engine:
    """`prefill` and `decode` in tokens per second; `decode` is one stream's speed, each further stream stretches a
    step by `crowding` of it. `chunk` is `--max-num-batched-tokens`. `speedup` = simulated seconds per real one.
    `pool`: tokens that all sequences share (llama-server); None = each slot has memory for a whole window.
    `cache_tokens`: of the prefix cache, whose oldest blocks are dropped; None = a window for each slot."""

    def __init__(
        self,
        slots: int,
        prefill: float,
        decode: float,
        *,
        context: int,
        chunk: int = 2048,
        crowding: float = 0.0,
        speedup: float = 1.0,
        queue_limit: int | None = None,
        prefix_cache: bool = False,
        spec_tokens: int = 0,
        pool: int | None = None,
        cache_tokens: int | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.pool = pool
        self.slots, self.prefill, self.decode = slots, prefill, decode
        self.context, self.chunk, self.crowding, self.speedup = context, chunk, crowding, speedup
        self.queue_limit, self.prefix_cache, self.spec_tokens = queue_limit, prefix_cache, spec_tokens
        self.counters = Counters(spec_tokens)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.hung = self.dead = False
        self.sleep_level: int | None = None  # None = awake
        self._on_change = on_change
        self.cache_tokens = context * slots if cache_tokens is None else cache_tokens
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._ends = 0.0  # loop time at which the running step ends
        self._spec_phase = 0

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def kv_usage(self) -> float:
        """0..1 of the KV cache: `slots` full windows are all of it."""
        return min(1.0, sum(s.kv for s in self.running) / (self.context * self.slots))

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def full(self, more: int = 1) -> bool:
        """True when a queue limit is set and `more` sequences would not fit."""
        free = self.slots - len(self.running) - len(self.waiting)
        return self.queue_limit is not None and more - max(0, free) > 0 and len(self.waiting) + more > self.queue_limit

    def submit(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        self._arm()
        self._on_change()

    def abort(self, sequence: Sequence, reason: str = "abort") -> None:
        """End a sequence now; its slot is free at once."""
        if sequence.finish is not None:
            return
        self._end(sequence, reason)
        if self._timer is not None and not any(self._in_step(s) for s in self.running):
            self._timer.cancel()
            self._timer = None
        self._arm()
        self._on_change()

    def abort_all(self, reason: str = "abort") -> None:
        for sequence in [*self.running, *self.waiting]:
            self.abort(sequence, reason)

    def hang(self) -> None:
        """Stop stepping: the counters stop, and requests in flight stay in flight."""
        self.hung = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def die(self) -> None:
        """Stop for good. Produced tokens can still be read; waiting for another one raises EngineDied."""
        self.hang()
        self.dead = True
        for sequence in (*self.running, *self.waiting):
            sequence.event.set()

    def resume(self) -> None:
        """Go on, as a new engine if it was dead."""
        self.hung, self.dead = self.sleep_level is not None, False
        for sequence in self.running:
            sequence.frozen, sequence.hold_at = False, None
        for sequence in self.waiting:
            sequence.hold_at = None
        self._arm()

    def sleep(self, level: int) -> None:
        """As vLLM with `mode=abort`: what is in flight is aborted, and later requests wait until it is awake."""
        self.abort_all()
        self.hang()
        self.sleep_level = level

    def wake_up(self) -> None:
        self.sleep_level = None
        self.resume()

    def cached_tokens(self, prompt: bytes, tokens: int) -> int:
        """How many of the prompt's tokens the prefix cache holds. Adds the prompt to the cache."""
        if not self.prefix_cache:
            return 0
        hits, key, missed, blocks = 0, 0, False, self._blocks
        for start in range(0, len(prompt) - _BLOCK + 1, _BLOCK):
            key = hash((key, prompt[start : start + _BLOCK]))
            missed = missed or key not in blocks
            hits += not missed
            blocks[key] = None
            blocks.move_to_end(key)
        while len(blocks) * _BLOCK > self.cache_tokens * BYTES_PER_TOKEN:
            blocks.popitem(last=False)
        cached = min(tokens - 1, hits * _BLOCK * tokens // max(1, len(prompt)))
        self.counters.prefix(tokens, cached)
        return cached

    def reset_counters(self) -> None:
        """Set the counters to zero, as after a restart."""
        self.counters = Counters(self.spec_tokens)
        self._blocks.clear()

    # --- steps ---

    def _in_step(self, sequence: Sequence) -> bool:
        return not sequence.frozen and (sequence.step_prompt > 0 or sequence.todo == 0)

    def _arm(self) -> None:
        if self._timer is not None or self.hung:
            return
        loop = asyncio.get_running_loop()
        duration = self._plan()
        if duration is None:
            return
        now = loop.time()
        base = self._ends if now - _LAG < self._ends <= now else now
        self._ends = base + duration
        self._timer = loop.call_at(self._ends, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self.now()
        for _ in range(_BURST):
            self._apply(self._ends)
            duration = self._plan()
            if duration is None:
                break
            self._ends += duration
            if self._ends > now:
                self._timer = asyncio.get_running_loop().call_at(self._ends, self._tick)
                break
        else:
            self._arm()
        self._on_change()

    def _plan(self) -> float | None:
        """Fill the next step. Its length in real seconds, or None when there is nothing to do."""
        while self.waiting and len(self.running) < self.slots:
            sequence = self.waiting.popleft()
            sequence.scheduled_at = self.now()
            sequence.kv = sequence.cached
            self.running.append(sequence)
            sequence.event.set()
        decoding = sum(1 for s in self.running if not s.frozen and s.todo == 0)
        budget = prompt = max(1, self.chunk - decoding)
        for sequence in self.running:
            sequence.step_prompt = 0 if sequence.frozen else min(sequence.todo, budget)
            sequence.kv += sequence.step_prompt
            budget -= sequence.step_prompt
        prompt -= budget
        if not decoding and not prompt:
            return None
        seconds = prompt / self.prefill
        if decoding:
            per_step = 1 + self.spec_tokens / 2
            seconds += per_step * (1 + self.crowding * (decoding - 1)) / self.decode
        return seconds / self.speedup

    def _apply(self, at: float) -> None:
        made = prompt = 0
        accepted = self._spec_phase % (self.spec_tokens + 1)
        self._spec_phase += 1
        for sequence in tuple(self.running):
            if not self._in_step(sequence):
                continue
            first = sequence.todo > 0
            sequence.todo -= sequence.step_prompt
            sequence.step_prompt = 0
            if sequence.todo:
                continue
            if sequence.hold_at == 0:  # the prompt is computed, but no token is ever produced
                sequence.todo, sequence.frozen = 1, True
                continue
            if first:
                prompt += sequence.prompt
                sequence.first_at = at
                self.counters.first_token(sequence, at)
                count = 1
            else:
                count = 1 + accepted
                self.counters.drafted(accepted)
            made += self._advance(sequence, count, at)
        if made or prompt:
            self.counters.step(prompt, made)
        if self.pool is not None and sum(s.kv for s in self.running) > self.pool:
            for sequence in tuple(self.running):
                self._end(sequence, "abort", at)
                sequence.finish = POOL_FULL

    def _advance(self, sequence: Sequence, count: int, at: float) -> int:
        end = len(sequence.tokens) if sequence.hold_at is None else min(len(sequence.tokens), sequence.hold_at)
        count = min(count, end - sequence.made)
        sequence.made += count
        sequence.kv += count
        if sequence.last_at:
            self.counters.inter_token.observe(at - sequence.last_at)
        sequence.last_at = at
        sequence.frozen = sequence.made == sequence.hold_at
        if sequence.made >= len(sequence.tokens) and not sequence.frozen:
            self._end(sequence, sequence.outcome, at)
        else:
            sequence.event.set()
        return count

    def _end(self, sequence: Sequence, reason: str, at: float | None = None) -> None:
        sequence.finish = reason
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.counters.ended(sequence, reason, self.now() if at is None else at)
        sequence.event.set()
