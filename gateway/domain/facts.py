"""Facts about one backend beyond what routes.yaml declares: reported by its engine, learned from requests it refused,
observed by checks, told by other gateways."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from gateway.domain.forms import LEARNED, LEARNED_MOST
from gateway.domain.observed_flags import ObservedFlags
from gateway.domain.pooled import NO_POOLED_FACTS, PooledFacts

log = logging.getLogger("gateway.backend")

LEARNED_FOR = 3600.0  # seconds for which a learned fact is believed
ELSEWHERE = "another gateway"  # stands for the request's id where another gateway did not report it

_NOTHING: Mapping[str, Any] = MappingProxyType({})

OnFact = Callable[[str, Any], None]
LOOKS_APART = 0.4  # seconds between two looks at what is in memory that show whether an expiry moves


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


class HeldModel(NamedTuple):
    """A model in the memory of a server that loads on demand. `window`: tokens, 0 = not told. `until`: Unix seconds at
    which the server unloads it if nobody uses it before; infinite = never. `bytes`: what it takes of the memory.
    `seen`: Unix seconds."""

    window: int
    until: float
    bytes: int = 0
    seen: float = 0.0

    def is_loading(self, before: HeldModel | None) -> bool:
        """Is it still being loaded? Its expiry then moves with the time. `before`: as it was seen before."""
        if before is None or self.seen - before.seen < LOOKS_APART or self.until == inf:
            return False
        return abs((self.until - before.until) - (self.seen - before.seen)) < LOOKS_APART / 4


class ModelLoad(Protocol):
    """A load that the gateway has asked for. `window`: tokens, None = the server's own. `since`: monotonic seconds."""

    window: int | None
    since: float

    def cancel(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of one check of a backend. `mended`: the raw answer is wrong, but the gateway's clients get a right
    one. `seen` describes the answer. `at`: when, in Unix seconds; 0 = not known."""

    result: Literal["yes", "mended", "no", "untested"]
    seen: str
    at: float = 0.0


class Source(NamedTuple):
    """The request that a fact is learned from: its id, its client, and a digest of its prompt. `clients_known`: several
    clients have keys, so two prompts of one client are not two sources. Otherwise different prompts are."""

    request: str
    sender: str = ""
    prompt: bytes = b""
    clients_known: bool = False

    def differs(self, other: Source) -> bool:
        return self.sender != other.sender or (not self.clients_known and self.prompt != other.prompt)


class FactSource(NamedTuple):
    """The source of a learned fact: the id of the request it was learned from, and when (Unix seconds)."""

    request: str
    at: float


class UnconfirmedFact(NamedTuple):
    """A fact from one request that contradicts what is known: it is used only after a second source confirms it."""

    value: object
    source: Source
    until: float  # monotonic seconds


class RefusedWindow(NamedTuple):
    """The window that a backend's refusals name, in tokens, and until when that is believed (monotonic seconds)."""

    tokens: int
    until: float


class LearnedFacts:
    """Times are monotonic seconds. `on_change` is called after each change with the kind of news and its subject:

    "lack", "no lack": a limitation was learned or withdrawn (its name). "seen": checks observed something
    (`{check: Observation}`). "window": a window was learned. "forgotten": nothing is known any more.
    The mappings are replaced and never changed in place, so a reader may keep them.
    """

    __slots__ = ("_backend", "_on_change", "lacks", "observed", "pooled", "refused_window", "taught", "unconfirmed")

    def __init__(self, backend: str, on_change: OnFact) -> None:
        self.lacks: Mapping[str, float] = _NOTHING  # what the backend cannot do -> until when that is believed
        self.taught: Mapping[str, FactSource] = _NOTHING  # learned fact -> its source
        self.refused_window: RefusedWindow | None = None
        self.observed: Mapping[str, Observation] = _NOTHING  # check -> its result
        self.pooled: PooledFacts = NO_POOLED_FACTS
        self.unconfirmed: dict[str, UnconfirmedFact] = {}  # fact -> the claim that waits for a second source
        self._backend = backend
        self._on_change = on_change

    def is_lacking(self, capability: str, now: float) -> bool:
        """Was it learned that the backend cannot do `capability` ("tools", "images", "endpoint:chat", ...)?"""
        return self.lacks.get(capability, 0.0) > now

    def learn_lack(self, capability: str, now: float, source: Source | None = None) -> None:
        """Believe for an hour that the backend cannot do this, and report it."""
        self.believe_lack(capability, now + LEARNED_FOR, source.request if source is not None else "")

    def believe_lack(self, capability: str, until: float, request: str) -> None:
        """Believe until then that the backend cannot do this. `request`: the id of the one it was learned from."""
        self.lacks = MappingProxyType({**self.lacks, capability: until})
        self._note_source(capability, request)
        self._on_change("lack", capability)

    def learn_form(self, form: str, now: float, request: str) -> None:
        """Believe for an hour that the backend reads this form (`limit=max_tokens`): a request in it was answered,
        after another had been refused."""
        known = [fact for fact, until in self.lacks.items() if fact.startswith(LEARNED) and until > now]
        if len(known) < LEARNED_MOST:
            self.believe_lack(LEARNED + form, now + LEARNED_FOR, request)

    def withdraw_lack(self, capability: str) -> None:
        """Withdraw a learned limitation: the backend has just served such a request."""
        self.unconfirmed.pop(capability, None)
        self.lacks = MappingProxyType({name: until for name, until in self.lacks.items() if name != capability})
        self._on_change("no lack", capability)

    def learn_window(self, window: int, now: float, source: Source) -> None:
        """Believe for an hour the window (tokens) that a refusal named."""
        self.refused_window = RefusedWindow(window, now + LEARNED_FOR)
        self._note_source("window", source.request)
        self._on_change("window", window)

    def is_confirmed(self, fact: str, value: object, source: Source, now: float) -> bool:
        """Has another source reported the same value? The first one is kept for LEARNED_FOR seconds."""
        before = self.unconfirmed.get(fact)
        if before is None or before.value != value or before.until <= now:
            self.unconfirmed[fact] = UnconfirmedFact(value, source, now + LEARNED_FOR)
            return False
        if not source.differs(before.source):
            return False
        del self.unconfirmed[fact]
        return True

    def observe(self, found: Mapping[str, Observation]) -> None:
        """Add what checks observed to what other checks observed before."""
        self.observed = MappingProxyType({**self.observed, **found})
        self._on_change("seen", found)

    def forget(self) -> None:
        """Drop all facts: the engine may be another one now, or have other flags."""
        self.lacks = self.observed = self.taught = _NOTHING
        self.unconfirmed.clear()
        self.refused_window = None
        self.pooled = NO_POOLED_FACTS
        self._on_change("forgotten", None)

    def forget_window(self) -> None:
        """Drop the window that refusals named: the engine reports another one now than at that time."""
        self.refused_window = None
        self.unconfirmed.pop("window", None)
        self.taught = MappingProxyType({fact: taught for fact, taught in self.taught.items() if fact != "window"})

    def _note_source(self, fact: str, request: str) -> None:
        log.info("%s: learned %s from request %s", self._backend, fact, request or "(none)")
        self.taught = MappingProxyType({**self.taught, fact: FactSource(request, time.time())})
