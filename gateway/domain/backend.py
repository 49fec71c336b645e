"""The record of one backend as it is now: its health, its load, and the parts that refer to it.

Changed only from the event loop's thread. `backend` is what routes.yaml declares, `reported` what the engine reports of
itself, `facts` what was learned from requests and checks. `evidence` changes `health`. `shared` is the use of the
backend by other gateways. Observers of changes subscribe to `observers`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gateway.config.snapshot import Backend
from gateway.domain.capabilities import Capabilities, Timeline, timeline_of
from gateway.domain.engine_traits import (
    RESPONSES_LACK,
    EngineTraits,
    OwnResponses,
    asked_there,
    declared_server,
    serving,
    traits_of,
)
from gateway.domain.evidence import Evidence
from gateway.domain.facts import LearnedFacts
from gateway.domain.forms import Forms, learned_forms
from gateway.domain.health_machine import Health
from gateway.domain.health_state import SERVING, Transition
from gateway.domain.held_model import HeldModel, ModelLoad
from gateway.domain.observed_flags import ObservedFlags, flag_drift
from gateway.domain.prefill import Prefill
from gateway.domain.progress import Progress, Sample
from gateway.domain.recognition import row_of
from gateway.domain.slot_learning import MOST, LearnedSlots
from gateway.domain.token_ratio import TokenRatio
from gateway.domain.turns import Turns
from gateway.domain.upstream import Client
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


class EngineReport(NamedTuple):
    """What an engine reports of itself: the name and the window (tokens) of its model, its version, when it was started
    (Unix seconds), its flags, which server it shows itself to be (a row of TRAITS), its slots, and the tokens of the
    memory that these share, whether its model is loaded, and its front end (a name of FRONT_ENDS). None = it does not
    report that."""

    model: str | None = None
    context: int | None = None
    version: str | None = None
    started: float | None = None
    flags: ObservedFlags | None = None
    server: str | None = None
    slots: int | None = None
    pool: int | None = None
    loaded: bool | None = None
    front_end: str | None = None


@dataclass(slots=True)
class SharedView:
    """How other gateways use the same backend. Sizes are sequences, which take a slot each."""

    elsewhere: int = 0  # under way through other gateways
    elsewhere_lately: int = 0  # the most of the last few seconds
    sharers: int = 1  # gateways that share the slots, each on its own
    others: tuple[int, ...] = ()  # slots that each of the others held by its last report
    alone: int | None = None  # without Redis: slots to use until the leases of the others expire; None = our share


@dataclass(slots=True)
class BackendState:
    """One backend as it is now. Times are monotonic seconds, sizes tokens."""

    backend: Backend
    client: Client | None
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
    # The slots that routes.yaml declares; where it does not, those that the engine reports or that were learned, else
    # an assumption. None = unlimited.
    known_slots: int | None = field(init=False)
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
        return self.inflight + self.shared.elsewhere if not self.siblings else self._under_way_together()

    def _under_way_together(self) -> int:
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
        """The context window in tokens: the smallest of the declared one, the reported one, and the one its refusals
        name."""
        refused = self.facts.refused_window
        if refused is None or now >= refused.until:
            return self._window
        return refused.tokens if self._window is None else min(self._window, refused.tokens)

    def without_key(self, answer: bytes) -> bytes:
        """An error body with the backend's key masked, so that it may be shown: a server may repeat the key it
        received."""
        key = self.backend.api_key
        return answer if key is None or not key.reveal() else answer.replace(key.reveal().encode(), b"***")

    def forms(self, now: float) -> Forms:
        """What it reads of a chat."""
        row, lacks = self._forms, self.facts.lacks
        return learned_forms(row, [fact for fact, until in lacks.items() if until > now]) if lacks else row

    # -- several models of one engine -----------------------------------------------------------------------------

    def join(self, host: BackendState) -> None:
        """Share what belongs to the engine: its health and the evidence of it, its counters, what it reports."""
        self.host, self.health, self.evidence, self.progress = host, host.health, host.evidence, host.progress
        self.foreign = host.foreign
        self._follow_host(self.absent)

    def saw_listed(self, listed: Collection[str]) -> None:
        """The engine's list of models was read."""
        model, host = self.backend.model, self.host
        there = host is None or model in listed
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
        """Store the model that the engine reports to serve, and that model's window (tokens). Another window than
        before replaces what refusals have shown of the one before."""
        if self.reported.context not in (None, context):
            self.facts.forget_window()
        self.reported = self.reported._replace(model=model, context=context)
        self._conclude()

    def saw_version(self, version: str | None) -> None:
        """Store the reported version of the engine. Facts learned from another version are dropped."""
        before = self.reported.version
        if version != before:
            self.reported = self.reported._replace(version=version)
            self.facts.forget()
            self._report("known" if before is None else "another")

    def saw_start(self, started: float | None) -> None:
        """Store when the engine was started (Unix seconds). Another time = it was restarted; None = not reported."""
        before = self.reported.started
        if started is None or started == before:
            return
        self.reported = self.reported._replace(started=started)
        if before is None:
            self._report("known")
        else:
            self.start_over()

    def saw_server(self, server: str | None) -> None:
        """Store which server it shows itself to be (a row of TRAITS); None = it is not recognised. Facts learned from
        another server are dropped."""
        before = self.reported.server
        if server != before:
            self.reported = self.reported._replace(server=server)
            self._conclude()
            if before is not None:
                self.start_over()

    def saw_front_end(self, front_end: str | None) -> None:
        """Store which front end its engine shows itself to be behind; None = not known. Facts learned from another one
        are dropped."""
        before = self.reported.front_end
        if front_end != before:
            self.reported = self.reported._replace(front_end=front_end)
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
        if self.load is None:
            return ""
        last = "" if self.load_seconds is None else f", last time {self.load_seconds:.0f} s"
        return f"loading for {now - self.load.since:.0f} s{last}"

    def load_left(self, now: float) -> float | None:
        """Seconds until its model is probably loaded; None = nothing is known of its loads."""
        if self.load_seconds is None:
            return None
        return self.load_seconds if self.load is None else max(0.0, self.load.since + self.load_seconds - now)

    def saw_slots(self, slots: int, pool: int | None) -> None:
        """Store how many slots it shows, and the tokens of the memory that they share (0 = each has its own; None = not
        known)."""
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
            self.reported = self.reported._replace(pool=self.reported.context)
            self._conclude()

    def saw_flags(self, flags: ObservedFlags | None) -> None:
        """The flags that its engine runs with; None = it does not report them."""
        if flags != self.reported.flags:
            self.reported = self.reported._replace(flags=flags)
            self.flag_drift = flag_drift(self.backend, flags)

    def start_over(self) -> None:
        """Drop all learned and observed facts, here and at all other gateways."""
        self.forget()
        self._report("another")

    # -- what its parts report ------------------------------------------------------------------------------------

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
        """Report a change of health to the observers. `verdict`: the kind of proof; `announce`: to other gateways
        too."""
        for observer in self.observers.transitions:
            observer(transition)
        if announce:
            self._report(verdict or transition.after.value, transition)

    def report_drain(self, news: str) -> None:
        """Report to other gateways that an operator has "drained" or "resumed" a backend outside the mode in force."""
        self._report(news)

    def report_gone(self) -> None:
        """Report that its port is closed."""
        for observer in self.observers.gone:
            observer(self)

    def report_stalled(self) -> None:
        """Report that its engine makes no progress."""
        for observer in self.observers.stalled:
            observer(self)

    def report_mute(self) -> None:
        """Report that it takes connections and answers nothing new, while what it has begun may go on."""
        self.evidence.mute = True
        for observer in self.observers.mute:
            observer(self)

    def report_silent(self) -> None:
        """Report that a health check got no answer, and that nothing came from it meanwhile."""
        for observer in self.observers.silent:
            observer(self)

    def _on_fact(self, news: str, subject: Any) -> None:
        self._conclude()
        if news in ("lack", "no lack", "seen"):
            self._report(news, subject)

    def _report(self, news: str, subject: Any = "") -> None:
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
        if self._forms.efforts is None and (family := family_of(self.checkpoint)) is not None and family.efforts:
            self._forms = replace(self._forms, efforts=family.efforts)
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


def canaried(backend: Backend) -> bool:
    """Does it get canaries (tiny real requests)? Only backends that are probed and serve chat get them."""
    return backend.health.canary is not None and backend.health.every is not None and traits_of(backend).chats
