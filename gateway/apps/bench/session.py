"""The measuring itself, from the warm-up to the last block of the sweep."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from gateway.apps.bench.prompts import RequestSpec, Sizing, sizing
from gateway.apps.bench.results import Block, Results
from gateway.apps.bench.sample import RequestSample, take_sample
from gateway.apps.bench.stats import alternated
from gateway.apps.bench.targets import Target, UnmeasurableTarget

WARM_UP_WORDS = (64, 512)  # prompts of the warm-up, which also show how many tokens a word has
WARM_UP_TOKENS = 16
PAUSE = 0.1  # seconds between two measurements

OnStep = Callable[[str, int], None]  # which step begins now; how many steps there are


@dataclass(frozen=True, slots=True)
class Settings:
    """`lengths` of prompts and `tokens` of answers, in tokens. `requests` of each stream in a block, unless `duration`
    (seconds) says how long a block begins new ones. `limit`: seconds for one request."""

    lengths: tuple[int, ...]
    tokens: int
    concurrency: tuple[int, ...]
    repeats: int
    requests: int = 2
    duration: float | None = None
    limit: float = 900.0
    thinking: bool | None = None


def run_order(sizes: Sequence[int], targets: Sequence[str], repeats: int) -> Iterator[tuple[int, int, str]]:
    """(repeat, size, target) of all measurements: within a repeat every size (a prompt length, a concurrency) once at
    each target, one target right after the other."""
    for repeat in range(repeats):
        for place, size in enumerate(sizes):
            for target in alternated(targets, repeat + place):
                yield repeat, size, target


async def _nothing(_: Target) -> None:
    pass


class Session:
    """Measures one or two targets. The results grow with every measurement, so they are there when it is stopped.
    `settle`: awaited before each step, for requests that the step before may have left behind."""

    def __init__(
        self, settings: Settings, target: Target, results: Results, on_step: OnStep = lambda _what, _total: None
    ) -> None:
        self.settings, self.targets, self.results = settings, [target], results
        self.settle: Callable[[Target], Awaitable[None]] = _nothing
        self._on_step = on_step
        self._sizing = Sizing()
        self._forced = True

    async def warm_up(self, target: Target) -> list[RequestSample]:
        """Have the server compile its kernels and load its model, learn how many tokens a word has, and whether answers
        can be forced to a length. Raises UnmeasurableTarget where a request fails."""
        samples = [await self._warm_up_once(target, words) for words in WARM_UP_WORDS]
        counted = zip(WARM_UP_WORDS, samples, strict=True)
        if target is self.targets[0]:
            self._sizing = sizing([(words, sample.prompt) for words, sample in counted if sample.prompt is not None])
        longest = max((*self.settings.lengths, 0))
        samples.append(await self._warm_up_once(target, self._sizing.words(longest)))
        return samples

    async def _warm_up_once(self, target: Target, words: int) -> RequestSample:
        sample = await self._sample(target, words, WARM_UP_TOKENS)
        if not sample.ok and self._forced and (sample.error or "").startswith(("answered 400", "answered 422")):
            self._forced = False
            again = await self._sample(target, words, WARM_UP_TOKENS)
            self._forced = not again.ok
            if again.ok:
                self.results.notes.append(
                    f"{target.name}: ignore_eos and min_tokens are refused ({sample.error}): answers end where the "
                    "model ends"
                )
                sample = again
        self.results.warm_up.append((target.name, sample))
        if not sample.ok:
            raise UnmeasurableTarget(f"{target.name}: the warm-up failed: {sample.error}")
        return sample

    async def run(self) -> None:
        """Everything after the warm-up."""
        by_name = {target.name: target for target in self.targets}
        settings = self.settings
        total = (len(settings.lengths) + len(settings.concurrency)) * settings.repeats * len(by_name)
        for repeat, length, name in run_order(settings.lengths, list(by_name), settings.repeats):
            self._on_step(f"{length:,} tokens, {name}", total)
            await self._pause(by_name[name])
            sample = await self._sample(by_name[name], self._sizing.words(length), settings.tokens, seed=repeat)
            self.results.add_single(name, length, sample)
        for _, level, name in run_order(settings.concurrency, list(by_name), settings.repeats):
            self._on_step(f"{level} at a time, {name}", total)
            await self._pause(by_name[name])
            self.results.add_block(name, level, await self._block(by_name[name], level))

    async def _pause(self, target: Target) -> None:
        """Until the step before is over at the engine too. The pause follows the wait, so every step begins alike."""
        await self.settle(target)
        await asyncio.sleep(PAUSE)

    async def _block(self, target: Target, streams: int) -> Block:
        """`streams` clients, each of which sends its next request as soon as the last has ended."""
        settings = self.settings
        words = self._sizing.words(settings.lengths[0])
        until = None if settings.duration is None else time.perf_counter() + settings.duration
        samples: list[RequestSample] = []

        async def user() -> None:
            made = 0
            while made == 0 or (made < settings.requests if until is None else time.perf_counter() < until):
                made += 1
                samples.append(await self._sample(target, words, settings.tokens, seed=made))
                if not samples[-1].ok:
                    return  # with a failed request the load is not as intended: the block gives no figure

        async with asyncio.TaskGroup() as group:
            for _ in range(streams):
                group.create_task(user())
        return Block(tuple(sorted(samples, key=lambda sample: sample.started)))

    async def _sample(self, target: Target, words: int, tokens: int, seed: int = 0) -> RequestSample:
        spec = RequestSpec(words, tokens, secrets.token_hex(8), seed, self._forced, self.settings.thinking)
        try:
            send = target.prepare(spec)
        except UnmeasurableTarget as problem:
            now = time.perf_counter()
            return RequestSample(now, now, error=str(problem))
        return await take_sample(send, self.settings.limit)
