"""The record of one backend as it is now: its health, its load, and the parts that refer to it.

Changed only from the event loop's thread. What routes.yaml declares is `backend`; what the engine reports of itself is
`reported`; what was learned beside that is `facts`; what moves `health` is `evidence`; what other gateways do there is
`shared`. Whoever wants to hear of changes subscribes to `observers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.config.snapshot import Backend
from gateway.domain.capabilities import Capabilities, Timeline, timeline_of
from gateway.domain.engine_traits import TRAITS
from gateway.domain.evidence import Evidence
from gateway.domain.facts import LearnedFacts
from gateway.domain.health_machine import Health
from gateway.domain.health_state import Transition
from gateway.domain.observed_flags import ObservedFlags, flag_drift
from gateway.domain.progress import Progress
from gateway.domain.token_ratio import TokenRatio
from gateway.domain.upstream import Client

OnTransition = Callable[[Transition], None]
OnBackend = Callable[["BackendState"], None]
OnNews = Callable[["BackendState", str, Any], None]


@dataclass(slots=True)
class Observers:
    """Who hears of what happens to the backends of a fleet: the one place to subscribe, by appending to a list.
    Observers are called in that order from the event loop's thread; they must not block, nor raise."""

    transitions: list[OnTransition] = field(default_factory=list)  # of health
    gone: list[OnBackend] = field(default_factory=list)  # its port is closed
    stalled: list[OnBackend] = field(default_factory=list)  # its engine stands still
    closed: list[OnBackend] = field(default_factory=list)  # taken out of routes.yaml, and what ran there has ended
    news: list[OnNews] = field(default_factory=list)  # (backend, kind, subject) that other gateways may rely on


class Reported(NamedTuple):
    """What an engine reports of itself: the name and the window (tokens) of its model, its version, when it was started
    (Unix seconds), and its flags. None = it does not report that."""

    model: str | None = None
    context: int | None = None
    version: str | None = None
    started: float | None = None
    flags: ObservedFlags | None = None


@dataclass(slots=True)
class SharedView:
    """How other gateways use the same backend. Sizes are sequences, which take a slot each."""

    elsewhere: int = 0  # under way through other gateways
    elsewhere_lately: int = 0  # the most of the last few seconds
    sharers: int = 1  # gateways that share the slots, each on its own
    others: tuple[int, ...] = ()  # slots that each of the others held when it was last heard of
    alone: int | None = None  # on our own: slots that we may use until what the others held expires; None = our share


@dataclass(slots=True)
class BackendState:
    """One backend as it is now. Times are monotonic seconds, sizes tokens."""

    backend: Backend
    client: Client | None
    health: Health
    observers: Observers = field(default_factory=Observers)
    reported: Reported = field(default_factory=Reported)
    facts: LearnedFacts = field(init=False)
    evidence: Evidence = field(init=False)
    shared: SharedView = field(default_factory=SharedView)
    ratio: TokenRatio = field(default_factory=TokenRatio)
    progress: Progress = field(default_factory=Progress)  # what its /metrics show
    inflight: int = 0  # sequences under way through this gateway (a request weighs n x prompts)
    prompt_tokens: int = 0  # of the requests under way, estimated
    foreign: int = 0  # sequences of strangers, as its engine counts them
    last_event: float = 0.0  # when any stream there last made progress
    cooldown_until: float = 0.0  # it answered 429
    flag_drift: tuple[str, ...] = ()  # where its flags differ from its launch block, in words
    _timeline: Timeline = field(init=False, repr=False)
    _window: int | None = field(init=False, repr=False)  # of what is declared and reported

    def __post_init__(self) -> None:
        self.facts = LearnedFacts(self.name, self._on_fact)
        self.evidence = Evidence(self)
        self._conclude()

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def model(self) -> str | None:
        """The model name that requests to it carry."""
        return self.backend.model or self.reported.model

    @property
    def slots(self) -> int:
        return self.backend.slots or 1_000_000

    @property
    def under_way(self) -> int:
        """Sequences there, of all gateways."""
        return self.inflight + self.shared.elsewhere

    @property
    def is_full(self) -> bool:
        """Are all declared slots taken, by whomever?"""
        return self.backend.slots is not None and self.under_way + self.foreign >= self.backend.slots

    def capabilities(self, now: float) -> Capabilities:
        """What it can do, as far as is known."""
        for until, able in self._timeline:
            if now < until:
                return able
        return self._timeline[-1][1]

    def window(self, now: float) -> int | None:
        """Its context window: the smallest of what is declared, what its engine reports, and what its refusals name."""
        refused = self.facts.refused_window
        if refused is None or now >= refused.until:
            return self._window
        return refused.tokens if self._window is None else min(self._window, refused.tokens)

    def without_key(self, answer: bytes) -> bytes:
        """An error of it that may be shown: a server may repeat the key that was sent to it."""
        key = self.backend.api_key
        return answer if key is None or not key.reveal() else answer.replace(key.reveal().encode(), b"***")

    # -- what it is -----------------------------------------------------------------------------------------------

    def define(self, backend: Backend) -> None:
        """The same running engine, as routes.yaml describes it now."""
        if backend.model not in (None, self.model):  # nothing that is known of another model holds for this one
            self.facts.forget()
            self.reported = self.reported._replace(model=None, context=None)
            self.ratio = TokenRatio()
        self.backend = backend
        self.health.settings = backend.health
        self.health.on_demand = backend.run == "on_demand"
        self.health.canaried = canaried(backend)
        if self.client is not None:
            self.client.connect_timeout = backend.timeouts.connect
        self.flag_drift = flag_drift(backend, self.reported.flags)
        self._conclude()

    def saw_model(self, model: str | None, context: int | None) -> None:
        """The model that it serves, and that model's window."""
        self.reported = self.reported._replace(model=model, context=context)
        self._conclude()

    def saw_version(self, version: str | None) -> None:
        """The version of its engine. What was learned of another version means nothing."""
        before = self.reported.version
        if version != before:
            self.reported = self.reported._replace(version=version)
            self.facts.forget()
            self._report("known" if before is None else "another")

    def saw_start(self, started: float | None) -> None:
        """When its engine was started. Another time = it was restarted; None = it does not report that."""
        before = self.reported.started
        if started is None or started == before:
            return
        self.reported = self.reported._replace(started=started)
        if before is None:
            self._report("known")
        else:
            self.start_over()

    def saw_flags(self, flags: ObservedFlags | None) -> None:
        """The flags that its engine runs with; None = it does not report them."""
        if flags != self.reported.flags:
            self.reported = self.reported._replace(flags=flags)
            self.flag_drift = flag_drift(self.backend, flags)

    def start_over(self) -> None:
        """Forget what was learned and seen, here and at all other gateways."""
        self.facts.forget()
        self._report("another")

    # -- what its parts report ------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop what was learned and seen: it may be another engine now, or have other flags."""
        self.facts.forget()

    def report_transition(self, transition: Transition, verdict: str, *, announce: bool = True) -> None:
        """`verdict`: the kind of proof behind a change of health; `announce`: other gateways hear of it."""
        for observer in self.observers.transitions:
            observer(transition)
        if announce:
            self._report(verdict or transition.after.value, transition)

    def report_gone(self) -> None:
        """Its port is closed."""
        for observer in self.observers.gone:
            observer(self)

    def report_stalled(self) -> None:
        """Its engine stands still."""
        for observer in self.observers.stalled:
            observer(self)

    def _on_fact(self, news: str, subject: Any) -> None:
        self._conclude()
        if news in ("lack", "no lack", "seen"):
            self._report(news, subject)

    def _report(self, news: str, subject: Any = "") -> None:
        for observer in self.observers.news:
            observer(self, news, subject)

    def _conclude(self) -> None:
        """Bring what follows from the facts up to date, so that whoever plans only has to read it."""
        backend, reported, facts = self.backend, self.reported, self.facts
        self._timeline = timeline_of(backend, self.model, reported.version, facts.lacks, facts.observed)
        declared, context = backend.context, reported.context
        self._window = min(declared, context) if declared and context else declared or context


def canaried(backend: Backend) -> bool:
    """Does it get canaries (tiny real requests)? Only where it is probed anyway, and speaks chat."""
    return backend.health.canary is not None and backend.health.every is not None and TRAITS[backend.engine].chats
