"""A whole benchmark: from what the user named to the targets, their measuring, and notes on the circumstances."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple

from gateway.apps.bench.results import Results
from gateway.apps.bench.session import OnStep, Session, Settings
from gateway.apps.bench.targets import GatewayTarget, Target, UnmeasurableTarget, UrlTarget, find_backend
from gateway.config.snapshot import Alias, Snapshot
from gateway.domain.engine_traits import traits_of


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
    """One run. `title`, `settings` and `results` are there whenever it is stopped."""

    def __init__(
        self,
        subject: BenchSubject,
        settings: Settings,
        snapshot: Snapshot | None,
        on_step: OnStep = lambda _what, _total: None,
    ) -> None:
        """`snapshot` None: of an alias only the gateway is known. Raises UnsuitableOptions."""
        self.subject, self.settings, self.snapshot = subject, settings, snapshot
        self.results = Results(settings.tokens)
        self.title = subject.alias or subject.url
        self._on_step = on_step
        self._alias: Alias | None = None
        if snapshot is not None and subject.alias is not None:
            self._alias = find_alias(snapshot, subject.alias)
            check_alias(snapshot, self._alias, subject, settings)

    async def run(self) -> None:
        """Measure everything. Raises UnmeasurableTarget, and UnsuitableOptions where prompts do not fit the window."""
        async with AsyncExitStack() as stack:
            alias = self.subject.alias
            session = await self._begin_url(stack) if alias is None else await self._begin_alias(stack, alias)
            await session.run()

    async def _begin_url(self, stack: AsyncExitStack) -> Session:
        target = UrlTarget("url", self.subject.url, self.subject.model, self.subject.key)
        stack.push_async_callback(target.close)
        await target.look()
        self.title = f"{target.model} at {target.url}"
        return await self._begin(target)

    async def _begin_alias(self, stack: AsyncExitStack, alias: str) -> Session:
        gateway = GatewayTarget(self.subject.url, alias, self.subject.key, cloud=self.subject.cloud)
        stack.push_async_callback(gateway.close)
        try:
            await gateway.look()
        except UnmeasurableTarget as problem:
            hint = "the gateway: `gateway serve`, or --gateway URL; a key: --key"
            raise UnmeasurableTarget(f"{problem} ({hint})") from None
        self.title = f"{alias} at {gateway.url}"
        session = await self._begin(gateway)
        await self._note_circumstances(gateway)
        if self.subject.direct:
            await self._add_direct(session, gateway, stack)

        async def settle(target: Target) -> None:
            if target is gateway and len(session.targets) > 1:
                await gateway.settle(self.results.expected)

        session.settle = settle
        return session

    async def _begin(self, target: UrlTarget) -> Session:
        """A session with this target, warmed up."""
        self._fit_lengths(target.window)
        session = Session(self.settings, target, self.results, self._on_step)
        samples = await session.warm_up(target)
        self.results.expected = samples[-1].backend
        return session

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

    async def _add_direct(self, session: Session, gateway: GatewayTarget, stack: AsyncExitStack) -> None:
        """Add the backend that answers as a target; where that is not possible, note why."""
        name = self.results.expected
        try:
            if self.snapshot is None or self._alias is None or name is None:
                raise UnmeasurableTarget("that takes the routes.yaml of the gateway (--config FILE)")
            target = await find_backend(self.snapshot, self._alias, name, gateway)
            stack.push_async_callback(target.close)
            await target.look()
            await session.warm_up(target)
            session.targets.append(target)
        except UnmeasurableTarget as problem:
            self.results.notes.append(f"not measured directly: {problem}")


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
