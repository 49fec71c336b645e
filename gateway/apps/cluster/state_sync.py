"""What gateways publish: learned facts, observations, health verdicts and drains of backends, the chosen mode, and the
latest operation.

Every published fact has a field and a time; the latest fact of a field counts. It is applied where it is about the same
running engine (version, start). A verdict that rests on proof is adopted, and ends by this gateway's own checks. That
another gateway cannot reach a backend only triggers a probe here, since the cause may be the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gateway.apps.cluster.redis_connection import Operation, key_of
from gateway.domain.backend import BackendState
from gateway.domain.facts import ELSEWHERE, LEARNED_FOR, Observation
from gateway.domain.health_state import SERVING, State
from gateway.domain.reason import kind_of
from gateway.health.prober import Prober
from gateway.routing.placements import NEWS_MOST, News, Placements

VERDICT_FOR = 900.0  # seconds that a verdict is of interest
PROOFS = frozenset({"stalled", "misconfigured", "doubted", "disproved"})
MODE = "\tmode"  # the field of the chosen mode, which belongs to no backend
OPERATION = "\toperation"  # the field of the latest operation on the fleet
OPERATION_FOR = 7 * 86400.0  # seconds that it is of interest
PUBLISHED = PROOFS | {"proved", "down", "ready"}
NAMES_MOST = 512  # characters of a client's name and of the digest of a conversation's key

_json = msgspec.json.Encoder().encode


class Fact(msgspec.Struct, array_like=True):
    """A published value of a field; `at` and `until` in Unix ms, `until` 0 = for ever."""

    at: float
    until: float
    value: Any


class StateSync:
    """`wake` is called when there is something to send (`pending_operations`). Facts that do not fit the engine as
    it is known here are kept: a later probe may show another engine."""

    def __init__(self, states: Callable[[], Mapping[str, BackendState]], prober: Prober, wake: Callable[[], None]):
        self._states = states
        self._prober = prober
        self._wake = wake
        self._facts: dict[str, Fact] = {}  # field -> its latest fact
        self._unfit: dict[str, None] = {}  # fields of facts about another engine than is known here, oldest first
        self._unsent: dict[str, Fact] = {}
        self._wipes: list[Operation] = []
        self._applying = False
        self.on_mode: Callable[[str, float], None] = lambda *_: None  # (mode, Unix ms): another gateway chose it
        self.on_operation: Callable[[Any], None] = lambda _: None  # another gateway has published one
        self.revision = 0

    # -- reports from this gateway --------------------------------------------------------------------------------

    def on_news(self, state: BackendState, news: str, what: Any) -> None:
        """Publish a discovery about a backend, as `Observers.news` reports it."""
        if self._applying:
            return
        if news == "known":  # the engine is identified: facts about it can be applied now
            self._unfit.update(dict.fromkeys(f for f in self._facts if f.startswith(key_of(state.backend) + "\t")))
            self._apply_all()
        elif news == "lack":
            by = state.facts.taught[what].request if what in state.facts.taught else ""
            self._publish(state, f"lack\t{what}", by or True, state.facts.lacks[what] - time.monotonic())
        elif news == "no lack":
            self._publish(state, f"lack\t{what}", False, LEARNED_FOR)
        elif news == "seen":
            for check, seen in what.items():
                self._publish(state, f"seen\t{check}", msgspec.to_builtins(seen), LEARNED_FOR)
        elif news == "another":
            for kind in ("lack", "seen"):
                self._wipes.append(("wipe", f"{key_of(state.backend)}\t{kind}\t", _ms()))
            self._drop(key_of(state.backend), _ms())
            self._publish(state, "another", True, LEARNED_FOR)
        elif news in ("drained", "resumed"):
            self._publish(state, "drain", news == "drained", None)
        elif news in PUBLISHED and (what.after is not State.READY or what.before not in (State.UNKNOWN, State.BUSY)):
            # a backend that was healthy on first contact is not worth an event
            self._publish(state, "verdict", [news, kind_of(what.reason)], VERDICT_FOR)

    def publish_mode(self, mode: str, at: float) -> None:
        """Publish the mode that was chosen here at `at` (Unix ms)."""
        self._facts[MODE] = self._unsent[MODE] = Fact(at, 0.0, mode)
        self._wake()

    def publish_operation(self, value: Any) -> None:
        """Publish the latest operation on the fleet, which counts more than all before."""
        known = self._facts.get(OPERATION)
        at = _ms() if known is None else max(_ms(), known.at + 1)  # the clock of another gateway may be ahead
        self._facts[OPERATION] = self._unsent[OPERATION] = Fact(at, at + OPERATION_FOR * 1000, value)
        self._wake()

    def _publish(self, state: BackendState, field: str, value: Any, seconds: float | None) -> None:
        at = _ms()
        fact = Fact(at, 0.0 if seconds is None else at + seconds * 1000, [*_engine_of(state), value])
        name = f"{key_of(state.backend)}\t{field}"
        self._facts[name] = self._unsent[name] = fact
        self._wake()

    def _drop(self, backend: str, before: float) -> None:
        """Drop facts and observations of an engine that is gone."""
        old = tuple(f"{backend}\t{kind}\t" for kind in ("lack", "seen"))
        for field in [f for f, fact in self._facts.items() if f.startswith(old) and fact.at < before]:
            del self._facts[field]
            self._unsent.pop(field, None)
            self._unfit.pop(field, None)

    # -- to and from other gateways -------------------------------------------------------------------------------

    def pending_operations(self) -> list[Operation]:
        """The operations to send now."""
        facts = self._unsent.items()
        found = [*self._wipes, *(("post", field, f.at, f.until, _json(f.value).decode()) for field, f in facts)]
        self._wipes, self._unsent = [], {}
        return found

    def resend_all(self) -> None:
        """After a time without Redis: publish everything known here again. The later fact counts."""
        now = _ms()
        self._unsent = {field: fact for field, fact in self._facts.items() if not fact.until or fact.until > now}
        self.revision = 0

    def receive(self, revision: int, facts: list[tuple[str, float, float, str]]) -> None:
        """Facts that have changed: (field, at, until, value as JSON), oldest first."""
        self.revision = revision
        for field, at, until, value in facts:
            known = self._facts.get(field)
            if known is None or known.at < at:
                fact = self._facts[field] = Fact(at, until, msgspec.json.decode(value))
                if field == MODE:
                    self.on_mode(str(fact.value), at)
                elif field == OPERATION:
                    self.on_operation(fact.value)
                else:
                    self._unfit[field] = None
        if self._unfit:
            self._apply_all()

    def _apply_all(self) -> None:
        states = {key_of(state.backend): state for state in self._states().values()}
        self._applying = True
        try:
            for field in list(self._unfit):
                fact = self._facts.get(field)
                if fact is None:
                    continue
                name, _, rest = field.partition("\t")
                state = states.get(name)
                if fact.until and fact.until <= _ms():
                    self._unfit.pop(field, None)
                elif state is not None and (rest == "drain" or fact.value[:2] == _engine_of(state)):
                    self._unfit.pop(field, None)
                    self._apply(state, rest, fact)
        finally:
            self._applying = False

    def _apply(self, state: BackendState, field: str, fact: Fact) -> None:
        kind, _, name = field.partition("\t")
        value, here = fact.value[2], time.monotonic() - time.time()
        if kind == "lack":
            if value:
                until = fact.until / 1000 + here
                state.facts.believe_lack(name, until, value if isinstance(value, str) else ELSEWHERE)
            else:
                state.facts.withdraw_lack(name)
        elif kind == "seen":
            state.facts.observe({name: msgspec.convert(value, Observation)})
            self._prober.canaries.seen_elsewhere(state, fact.at / 1000 + here)
        elif kind == "another":
            state.forget()
            self._drop(key_of(state.backend), fact.at)
        elif kind == "drain":
            if value:
                state.evidence.drain()
            else:
                state.evidence.resume()
        elif kind == "verdict":
            self._apply_verdict(state, *value, at=fact.at / 1000 + here)

    def _apply_verdict(self, state: BackendState, verdict: str, reason: str, *, at: float) -> None:
        shared_reason = f"{reason} (found by another gateway)"
        if verdict == "proved":
            self._prober.canaries.proved_elsewhere(state, at)
        if verdict in PROOFS and state.health.state in SERVING:
            getattr(state.evidence, verdict)(shared_reason)
        elif verdict not in PROOFS:
            self._prober.hurry(state)


def _engine_of(state: BackendState) -> list[object]:
    """Version and start: together they distinguish one running engine from another."""
    return [state.reported.version, state.reported.started]


def _ms() -> float:
    return float(round(time.time() * 1000))


# -- placements -------------------------------------------------------------------------------------------------------


class SharedPlacements:
    """Told with the batches that are sent anyway, every two seconds at the latest."""

    def __init__(self, placements: Placements, states: Callable[[], Mapping[str, BackendState]]) -> None:
        self._placements = placements
        self._states = states
        placements.news = {}

    def pending_operations(self) -> list[Operation]:
        """The operations to send now."""
        told, self._placements.news = self._placements.news, {}
        states = self._states()
        placed = [
            [client, key, key_of(states[backend].backend)]
            for (client, key), backend in (told or {}).items()
            if backend in states
        ]
        return [("placed", placed)] if placed else []

    def receive(self, placed: Any) -> None:
        """Another gateway has placed these conversations. What no gateway of this version writes is left out."""
        names = {key_of(state.backend): name for name, state in self._states().items()}
        news: News = {}
        for one in placed[:NEWS_MOST] if isinstance(placed, list) else ():
            match one:
                case [str(client), str(key), str(at)] if at in names and len(client) + len(key) <= NAMES_MOST:
                    news[client, key] = names[at]
        self._placements.learn(news)
