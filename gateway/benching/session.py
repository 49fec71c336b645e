"""A benchmark from the warm-up to the last block."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gateway.benching.course import turns
from gateway.benching.figures import Block
from gateway.benching.measured import Run
from gateway.benching.prompts import Ask, Sizing, sizing
from gateway.benching.results import Results
from gateway.benching.timing import timed
from gateway.benching.ways import NotThere, Way

WARM_WORDS = (64, 512)  # prompts of the warm-up, which also tell how many tokens a word has
WARM_TOKENS = 16
REST = 0.1  # seconds between two measurements

OnStep = Callable[[str], None]  # what begins now


@dataclass(frozen=True, slots=True)
class Settings:
    """`lengths` and `tokens` in tokens, of prompts and answers; `requests` of each stream in a block, unless
    `duration` (seconds) says how long a block begins new ones; `limit`: seconds for one request."""

    lengths: tuple[int, ...]
    tokens: int
    concurrency: tuple[int, ...]
    repeats: int
    requests: int = 2
    duration: float | None = None
    limit: float = 900.0
    thinking: bool | None = None

    def steps(self, ways: int) -> int:
        """How many times `on_step` will be called, the warm-up's left out."""
        return (len(self.lengths) + len(self.concurrency)) * self.repeats * ways


async def _nothing(_: Way) -> None:
    pass


class Session:
    """Measures one or two ways; the results grow as it goes on, so that they are there when it is stopped.
    `settle`: awaited before each step, for what the step before may have left behind."""

    def __init__(
        self,
        settings: Settings,
        ways: Sequence[Way],
        results: Results,
        on_step: OnStep = lambda _: None,
    ) -> None:
        self.settings, self.ways, self.results = settings, list(ways), results
        self.settle: Callable[[Way], Awaitable[None]] = _nothing
        self._on_step = on_step
        self._sizing = Sizing()
        self._forced = True

    async def warm_up(self, way: Way) -> list[Run]:
        """Compile what has to be compiled, load what has to be loaded; learn how long a word is, and whether answers
        can be made of a length. Raises NotThere when it does not answer as it should."""
        runs = [await self._warm_one(way, words) for words in WARM_WORDS]
        counted = zip(WARM_WORDS, runs, strict=True)
        if way is self.ways[0]:
            self._sizing = sizing([(words, run.prompt) for words, run in counted if run.prompt is not None])
        longest = max((*self.settings.lengths, 0))
        runs.append(await self._warm_one(way, self._sizing.words(longest)))
        return runs

    async def _warm_one(self, way: Way, words: int) -> Run:
        run = await self._run(way, words, WARM_TOKENS)
        if not run.ok and self._forced and (run.error or "").startswith(("answered 400", "answered 422")):
            self._forced = False
            again = await self._run(way, words, WARM_TOKENS)
            self._forced = not again.ok
            if again.ok:
                self.results.notes.append(
                    f"{way.name}: ignore_eos and min_tokens are refused ({run.error}): answers end where the model ends"
                )
                run = again
        self.results.warm_up.append((way.name, run))
        if not run.ok:
            raise NotThere(f"{way.name}: the warm-up failed: {run.error}")
        return run

    async def run(self) -> None:
        """Everything after the warm-up."""
        by_name = {way.name: way for way in self.ways}
        names = list(by_name)
        settings = self.settings
        for repeat, length, name in turns(settings.lengths, names, settings.repeats):
            self._on_step(f"{length:,} tokens, {name}")
            await self._rest(by_name[name])
            run = await self._run(by_name[name], self._sizing.words(length), settings.tokens, seed=repeat)
            self.results.add_single(name, length, run)
        for _, level, name in turns(settings.concurrency, names, settings.repeats):
            self._on_step(f"{level} at a time, {name}")
            await self._rest(by_name[name])
            self.results.add_block(name, level, await self._block(by_name[name], level))

    async def _rest(self, way: Way) -> None:
        """What was measured before is over, at the engine too, and however long that was made sure of."""
        await self.settle(way)
        await asyncio.sleep(REST)

    async def _block(self, way: Way, streams: int) -> Block:
        """`streams` users, each with its next request as soon as the last has ended."""
        settings = self.settings
        words = self._sizing.words(settings.lengths[0])
        until = None if settings.duration is None else time.perf_counter() + settings.duration
        runs: list[Run] = []

        async def user() -> None:
            made = 0
            while made == 0 or (made < settings.requests if until is None else time.perf_counter() < until):
                made += 1
                runs.append(await self._run(way, words, settings.tokens, seed=made))
                if not runs[-1].ok:
                    return  # the load is not what it should be any more: the block counts for nothing

        async with asyncio.TaskGroup() as group:
            for _ in range(streams):
                group.create_task(user())
        return Block(tuple(sorted(runs, key=lambda run: run.started)))

    async def _run(self, way: Way, words: int, tokens: int, seed: int = 0) -> Run:
        ask = Ask(words, tokens, secrets.token_hex(8), seed, self._forced, self.settings.thinking)
        try:
            send = way.prepare(ask)
        except NotThere as problem:
            now = time.perf_counter()
            return Run(now, now, error=str(problem))
        return await timed(send, self.settings.limit)
