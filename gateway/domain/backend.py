"""The record of one backend as it is now: its health, its load, and the parts that refer to it.

Changed only from the event loop's thread. `backend` is what routes.yaml declares, `reported` what the engine reports of
itself, `facts` what was learned from requests and checks. `evidence` changes `health`. `shared` is the use of the
backend by other gateways. Observers of changes subscribe to `observers`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gateway.config.snapshot import Backend
from gateway.domain.capabilities import Capabilities, Timeline, timeline_of
from gateway.domain.engine_traits import (
    RESPONSES_LACK,
    EngineTraits,
    OwnResponses,
    asked_there,
    canaried,
    declared_server,
    serving,
)
from gateway.domain.evidence import Evidence
from gateway.domain.facts import EngineReport, HeldModel, LearnedFacts, ModelLoad, SharedView
from gateway.domain.forms import Forms, learned_forms
from gateway.domain.health_machine import Health
from gateway.domain.health_state import SERVING, Transition
from gateway.domain.observed_flags import ObservedFlags, flag_drift
from gateway.domain.prefill import Prefill, Turns
from gateway.domain.progress import Progress, Sample
from gateway.domain.recognition import row_of
from gateway.domain.slot_learning import MOST, LearnedSlots
from gateway.domain.tokens import TokenRatio
from gateway.domain.upstream import UpstreamClient
from gateway.launch.families import family_of

COUNTS_EACH = 2  # prompts that a server counts for one client at a time

OnTransition = Callable[[Transition], None]
OnBackend = Callable[["BackendState"], None]
OnNews = Callable[["BackendState", str, Any], None]


@dataclass(slots=True)
class Observers:
    """The observers of all backends of a fleet. To subscribe, append a function to a list. Observers are called in the
    order of the list, from the event loop's thread; they must not block, nor raise."""

    transitions: list[OnTransition] = field(default_factory=list)  # of health
    gone: list[OnBackend] = field(default_factory=list)  # its port is closed
    stalled: list[OnBackend] = field(default_factory=list)  # its engine makes no progress
    mute: list[OnBackend] = field(default_factory=list)  # it takes connections and answers nothing new
    silent: list[OnBackend] = field(default_factory=list)  # its health check got no answer, and nothing came from it
    restarted: list[OnBackend] = field(default_factory=list)  # another engine answers, or the same one begun anew
    closed: list[OnBackend] = field(default_factory=list)  # taken out of routes.yaml, and what ran there has ended
    news: list[OnNews] = field(default_factory=list)  # (backend, kind, subject) to report to other gateways


@dataclass(slots=True)
class BackendState:
    """One backend as it is now. Times are monotonic seconds, sizes tokens."""

    backend: Backend
    client: UpstreamClient | None
    health: Health
    observers: Observers = field(default_factory=Observers)
    reported: EngineReport = field(default_factory=EngineReport)
    facts: LearnedFacts = field(init=False)
    evidence: Evidence = field(init=False)
    shared: SharedView = field(default_factory=SharedView)
    ratio: TokenRatio = field(default_factory=TokenRatio)
    progress: Progress = field(default_factory=Progress)  # what its /metrics show
    prefill: Prefill = field(default_factory=Prefill)  # prompts that it computes
    counting: Turns = field(default_factory=lambda: Turns(COUNTS_EACH))  # for prompts that its server counts
    inflight: int = 0  # sequences under way through this gateway (a request weighs n x prompts)
    prompt_tokens: int = 0  # of the requests under way, estimated
    reserved_tokens: int = 0  # of `pool`, by the requests under way
    foreign: int = 0  # sequences that did not come through a gateway, by the engine's own count
    last_event: float = 0.0  # when any stream from it last made progress
    disobeys: bool = False  # it ignored `tool_choice` when it last had to call a tool
    cooldown_until: float = 0.0  # it answered 429
    held: HeldModel | None = None  # its model in its memory; None = it is not there, or the server does not tell
    load: ModelLoad | None = None  # of its model, under way
    load_seconds: float | None = None  # that the last load took; None = none was seen
    unloaded_at: float = 0.0  # when its model was last seen not to be loaded
    sleepless: tuple[str | None, float | None] | None = None  # (version, start) of an engine that cannot be asked
    flag_drift: tuple[str, ...] = ()  # where its flags differ from its launch block, in words
    host: BackendState | None = None  # of an adapter (`on`): the backend whose engine it is another model of
    siblings: tuple[BackendState, ...] = ()  # the other backends of the same engine, which share its slots
    absent: str = ""  # why its engine does not serve its model; of adapters only
    revision: int = 0  # another number = another definition, report or learned fact, as far as requests depend on it
    name: str = field(init=False)  # of the backend: part of its identity, so it never changes
    server: str = field(init=False)  # the name of the row of traits in force
    traits: EngineTraits = field(init=False, repr=False)
    model: str | None = field(init=False)  # the model name that requests to it carry
    # The name that tells the model's family: that of the launch command, else the one that requests carry.
    checkpoint: str | None = field(init=False)
    learned: LearnedSlots = field(init=False)  # its slots, where nobody declares or reports them
    known_slots: int | None = field(init=False)  # declared, else reported, learned or assumed; None = unlimited
    slots: int = field(init=False)  # as a number in any case
    pool: int | None = field(init=False)  # tokens of the memory that its slots share; None = each has its own
    _forms: Forms = field(init=False, repr=False)  # by its server and its model's family
    _timeline: Timeline = field(init=False, repr=False)
    _window: int | None = field(init=False, repr=False)  # of what is declared and reported
    _basis: tuple[object, ...] = ()  # of the revision

    def __post_init__(self) -> None:
        self.name = self.backend.name
        self.facts = LearnedFacts(self.name, self._on_fact)
        self.evidence = Evidence(self)
        self.learned = LearnedSlots(self.backend.slots or 1)
        self._conclude()

    @property
    def loads_on_demand(self) -> bool:
        """Does it load its model with a request, so that one that only looks must not be sent?"""
        return self.traits.loads_on_demand or self.reported.loaded is not None

    @property
    def engine_inflight(self) -> int:
        """Sequences under way through this gateway on its engine: of all its models."""
        return self.inflight + sum([one.inflight for one in self.siblings]) if self.siblings else self.inflight

    @property
    def engine_event(self) -> float:
        """When any stream from its engine last made progress."""
        return max([self.last_event, *[one.last_event for one in self.siblings]])

    @property
    def under_way(self) -> int:
        """Sequences that all gateways together run on its engine."""
        if not self.siblings:
            return self.inflight + self.shared.elsewhere
        return self.engine_inflight + sum([one.shared.elsewhere for one in (self, *self.siblings)])

    @property
    def sign_of_life(self) -> float:
        """When its server last answered or sent anything, or its engine moved; 0 = never."""
        evidence = self.evidence
        return max(self.engine_event, self.progress.moved_at, evidence.alive_at, evidence.answered_at)

    @property
    def is_full(self) -> bool:
        """Are all declared slots in use, by gateways and other clients together?"""
        slots = self.known_slots
        return slots is not None and self.under_way + self.foreign >= slots

    def capabilities(self, now: float) -> Capabilities:
        """The known capabilities of the backend."""
        for until, able in self._timeline:
            if now < until:
                return able
        return self._timeline[-1][1]

    def own_responses(self, now: float) -> OwnResponses | None:
        """How it is asked at its own `/v1/responses`; None = it is asked as a chat."""
        how = asked_there(self.backend.responses, self.traits.responses)
        return None if how is None or self.facts.is_lacking(RESPONSES_LACK, now) else how

    def window(self, now: float) -> int | None:
        """Tokens: the smallest of the declared window, the reported one, and the one that its refusals name."""
        refused = self.facts.refused_window
        if refused is None or now >= refused.until:
            return self._window
        return refused.tokens if self._window is None else min(self._window, refused.tokens)

    def forms(self, now: float) -> Forms:
        """What it reads of a chat."""
        row, lacks = self._forms, self.facts.lacks
        return learned_forms(row, [fact for fact, until in lacks.items() if until > now]) if lacks else row

    def join(self, host: BackendState) -> None:
        """Share what belongs to the engine: its health and the evidence of it, its counters, what it reports."""
        self.host, self.health, self.evidence, self.progress = host, host.health, host.evidence, host.progress
        self.foreign = host.foreign
        self._follow_host(self.absent)

    def saw_listed(self, listed: Collection[str]) -> None:
        """The engine's list of models was read."""
        model = self.backend.model
        there = self.host is None or model in listed
        self._follow_host("" if there else f"'{model}' is no model of {self.backend.on}: is the adapter loaded there?")

    def _follow_host(self, absent: str) -> None:
        if self.host is not None:
            self.absent = absent
            self.reported = self.host.reported._replace(model=self.backend.model)
            self._conclude()

    # -- definition and identity ----------------------------------------------------------------------------------

    def define(self, backend: Backend) -> None:
        """Take over a changed definition in routes.yaml of the same running engine."""
        if backend.model not in (None, self.model):  # facts about another model do not apply to this one
            self.facts.forget()
            self.reported = self.reported._replace(model=None, context=None)
            self.ratio = TokenRatio()
        self.backend = backend
        self.health.settings = backend.health
        self.health.on_demand = backend.run != "always"
        self.health.on_request = backend.run == "on_request"
        self.health.canaried = canaried(backend)
        if self.client is not None:
            self.client.connect_timeout = backend.timeouts.connect
        self.flag_drift = flag_drift(backend, self.reported.flags)
        self._conclude()

    def saw_model(self, model: str | None, context: int | None) -> None:
        """The model that the engine serves, and its window (tokens), which replaces what refusals have shown."""
        if self.reported.context not in (None, context):
            self.facts.forget_window()
        self.reported = self.reported._replace(model=model, context=context)
        self._conclude()

    def saw_version(self, version: str | None) -> None:
        """Facts learned from another version are dropped."""
        before = self.reported.version
        if version != before:
            self.reported = self.reported._replace(version=version)
            self.facts.forget()
            self.announce("known" if before is None else "another")

    def saw_start(self, started: float | None) -> None:
        """When the engine was started (Unix seconds): another time = it was restarted; None = not reported."""
        before = self.reported.started
        if started is None or started == before:
            return
        self.reported = self.reported._replace(started=started)
        if before is None:
            self.announce("known")
        else:
            self.start_over()

    def saw_server(self, server: str | None) -> None:
        """Store which server it shows itself to be (a row of TRAITS); None = it is not recognised."""
        self._saw_kind("server", server)

    def saw_front_end(self, front_end: str | None) -> None:
        """Store which front end its engine shows itself to be behind; None = not known."""
        self._saw_kind("front_end", front_end)

    def _saw_kind(self, key: Literal["server", "front_end"], value: str | None) -> None:
        """Facts learned from another server, or another front end, are dropped."""
        before = getattr(self.reported, key)
        if value != before:
            changed: dict[str, Any] = {key: value}
            self.reported = self.reported._replace(**changed)
            self._conclude()
            if before is not None:
                self.start_over()

    def saw_loaded(self, loaded: bool | None) -> None:
        """Store whether a server that loads models by itself has loaded this one; None = it does not tell."""
        if loaded is not self.reported.loaded:
            self.reported = self.reported._replace(loaded=loaded)
            self.revision += 1

    def saw_held(self, held: HeldModel | None, now: float) -> None:
        """Store what a server that loads on demand has of its model in memory; None = nothing."""
        if held is None or held.is_loading(self.held):
            self.unloaded_at = now
        self.held = held
        self.saw_loaded(held is not None)

    def loading(self, now: float) -> str:
        """For how long its model is being loaded, for people; "" where the gateway has none loaded."""
        last = "" if self.load_seconds is None else f", last time {self.load_seconds:.0f} s"
        return "" if self.load is None else f"loading for {now - self.load.since:.0f} s{last}"

    def load_left(self, now: float) -> float | None:
        """Seconds until its model is probably loaded; None = nothing is known of its loads."""
        if self.load_seconds is None:
            return None
        return self.load_seconds if self.load is None else max(0.0, self.load.since + self.load_seconds - now)

    def saw_slots(self, slots: int | None, pool: int | None) -> None:
        """`pool`: tokens of the memory that the slots share; 0 = each has its own, None = not known."""
        if (slots, pool) != (self.reported.slots, self.reported.pool):
            self.reported = self.reported._replace(slots=slots, pool=pool)
            self._conclude()

    @property
    def learns_slots(self) -> bool:
        """Are its slots learned from what its engine shows of its work?"""
        probe, assumed = self.traits.probe, self.backend.slots_assumed and self.backend.slots is not None
        shows = probe is not None and probe.metrics is not None and probe.slots is None
        return assumed and shows and self.reported.slots is None

    @property
    def slots_to_find(self) -> int:
        """Slots more than now that it may soon be found to have; none while it does not serve."""
        if self.health.state not in SERVING:
            return 0
        may_tell = self.progress.last is not None or not self.progress.looked_at
        return MOST - self.slots if self.learns_slots and self.learned.eager and may_tell else 0

    @property
    def slots_why(self) -> str:
        """Where the number of its slots comes from (a key of WORDS)."""
        if not self.backend.slots_assumed:
            return "declared"
        if self.reported.slots is not None:
            return "reported"
        return self.learned.why if self.learns_slots else "assumed"

    def saw_work(self, before: Sample | None, sample: Sample) -> None:
        """Learn from two looks in a row how many slots it has."""
        if before is None or not self.learns_slots or sample.begins_anew(before):
            return
        if self.learned.observe(before, sample, full=self.is_full):
            self._conclude()
            for other in self.siblings:
                other._conclude()

    def saw_pool_full(self) -> None:
        """Its requests have filled the memory that they share: it has one, of one window."""
        if self.reported.context is not None and self.backend.kv_pool is None:
            self.saw_slots(self.reported.slots, self.reported.context)

    def saw_flags(self, flags: ObservedFlags | None) -> None:
        """The flags that its engine runs with; None = it does not report them."""
        if flags != self.reported.flags:
            self.reported = self.reported._replace(flags=flags)
            self.flag_drift = flag_drift(self.backend, flags)

    def start_over(self) -> None:
        """Drop all learned and observed facts, here and at all other gateways."""
        self.forget()
        self.announce("another")

    def forget(self) -> None:
        """Drop all learned and observed facts: the engine may be another one now, or have other flags."""
        if self.host is None:
            self.learned.begin(self.learned.base)
            for other in self.siblings:
                other._conclude()
        self.facts.forget()
        self.sleepless = None
        for observer in self.observers.restarted:
            observer(self)

    def report_transition(self, transition: Transition, verdict: str, *, announce: bool = True) -> None:
        """A change of health. `verdict`: the kind of proof; `announce`: to other gateways too."""
        for observer in self.observers.transitions:
            observer(transition)
        if announce:
            self.announce(verdict or transition.after.value, transition)

    def report(self, what: Literal["gone", "stalled", "mute", "silent"]) -> None:
        """Tell the observers of this."""
        for observer in getattr(self.observers, what):
            observer(self)

    def _on_fact(self, news: str, subject: Any) -> None:
        self._conclude()
        if news in ("lack", "no lack", "seen"):
            self.announce(news, subject)

    def announce(self, news: str, subject: Any = "") -> None:
        """Tell the other gateways."""
        for observer in self.observers.news:
            observer(self, news, subject)

    def _conclude(self) -> None:
        """Recompute what follows from the facts after a change of them, so that requests only have to read it."""
        backend, reported, facts = self.backend, self.reported, self.facts
        recognised = reported.server if backend.generic and backend.server is None else None
        self.server = recognised or declared_server(backend)
        self.traits = serving(row_of(self.server, reported.front_end), backend.serves)
        self.model = backend.model or reported.model
        self.checkpoint = backend.checkpoint or (self.model if self.host is None else self.host.checkpoint)
        self._forms = self.traits.forms
        if (family := family_of(self.checkpoint)) is not None and (family.efforts or family.ids):
            efforts = family.efforts if self._forms.efforts is None else self._forms.efforts
            self._forms = replace(self._forms, efforts=efforts, ids=self._forms.ids or family.ids)
        self.known_slots = backend.slots
        if backend.slots_assumed and reported.slots is not None:
            self.known_slots = reported.slots
        elif self.learns_slots and backend.slots is not None:
            if self.host is not None:
                self.learned = self.host.learned
            elif self.learned.base != backend.slots:
                self.learned.begin(backend.slots)
            self.known_slots = self.learned.slots
        self.slots = self.known_slots or 1_000_000
        self.pool = (reported.pool if backend.kv_pool is None else backend.kv_pool) or None
        self._timeline = timeline_of(
            backend, self.checkpoint, reported.version, facts.lacks, facts.observed, self.traits
        )
        declared, context = backend.context, reported.context
        self._window = min(declared, context) if declared and context else declared or context
        learned = facts.lacks, facts.refused_window, facts.observed, facts.pooled
        told = self.server, self.traits, self.model, self.checkpoint, reported.version
        basis = backend, self.absent, *learned, *told, self.pool, self._window
        if basis != self._basis:
            self._basis = basis
            self.revision += 1
