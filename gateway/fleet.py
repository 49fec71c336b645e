"""What is running: one `BackendState` per backend, with its health, slots, connections and learned facts.

The fleet outlives snapshots: a backend that means the same running thing (name, engine and url) keeps all of it.
Everything here is changed from the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gateway.compat.capabilities import Cached
from gateway.compat.observation import Observation
from gateway.config.snapshot import Backend, Snapshot
from gateway.health.machine import Health
from gateway.health.progress import Progress
from gateway.health.state import State, Transition
from gateway.routing.context import TokenRatio
from gateway.upstream.client import Client

log = logging.getLogger("gateway.fleet")

LEARNED_FOR = 3600.0  # seconds that a learned fact holds
COOLDOWN_MOST = 600.0
STILL_USED = 0.1  # seconds between two looks whether a backend that was taken out has come to its end

OpenClient = Callable[[Backend], Client | None]
OnTransition = Callable[[Transition], None]
OnGone = Callable[["BackendState"], None]
OnNews = Callable[["BackendState", str, Any], None]
Identity = tuple[str, str, str | None]  # name, engine, url: as Backend.identity

_NOTHING: Mapping[str, Any] = MappingProxyType({})  # facts are replaced, never changed in place


@dataclass(slots=True)
class BackendState:
    """One backend as it is now. Times are monotonic seconds, sizes tokens."""

    backend: Backend
    client: Client | None
    health: Health
    on_transition: OnTransition
    on_gone: OnGone = lambda _: None  # its port is closed
    on_stalled: OnGone = lambda _: None  # its engine stands still
    inflight: int = 0  # sequences under way (a request weighs n x prompts)
    prompt_tokens: int = 0  # of the requests under way, estimated
    last_event: float = 0.0  # when any stream there last said something
    refused_since: float = 0.0  # its port refuses connections; 0 = it does not
    cooldown_until: float = 0.0  # it said 429
    observed_model: str | None = None
    observed_context: int | None = None
    version: str | None = None
    ratio: TokenRatio = field(default_factory=TokenRatio)
    started: float | None = None  # when its engine was started, as that says it
    learned: Mapping[str, float] = field(
        default_factory=lambda: _NOTHING
    )  # what it cannot do -> until when that is believed
    observed: Mapping[str, Observation] = field(default_factory=lambda: _NOTHING)  # check -> what it saw
    known: Cached | None = None  # its capabilities, as last worked out (compat/capabilities.py)
    progress: Progress | None = None  # what its /metrics tell; None = it has none
    foreign: int = 0  # sequences that others run there, as its engine counts them
    # where other gateways front it, too
    on_news: OnNews | None = None  # is told what was found out: what kind of news, and about what
    elsewhere: int = 0  # sequences that they have under way there
    elsewhere_lately: int = 0  # the most of the last few seconds
    sharers: int = 1  # so many gateways share its slots, each on its own

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def model(self) -> str | None:
        """The name it is asked by."""
        return self.backend.model or self.observed_model

    @property
    def context(self) -> int | None:
        """Its window: the smaller of what is declared and what it says."""
        declared, observed = self.backend.context, self.observed_context
        return min(declared, observed) if declared and observed else declared or observed

    @property
    def slots(self) -> int:
        return self.backend.slots or 1_000_000

    @property
    def under_way(self) -> int:
        """Sequences there, of all gateways."""
        return self.inflight + self.elsewhere

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens per second, as learned."""
        return self.progress.prefill if self.progress is not None else None

    @property
    def decode_rate(self) -> float | None:
        """Answer tokens per second of one sequence, as learned."""
        return self.progress.decode if self.progress is not None else None

    @property
    def moved_at(self) -> float:
        """When its engine was last seen to move; 0 = it has no metrics."""
        return self.progress.moved_at if self.progress is not None else 0.0

    def lacks(self, capability: str, now: float) -> bool:
        """Was it learned that this backend cannot do `capability` ("tools", "images", "endpoint:chat", ...)?"""
        return self.learned.get(capability, 0.0) > now

    def learn_lack(self, capability: str, now: float) -> None:
        self.learned = MappingProxyType({**self.learned, capability: now + LEARNED_FOR})
        self._report("lack", capability)

    def unlearn(self, capability: str) -> None:
        """It was not so."""
        self.learned = MappingProxyType({name: until for name, until in self.learned.items() if name != capability})
        self._report("no lack", capability)

    def observe(self, found: Mapping[str, Observation]) -> None:
        """Take in what checks saw, beside what others saw before."""
        self.observed = MappingProxyType({**self.observed, **found})
        self._report("seen", found)

    def forget(self) -> None:
        """Drop all that was learned and seen: it may be another engine now, or one with other flags."""
        self.learned = self.observed = _NOTHING

    def start_over(self) -> None:
        """The same, for all gateways."""
        self.forget()
        self._report("another")

    def _report(self, news: str, what: Any = "") -> None:
        if self.on_news is not None:
            self.on_news(self, news, what)

    def cool_down(self, seconds: float, now: float) -> None:
        self.cooldown_until = max(self.cooldown_until, now + min(seconds, COOLDOWN_MOST))

    def saw_version(self, version: str | None) -> None:
        """What was learned of another version means nothing."""
        before, self.version = self.version, version
        if version != before:
            self.forget()
            self._report("known" if before is None else "another")

    def saw_start(self, started: float | None) -> None:
        """When its engine was started (Unix seconds; None = it does not say). Another time = a restart."""
        before = self.started
        if started is not None:
            self.started = started
        if started is not None and started != before:
            if before is None:
                self._report("known")
            else:
                self.start_over()

    def define(self, backend: Backend) -> None:
        """The same running thing, as routes.yaml describes it now."""
        if backend.model not in (None, self.model):  # nothing that is known of another model holds for this one
            self.forget()
            self.observed_model = self.observed_context = None
            self.ratio = TokenRatio()
        self.backend = backend
        self.health.settings = backend.health
        self.health.on_demand = backend.run == "on_demand"
        self.health.canaried = canaried(backend)
        if self.client is not None:
            self.client.connect_timeout = backend.timeouts.connect

    # -- health, with its events ----------------------------------------------------------------------------------

    def alive(self) -> None:
        self.refused_since = 0.0
        self._tell(self.health.alive(time.monotonic()))

    def dead(self, reason: str, *, refused: bool = False, answered: bool = False) -> None:
        """A health check failed; `refused` = there is nobody to connect to, so it is being started anew; `answered` =
        it says itself that it is not well."""
        now = time.monotonic()
        if refused:
            self.forget()
        if refused and not self.refused_since:
            self.refused_since = now
        self._tell(self.health.dead(reason, now, refused=refused, answered=answered))
        if refused and self.health.state in (State.DOWN, State.WARMING, State.PARKED):
            self.on_gone(self)

    def succeeded(self) -> None:
        health = self.health
        if health.fails or health.state is not State.READY:
            self._tell(health.succeeded(time.monotonic()))

    def failed(self, reason: str) -> None:
        self._tell(self.health.failed(reason, time.monotonic()))

    def misconfigured(self, reason: str) -> None:
        self._tell(self.health.misconfigured(reason, time.monotonic()), "misconfigured")

    def configured(self) -> None:
        self._tell(self.health.configured(time.monotonic()))

    def stalled(self, reason: str) -> None:
        """Its engine stands still: nothing that runs there will end."""
        self._tell(self.health.stalled(reason, time.monotonic()), "stalled")
        self.on_stalled(self)

    def load(self) -> None:
        """A look at how much runs there."""
        full = self.backend.slots is not None and self.under_way + self.foreign >= self.backend.slots
        self._tell(self.health.load(full, time.monotonic()))

    def proved(self, reason: str = "passed its canary") -> None:
        self._tell(self.health.proved(time.monotonic(), reason), "proved")

    def disproved(self, reason: str) -> None:
        self._tell(self.health.disproved(reason, time.monotonic()), "disproved")

    def doubted(self, reason: str) -> None:
        self._tell(self.health.doubted(reason, time.monotonic()), "doubted")

    def drain(self) -> None:
        self._tell(self.health.drain(time.monotonic()), "drained")

    def resume(self) -> None:
        self._tell(self.health.resume(time.monotonic()), "resumed")

    def _tell(self, transition: Transition | None, verdict: str = "") -> None:
        """`verdict`: what kind of proof moved it, where other gateways may rely on that."""
        if transition is None:
            return
        if transition.after is State.DOWN:
            self.forget()  # it may come back with other flags
        self.on_transition(transition)
        self._report(verdict or transition.after.value, transition)


class Fleet:
    """All backends of the current snapshot. `states` is replaced, never changed: a request may keep the one it began
    with."""

    def __init__(
        self,
        open_client: OpenClient,
        on_transition: OnTransition,
        on_gone: OnGone,
        on_stalled: OnGone = lambda _: None,
        on_closed: OnGone = lambda _: None,
    ) -> None:
        self.states: Mapping[str, BackendState] = {}
        self.retired: dict[Identity, BackendState] = {}  # taken out of routes.yaml, and not closed yet
        self._fresh: dict[Identity, BackendState] = {}
        self._closing: dict[Identity, asyncio.Task[None]] = {}  # of what is in `retired`
        self._tasks: set[asyncio.Task[None]] = set()  # the same, to their very end
        self._open_client = open_client
        self._on_transition = on_transition
        self._on_gone = on_gone
        self._on_stalled = on_stalled
        self._on_closed = on_closed
        self.on_news: OnNews | None = None  # of the backends that are made from now on
        self.sharers = 1  # likewise

    def __getitem__(self, name: str) -> BackendState:
        return self.states[name]

    def prepare(self, snapshot: Snapshot) -> list[BackendState]:
        """What `apply` of this snapshot would have to make, so that it can be looked at before it is used."""
        known = {state.backend.identity for state in self.states.values()}
        self._fresh = {
            backend.identity: self._new(backend)
            for backend in snapshot.backends.values()
            if backend.identity not in known and backend.identity not in self.retired
        }
        return list(self._fresh.values())

    def apply(self, snapshot: Snapshot) -> list[BackendState]:
        """Make the fleet that of `snapshot`, and return what is in it no longer: that ends what runs there, and is
        closed then. A backend that means the same running thing is kept; one that was taken out and has not ended is
        taken back, with what runs there."""
        before = {state.backend.identity: state for state in self.states.values()}
        self.states = {backend.name: self._state_of(backend, before) for backend in snapshot.backends.values()}
        self._fresh = {}
        for state in before.values():
            self._retire(state)
        return list(before.values())

    def _state_of(self, backend: Backend, before: dict[Identity, BackendState]) -> BackendState:
        identity = backend.identity
        if identity in before:
            state = before.pop(identity)
        elif identity in self.retired:
            state = self.retired.pop(identity)
            self._closing.pop(identity).cancel()
            state.health = _unknown(backend)  # nobody has looked at it meanwhile
        else:
            return self._fresh.pop(identity, None) or self._new(backend)
        state.define(backend)
        return state

    def _new(self, backend: Backend) -> BackendState:
        state = BackendState(
            backend,
            self._open_client(backend),
            _unknown(backend),
            self._on_transition,
            self._on_gone,
            self._on_stalled,
        )
        state.on_news, state.sharers = self.on_news, self.sharers
        return state

    def _retire(self, state: BackendState) -> None:
        identity = state.backend.identity
        state.health.remove(time.monotonic())
        self.retired[identity] = state
        task = self._closing[identity] = asyncio.create_task(self._close_at_the_end(state))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close_at_the_end(self, state: BackendState) -> None:
        while state.inflight:
            await asyncio.sleep(STILL_USED)
        identity = state.backend.identity
        del self.retired[identity], self._closing[identity]
        log.info("%s has ended what ran there: closed", state.name)
        await close_clients([state])
        self._on_closed(state)

    async def close(self) -> None:
        for task in self._closing.values():
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await close_clients([*self.states.values(), *self.retired.values(), *self._fresh.values()])


def _unknown(backend: Backend) -> Health:
    now = time.monotonic()
    health = Health(backend.name, backend.health, backend.run == "on_demand", since=now, born=now)
    health.canaried = canaried(backend)
    return health


def canaried(backend: Backend) -> bool:
    """Are tiny real requests put to it? Only where it is looked at anyway, and speaks chat."""
    return backend.health.canary is not None and backend.health.every is not None and backend.engine != "http"


async def close_clients(states: Iterable[BackendState]) -> None:
    for state in states:
        if state.client is not None:
            await state.client.close()
