"""What gateways tell each other of the backends: what they have learned and seen, verdicts of health, drains.

Every word has a field and a time; the latest word on a field counts. It is believed where it means the same running
engine (version, start). A verdict that rests on proof is taken over, and ends by this gateway's own checks; that
somebody cannot reach a backend only makes the others look, since it may be the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gateway.cluster.scripts import Operation, key_of
from gateway.domain.backend import BackendState
from gateway.domain.facts import ELSEWHERE, LEARNED_FOR, Observation
from gateway.domain.health_state import SERVING, State, Transition
from gateway.domain.reason import kind_of
from gateway.health.prober import Prober

VERDICT_FOR = 900.0  # seconds that a verdict is of interest
PROOFS = frozenset({"stalled", "misconfigured", "doubted", "disproved"})
TOLD = PROOFS | {"proved", "down", "ready"}

_json = msgspec.json.Encoder().encode


class Word(msgspec.Struct, array_like=True):
    """What is said on a field; `at` and `until` in Unix ms, `until` 0 = for ever."""

    at: float
    until: float
    value: Any


class Board:
    """`wake` is called when there is something to send (`take`). Words that do not fit the backend as it is known here
    are kept: it may be looked at again later."""

    def __init__(self, states: Callable[[], Mapping[str, BackendState]], prober: Prober, wake: Callable[[], None]):
        self._states = states
        self._prober = prober
        self._wake = wake
        self._words: dict[str, Word] = {}  # the latest on each field
        self._unfit: dict[str, None] = {}  # fields of words on another engine than is known here, oldest first
        self._unsent: dict[str, Word] = {}
        self._wipes: list[Operation] = []
        self._believing = False
        self.revision = 0

    # -- what is found out here -----------------------------------------------------------------------------------

    def on_news(self, state: BackendState, news: str, what: Any) -> None:
        """What was found out of a backend, as `Observers.news` reports it."""
        if self._believing:
            return
        if news == "known":  # which engine it is: what was said of that one counts now
            self._unfit.update(dict.fromkeys(f for f in self._words if f.startswith(key_of(state.backend) + "\t")))
            self._believe_all()
        elif news == "lack":
            by = state.facts.taught[what].request if what in state.facts.taught else ""
            self._say(state, f"lack\t{what}", by or True, state.facts.lacks[what] - time.monotonic())
        elif news == "no lack":
            self._say(state, f"lack\t{what}", False, LEARNED_FOR)
        elif news == "seen":
            for check, seen in what.items():
                self._say(state, f"seen\t{check}", msgspec.to_builtins(seen), LEARNED_FOR)
        elif news == "another":
            for kind in ("lack", "seen"):
                self._wipes.append(("wipe", f"{key_of(state.backend)}\t{kind}\t", _ms()))
            self._drop(key_of(state.backend), _ms())
            self._say(state, "another", True, LEARNED_FOR)
        elif news in ("drained", "resumed"):
            self._say(state, "drain", news == "drained", None)
        elif news in TOLD and _is_news(what):
            self._say(state, "verdict", [news, kind_of(what.reason)], VERDICT_FOR)

    def _say(self, state: BackendState, field: str, value: Any, seconds: float | None) -> None:
        at = _ms()
        word = Word(at, 0.0 if seconds is None else at + seconds * 1000, [*_engine_of(state), value])
        name = f"{key_of(state.backend)}\t{field}"
        self._words[name] = self._unsent[name] = word
        self._wake()

    def _drop(self, backend: str, before: float) -> None:
        """What was learned and seen there means nothing any more."""
        old = tuple(f"{backend}\t{kind}\t" for kind in ("lack", "seen"))
        for field in [f for f, word in self._words.items() if f.startswith(old) and word.at < before]:
            del self._words[field]
            self._unsent.pop(field, None)
            self._unfit.pop(field, None)

    # -- to and from the others -----------------------------------------------------------------------------------

    def take(self) -> list[Operation]:
        """What is to be sent now."""
        found = [*self._wipes, *(_post(field, word) for field, word in self._unsent.items())]
        self._wipes, self._unsent = [], {}
        return found

    def say_all(self) -> None:
        """After a time without the others: everything known here is said again. The later word counts."""
        now = _ms()
        self._unsent = {field: word for field, word in self._words.items() if not word.until or word.until > now}
        self.revision = 0

    def hear(self, revision: int, words: list[tuple[str, float, float, str]]) -> None:
        """What has changed: (field, at, until, value as JSON), oldest first."""
        self.revision = revision
        for field, at, until, value in words:
            known = self._words.get(field)
            if known is None or known.at < at:
                self._words[field] = Word(at, until, msgspec.json.decode(value))
                self._unfit[field] = None
        if self._unfit:
            self._believe_all()

    def _believe_all(self) -> None:
        states = {key_of(state.backend): state for state in self._states().values()}
        self._believing = True
        try:
            for field in list(self._unfit):
                word = self._words.get(field)
                if word is None:
                    continue
                name, _, rest = field.partition("\t")
                state = states.get(name)
                if word.until and word.until <= _ms():
                    self._unfit.pop(field, None)
                elif state is not None and (rest == "drain" or word.value[:2] == _engine_of(state)):
                    self._unfit.pop(field, None)
                    self._believe(state, rest, word)
        finally:
            self._believing = False

    def _believe(self, state: BackendState, field: str, word: Word) -> None:
        kind, _, name = field.partition("\t")
        value, here = word.value[2], time.monotonic() - time.time()
        if kind == "lack":
            if value:
                until = word.until / 1000 + here
                state.facts.believe_lack(name, until, value if isinstance(value, str) else ELSEWHERE)
            else:
                state.facts.withdraw_lack(name)
        elif kind == "seen":
            state.facts.observe({name: msgspec.convert(value, Observation)})
            self._prober.canaries.seen_elsewhere(state, word.at / 1000 + here)
        elif kind == "another":
            state.forget()
            self._drop(key_of(state.backend), word.at)
        elif kind == "drain":
            if value:
                state.evidence.drain()
            else:
                state.evidence.resume()
        elif kind == "verdict":
            self._believe_verdict(state, *value, at=word.at / 1000 + here)

    def _believe_verdict(self, state: BackendState, verdict: str, reason: str, *, at: float) -> None:
        told = f"{reason} (found by another gateway)"
        if verdict == "proved":
            self._prober.canaries.proved_elsewhere(state, at)
        if verdict in PROOFS and state.health.state in SERVING:
            getattr(state.evidence, verdict)(told)
        elif verdict not in PROOFS:
            self._prober.hurry(state)


def _engine_of(state: BackendState) -> list[object]:
    """What tells one running engine from another."""
    return [state.reported.version, state.reported.started]


def _is_news(transition: Transition) -> bool:
    """Where a backend is well on first contact nothing has happened."""
    return transition.after is not State.READY or transition.before not in (State.UNKNOWN, State.BUSY)


def _post(field: str, word: Word) -> Operation:
    return ("post", field, word.at, word.until, _json(word.value).decode())


def _ms() -> float:
    return float(round(time.time() * 1000))
