"""A whole benchmark: from what the user named to the targets, their measuring from the warm-up to the last block of the
sweep, and notes on the circumstances."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import NamedTuple

from gateway.apps.bench.results import Block, Results
from gateway.apps.bench.sample import RequestSample, take_sample
from gateway.apps.bench.stats import alternated
from gateway.apps.bench.targets import (
    GatewayTarget,
    RequestSpec,
    Sizing,
    Target,
    UnmeasurableTarget,
    UrlTarget,
    find_backend,
    sizing,
)
from gateway.config.snapshot import Alias, Snapshot
from gateway.domain.engine_traits import traits_of

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


class UnsuitableOptions(Exception):
    """The options do not suit the server or alias they name; the text says why."""


class BenchSubject(NamedTuple):
    """The subject of a benchmark: an alias of the gateway at `url`, or (`alias` None) the server at `url`. `trim`:
    prompts that do not fit the window are left out, because the user did not ask for these lengths."""

    url: str
    alias: str | None = None
    model: str | None = None  # of a server; None: the first that it lists
    key: str | None = None
    direct: bool = True  # measure the backend behind the alias, too
    cloud: bool = False  # an alias may lead to a cloud backend, which costs money
    trim: bool = False


class Benchmark:
    """One run, of one target or two. `title`, `settings` and `results` are there whenever it is stopped."""

    def __init__(self, subject: BenchSubject, settings: Settings, snapshot: Snapshot | None) -> None:
        """`snapshot` None: of an alias only the gateway is known. Raises UnsuitableOptions."""
        self.subject, self.settings, self.snapshot = subject, settings, snapshot
        self.results = Results(settings.tokens)
        self.title = subject.alias or subject.url
        self._targets: list[Target] = []
        self._sizing = Sizing()
        self._forced = True  # answers can be forced to a length
        self._alias: Alias | None = None
        if snapshot is not None and subject.alias is not None:
            self._alias = find_alias(snapshot, subject.alias)
            check_alias(snapshot, self._alias, subject, settings)

    async def run(self, on_step: OnStep = lambda _what, _total: None) -> None:
        """Measure everything. Raises UnmeasurableTarget, and UnsuitableOptions where prompts do not fit the window."""
        async with AsyncExitStack() as stack:
            if self.subject.alias is None:
                await self._begin_url(stack)
            else:
                await self._begin_alias(stack, self.subject.alias)
            await self._measure(on_step)

    async def _begin_url(self, stack: AsyncExitStack) -> None:
        target = UrlTarget("url", self.subject.url, self.subject.model, self.subject.key)
        stack.push_async_callback(target.close)
        await target.look()
        self.title = f"{target.model} at {target.url}"
        await self._begin(target)

    async def _begin_alias(self, stack: AsyncExitStack, alias: str) -> None:
        gateway = GatewayTarget(self.subject.url, alias, self.subject.key, cloud=self.subject.cloud)
        stack.push_async_callback(gateway.close)
        try:
            await gateway.look()
        except UnmeasurableTarget as problem:
            hint = "the gateway: `gateway serve`, or --gateway URL; a key: --key"
            raise UnmeasurableTarget(f"{problem} ({hint})") from None
        self.title = f"{alias} at {gateway.url}"
        await self._begin(gateway)
        await self._note_circumstances(gateway)
        if self.subject.direct:
            await self._add_direct(gateway, stack)

    async def _begin(self, target: UrlTarget) -> None:
        """The first target, warmed up."""
        self._fit_lengths(target.window)
        self._targets.append(target)
        self.results.expected = (await self._warm_up(target)).backend

    def _fit_lengths(self, window: int | None) -> None:
        """Leave out the prompts that the window does not hold; where they were asked for, raise UnsuitableOptions."""
        settings = self.settings
        longest = longest_prompt(window, settings.tokens)
        kept = tuple(length for length in settings.lengths if longest is None or length <= longest)
        if kept == settings.lengths:
            return
        if not self.subject.trim or not kept:
            raise UnsuitableOptions(
                f"--prompt-tokens: {settings.lengths[-1]:,} and an answer of {settings.tokens:,} do not fit the window "
                f"of {window:,} tokens; at most {longest:,}"
            )
        left_out = ", ".join(f"{length:,}" for length in settings.lengths if length not in kept)
        self.results.notes.append(f"prompts of {left_out} tokens are left out: the window is {window:,}")
        self.settings = replace(settings, lengths=kept)

    async def _note_circumstances(self, gateway: GatewayTarget) -> None:
        """Note a fallback, requests of others, and a concurrency beyond the slots."""
        name, notes = self.results.expected, self.results.notes
        if name is None:
            return
        self.title += f", answered by {name}"
        if self._alias is not None and self._alias.steps and name not in self._alias.steps[0]:
            notes.append(f"{gateway.alias} is not served by its first step now: this is what {name} does")
        if others := await gateway.foreign_requests(name):
            notes.append(f"{name} has other requests under way ({others}): the figures hold for what they leave")
        backend = self.snapshot.backends.get(name) if self.snapshot is not None else None
        slots = backend.slots if backend is not None else None
        if slots is not None and any(level > slots for level in self.settings.concurrency):
            count = "1 slot" if slots == 1 else f"{slots} slots"
            notes.append(f"{name} has {count}: requests beyond that wait (`queued`: at the gateway)")

    async def _add_direct(self, gateway: GatewayTarget, stack: AsyncExitStack) -> None:
        """Add the backend that answers as a target; where that is not possible, note why."""
        name = self.results.expected
        try:
            if self.snapshot is None or self._alias is None or name is None:
                raise UnmeasurableTarget("that takes the routes.yaml of the gateway (--config FILE)")
            target = await find_backend(self.snapshot, self._alias, name, gateway)
            stack.push_async_callback(target.close)
            await target.look()
            await self._warm_up(target)
            self._targets.append(target)
        except UnmeasurableTarget as problem:
            self.results.notes.append(f"not measured directly: {problem}")

    # -- measuring ------------------------------------------------------------------------------------------------

    async def _warm_up(self, target: Target) -> RequestSample:
        """Have the server compile its kernels and load its model, learn how many tokens a word has, and whether answers
        can be forced to a length. Returns the last sample. Raises UnmeasurableTarget where a request fails."""
        samples = [await self._warm_up_once(target, words) for words in WARM_UP_WORDS]
        counted = zip(WARM_UP_WORDS, samples, strict=True)
        if target is self._targets[0]:
            self._sizing = sizing([(words, sample.prompt) for words, sample in counted if sample.prompt is not None])
        return await self._warm_up_once(target, self._sizing.words(max((*self.settings.lengths, 0))))

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

    async def _measure(self, on_step: OnStep) -> None:
        """Everything after the warm-up."""
        by_name = {target.name: target for target in self._targets}
        settings = self.settings
        total = (len(settings.lengths) + len(settings.concurrency)) * settings.repeats * len(by_name)
        for repeat, length, name in run_order(settings.lengths, list(by_name), settings.repeats):
            on_step(f"{length:,} tokens, {name}", total)
            await self._pause(by_name[name])
            sample = await self._sample(by_name[name], self._sizing.words(length), settings.tokens, seed=repeat)
            self.results.single[name, length].append(sample)
        for _, level, name in run_order(settings.concurrency, list(by_name), settings.repeats):
            on_step(f"{level} at a time, {name}", total)
            await self._pause(by_name[name])
            self.results.sweep[name, level].append(await self._block(by_name[name], level))

    async def _pause(self, target: Target) -> None:
        """Until the step before is over at the engine too. The pause follows the wait, so every step begins alike."""
        if isinstance(target, GatewayTarget) and len(self._targets) > 1:
            await target.settle(self.results.expected)
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


# -- what may be measured ---------------------------------------------------------------------------------------------


def find_alias(snapshot: Snapshot, name: str) -> Alias:
    """The alias of this name. Raises UnsuitableOptions where there is none."""
    alias = snapshot.resolve(name)
    if alias is None:
        close = get_close_matches(name, snapshot.aliases, n=1)
        hint = f"Did you mean '{close[0]}'?" if close else f"There are: {', '.join(snapshot.aliases)}."
        raise UnsuitableOptions(f"there is no alias '{name}'. {hint}")
    return alias


def check_alias(snapshot: Snapshot, alias: Alias, subject: BenchSubject, settings: Settings) -> None:
    """Raises UnsuitableOptions where measuring the alias would mislead or cost money."""
    name = subject.alias
    members = [snapshot.backends[member] for member in (alias.steps[0] if alias.steps else ())]
    if not members or not any(traits_of(backend).chats for backend in members):
        raise UnsuitableOptions(f"'{name}' does not chat: only what answers chats can be measured")
    if all(backend.cloud for backend in members) and not subject.cloud:
        raise UnsuitableOptions(f"'{name}' goes to a cloud, which costs money: say --cloud if that is meant")
    least = alias.min_max_tokens
    if least is not None and least > settings.tokens:
        raise UnsuitableOptions(
            f"'{name}' raises every answer to {least:,} tokens (min_max_tokens): measure it with --tokens {least}, or "
            "take another alias of the same backend"
        )


def longest_prompt(window: int | None, tokens: int) -> int | None:
    """The longest prompt that surely leaves room for the answer: lengths are met within a few percent. None: any."""
    return None if window is None else max(0, int((window - tokens) * 0.97))
