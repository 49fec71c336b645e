"""One backend as it is now: its health, slots, connections and what was learned of it.

Changed from the event loop's thread only. What it is declared to be is `backend`, from routes.yaml.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from gateway.config.snapshot import Backend
from gateway.domain.capabilities import Cached
from gateway.domain.engine_traits import TRAITS
from gateway.domain.health_machine import Health
from gateway.domain.health_state import State, Transition
from gateway.domain.observation import Observation
from gateway.domain.progress import Progress
from gateway.domain.token_ratio import TokenRatio
from gateway.domain.upstream import Client

log = logging.getLogger("gateway.backend")

LEARNED_FOR = 3600.0  # seconds that a learned fact holds
COOLDOWN_FIRST, COOLDOWN_MOST = 60.0, 600.0  # seconds
BODIES_TO_AGREE = 2  # so many different ones have to fail before a cloud is held to be down
BLAMED_MOST = 16  # that are remembered

ELSEWHERE = "another gateway"  # taught what this one was only told

OnTransition = Callable[[Transition], None]
OnGone = Callable[["BackendState"], None]
OnNews = Callable[["BackendState", str, Any], None]

_NOTHING: Mapping[str, Any] = MappingProxyType({})  # facts are replaced, never changed in place


class Source(NamedTuple):
    """The request that teaches something: its id, who sent it, and a digest of its prompt. `told_apart`: several
    clients have keys, so two prompts of one client are no two sources."""

    request: str
    sender: str = ""
    prompt: bytes = b""
    told_apart: bool = False

    def differs(self, other: Source) -> bool:
        return self.sender != other.sender or (not self.told_apart and self.prompt != other.prompt)


class Taught(NamedTuple):
    """Where a learned fact is from: the id of the request that taught it, and when (Unix seconds)."""

    request: str
    at: float


class Heard(NamedTuple):
    """What one request taught against what is known, until another one says the same."""

    value: object
    source: Source
    until: float  # monotonic seconds


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
    answered_at: float = 0.0  # when a request there last got its whole answer
    blamed_by: tuple[bytes, ...] = ()  # keys of the bodies that failed there since, where nothing else tells
    last_event: float = 0.0  # when any stream there last said something
    refused_since: float = 0.0  # its port refuses connections; 0 = it does not
    cooldown_until: float = 0.0  # it said 429
    paused_at: float = 0.0  # when it said so last
    observed_model: str | None = None
    observed_context: int | None = None
    version: str | None = None
    ratio: TokenRatio = field(default_factory=TokenRatio)
    started: float | None = None  # when its engine was started, as that says it
    learned: Mapping[str, float] = field(
        default_factory=lambda: _NOTHING
    )  # what it cannot do -> until when that is believed
    taught: Mapping[str, Taught] = field(default_factory=lambda: _NOTHING)  # learned fact -> where it is from
    heard: dict[str, Heard] = field(default_factory=dict)  # what waits for a second source
    refused_window: int | None = None  # that its refusals tell
    refused_window_until: float = 0.0
    observed: Mapping[str, Observation] = field(default_factory=lambda: _NOTHING)  # check -> what it saw
    known: Cached | None = None  # its capabilities, as last worked out (compat/capabilities.py)
    progress: Progress | None = None  # what its /metrics tell; None = it has none
    foreign: int = 0  # sequences that others run there, as its engine counts them
    # where other gateways front it, too
    on_news: OnNews | None = None  # is told what was found out: what kind of news, and about what
    elsewhere: int = 0  # sequences that they have under way there
    elsewhere_lately: int = 0  # the most of the last few seconds
    sharers: int = 1  # so many gateways share its slots, each on its own
    others: tuple[int, ...] = ()  # slots that each of the others held there when they were last heard of
    alone: int | None = None  # on our own: slots that we may use until what those held is over; None = our share

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
        window = min(declared, observed) if declared and observed else declared or observed
        if self.refused_window is None or time.monotonic() >= self.refused_window_until:
            return window
        return min(window or self.refused_window, self.refused_window)

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

    def learn_lack(self, capability: str, now: float, source: Source | None = None) -> None:
        self.take_lack(capability, now + LEARNED_FOR, source.request if source is not None else "")
        self._report("lack", capability)

    def take_lack(self, capability: str, until: float, request: str) -> None:
        """Believe it until then; `request`: the id of the one that taught it."""
        self.learned = MappingProxyType({**self.learned, capability: until})
        self._note_teacher(capability, request)

    def learn_window(self, window: int, now: float, source: Source) -> None:
        """A window that its refusals tell, for the same time."""
        self.refused_window, self.refused_window_until = window, now + LEARNED_FOR
        self._note_teacher("window", source.request)

    def confirmed(self, fact: str, value: object, source: Source, now: float) -> bool:
        """Has another source said the same? The first is remembered for as long as a fact is believed."""
        before = self.heard.get(fact)
        if before is None or before.value != value or before.until <= now:
            self.heard[fact] = Heard(value, source, now + LEARNED_FOR)
            return False
        if not source.differs(before.source):
            return False
        del self.heard[fact]
        return True

    def _note_teacher(self, fact: str, request: str) -> None:
        log.info("%s: learned %s from request %s", self.name, fact, request or "(none)")
        self.taught = MappingProxyType({**self.taught, fact: Taught(request, time.time())})

    def unlearn(self, capability: str) -> None:
        """It was not so."""
        self.heard.pop(capability, None)
        self.learned = MappingProxyType({name: until for name, until in self.learned.items() if name != capability})
        self._report("no lack", capability)

    def observe(self, found: Mapping[str, Observation]) -> None:
        """Take in what checks saw, beside what others saw before."""
        self.observed = MappingProxyType({**self.observed, **found})
        self._report("seen", found)

    def forget(self) -> None:
        """Drop all that was learned and seen: it may be another engine now, or one with other flags."""
        self.learned = self.observed = self.taught = _NOTHING
        self.heard.clear()
        self.refused_window = None

    def start_over(self) -> None:
        """The same, for all gateways."""
        self.forget()
        self._report("another")

    def _report(self, news: str, what: Any = "") -> None:
        if self.on_news is not None:
            self.on_news(self, news, what)

    def cool_down(self, seconds: float, now: float) -> None:
        """It asked for a pause. The first one may mean a single request (too large for a limit of its own), so it is
        short; one that asks again after it, and answered nobody in between, is taken at its word."""
        first = self.answered_at >= self.paused_at or now < self.cooldown_until
        self.paused_at = now
        most = COOLDOWN_FIRST if first else COOLDOWN_MOST
        self.cooldown_until = max(self.cooldown_until, now + min(seconds, most))

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

    def without_key(self, answer: bytes) -> bytes:
        """An error of it as it may be read: a server may repeat the key that we sent."""
        key = self.backend.api_key
        return answer if key is None or not key.reveal() else answer.replace(key.reveal().encode(), b"***")

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
        self.answered_at = time.monotonic()
        if self.blamed_by:
            self.blamed_by = ()
        if health.fails or health.state is not State.READY:
            self._tell(health.succeeded(time.monotonic()))

    def failed(self, reason: str, *, disputed: bool = False) -> None:
        """A request failed there; `disputed` = it may be to blame itself."""
        self._tell(self.health.failed(reason, time.monotonic(), disputed=disputed))

    def failed_by(self, body: bytes, reason: str) -> None:
        """The same of a cloud, which is asked no harmless requests: other bodies have to agree before it is down, and
        the same body again (told by its key) says nothing new."""
        if body in self.blamed_by:
            return
        self.blamed_by = (*self.blamed_by[-BLAMED_MOST:], body)
        self.failed(reason, disputed=len(self.blamed_by) < BODIES_TO_AGREE)

    def unanswered(self, reason: str) -> None:
        transition = self.health.unanswered(reason, time.monotonic())
        proof = transition is not None and transition.after is State.DOWN
        self._tell(transition, "disproved" if proof else "")

    def cleared(self) -> None:
        self._tell(self.health.cleared(time.monotonic()))

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


def canaried(backend: Backend) -> bool:
    """Are tiny real requests put to it? Only where it is looked at anyway, and speaks chat."""
    return backend.health.canary is not None and backend.health.every is not None and TRAITS[backend.engine].chats
