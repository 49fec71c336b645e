"""Decides which alerts are sent when: a state machine, with time passed in and no effects.

Alerts follow state, not traffic. Trouble is alerted once when it has lasted, and once when it is over. Only an alias
without a backend and an alias on a cloud are alerted again while the trouble lasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.domain.health_state import WELL, State
from gateway.routing.alias_status import AliasView, BackendView, Course
from gateway.shortage import WORDS
from gateway.shortage import Kind as Shortage

Kind = Literal[
    "backend_down", "backend_misconfigured", "backend_back", "alias_fallback", "alias_cloud", "alias_nothing",
    "alias_back", "drift", "draft_acceptance", "draft_acceptance_back", "budget", "invalid_edit", "valid_edit",
    "start_failed", "start_works", "engine_restarted", "internal_failure", "shortage", "shortage_over", "test",
]  # fmt: skip

_OF_COURSE: Mapping[str, Kind] = {"fallback": "alias_fallback", "cloud": "alias_cloud", "nothing": "alias_nothing"}
THRESHOLDS = (1.0, 0.8)  # shares of a budget that are alerted, the largest first


@dataclass(frozen=True, slots=True)
class Alert:
    """`name`: the backend, alias, budget, part of the gateway, resource or file. `good`: trouble is over. `at`: seconds
    of the caller's clock."""

    kind: Kind
    name: str
    text: str
    at: float
    good: bool = False


@dataclass(frozen=True, slots=True)
class FleetPicture:
    """Everything that alerts follow. `budgets`: name -> share that is spent, 1 = all of it. `refused_edit`: the
    mistakes of the present routes.yaml; None if it is in force. `failed`: part of the gateway -> number of failures.
    `short`: resources that the gateway process has lately lacked. `acceptance`: backend -> share of its draft tokens
    that were accepted lately, only of those that draft; `acceptance_least`: the share below which that is trouble.
    `unstarted`: backend that could not be started for a request -> why. `recovered`: backend that hangs -> its last
    restart by the gateway, in words."""

    backends: tuple[BackendView, ...] = ()
    aliases: tuple[AliasView, ...] = ()
    budgets: Mapping[str, float] = field(default_factory=dict)
    refused_edit: str | None = None
    failed: Mapping[str, int] = field(default_factory=dict)
    short: tuple[Shortage, ...] = ()
    acceptance: Mapping[str, float] = field(default_factory=dict)
    acceptance_least: float = 0.0
    unstarted: Mapping[str, str] = field(default_factory=dict)
    recovered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `down_for`: how long a backend must be out to be alerted as down. `settle`: how long any other trouble
    must last. `cloud_again`, `nothing_again`: until an alias is alerted again. `drift_quiet`: a difference that was not
    seen for so long is alerted when it comes back. `rejected_for`: how long a backend's drafts must be rejected.
    `failed_again`: between two alerts of a part that keeps failing."""

    down_for: float = 60.0
    settle: float = 10.0
    cloud_again: float = 3600.0
    nothing_again: float = 900.0
    drift_quiet: float = 6 * 3600.0
    rejected_for: float = 600.0
    failed_again: float = 3600.0


@dataclass(slots=True)
class _LastAlert:
    """The last alert of one backend or alias; `kind` "" = none, or that the trouble was over."""

    kind: str = ""
    at: float = 0.0  # when it was alerted
    began: float = 0.0  # when that trouble began
    differs_since: float | None = None  # since when the state differs from the alert
    out_since: float | None = None  # of a backend: since when it is down, or on its way back


class AlertState:
    """The alerts of one gateway so far; call `step` at every check."""

    def __init__(self, timing: Timing | None = None) -> None:
        self.timing = timing or Timing()
        self._backends: dict[str, _LastAlert] = {}
        self._aliases: dict[str, _LastAlert] = {}
        self._drift: dict[tuple[str, str], float] = {}  # (backend, key of routes.yaml) -> when it was last seen
        self._drafts: dict[str, _LastAlert] = {}  # of the backends whose drafts are rejected, or were when last alerted
        self._budgets: dict[str, float] = {}  # name -> the threshold that was alerted
        self._refused: str | None = None
        self._failed: dict[str, tuple[int, float]] = {}  # part of the gateway -> failures at its last alert, and when
        self._short: set[Shortage] = set()
        self._unstarted: set[str] = set()  # backends
        self._recovered: Mapping[str, str] = {}

    def step(self, now: float, picture: FleetPicture) -> list[Alert]:
        """The alerts that are due at `now` (monotonic seconds), each of them once. A trouble of a backend or alias that
        is no longer in the picture is forgotten without an alert."""
        self._backends = {view.name: self._backends.get(view.name) or _LastAlert() for view in picture.backends}
        self._aliases = {view.name: self._aliases.get(view.name) or _LastAlert() for view in picture.aliases}
        self._drift = {key: seen for key, seen in self._drift.items() if key[0] in self._backends}
        self._drafts = {name: last for name, last in self._drafts.items() if name in self._backends}
        found: list[Alert] = []
        for backend in picture.backends:
            found += self._backend(self._backends[backend.name], backend, now)
            found += self._differences(backend, now)
            found += self._drafting(backend.name, picture, now)
        for alias in picture.aliases:
            found += self._alias(self._aliases[alias.name], alias, now)
        found += self._budget(picture, now)
        found += self._edit(picture.refused_edit, now)
        found += self._failures(picture, now)
        found += self._shortages(picture, now)
        found += self._starts(picture, now)
        news = [(name, text) for name, text in picture.recovered.items() if self._recovered.get(name) != text]
        found += [Alert("engine_restarted", name, text, now) for name, text in news]
        self._recovered = dict(picture.recovered)
        return found

    # -- backends -------------------------------------------------------------------------------------------------

    def _backend(self, last: _LastAlert, view: BackendView, now: float) -> Iterator[Alert]:
        state = view.state
        out = state in (State.DOWN, State.WARMING) or view.trial
        last.out_since = (now if last.out_since is None else last.out_since) if out else None
        if view.on_demand or state is State.PARKED:
            last.kind = ""
        elif state is State.DOWN and last.kind != "down":
            # Counted from the first failure: a backend that fails again while it starts has been down all the time.
            assert last.out_since is not None
            if now - last.out_since >= self.timing.down_for:
                _record(last, "down", last.out_since, now)
                yield Alert("backend_down", view.name, f"{view.name} is down: {view.reason}", now)
        elif state is State.MISCONFIGURED and last.kind != "misconfigured":
            since = _differs_since(last, now)
            if now - since >= self.timing.settle:
                _record(last, "misconfigured", since, now)
                text = f"{view.name} is misconfigured: {view.reason}"
                yield Alert("backend_misconfigured", view.name, text, now)
            return
        elif state in WELL and last.kind:
            took = duration_text(now - last.began)
            last.kind = ""
            yield Alert("backend_back", view.name, f"{view.name} is back, after {took}", now, good=True)
        last.differs_since = None

    def _differences(self, view: BackendView, now: float) -> Iterator[Alert]:
        """One alert for each key of routes.yaml: the text behind the key changes with every answer of the model."""
        for line in view.drift:
            key = (view.name, line.partition(":")[0])
            if key not in self._drift:
                yield Alert("drift", view.name, f"{view.name} is not what routes.yaml says: {line}", now)
            self._drift[key] = now
        if view.state not in WELL:  # its observations are dropped meanwhile, which proves nothing
            for key in [key for key in self._drift if key[0] == view.name]:
                self._drift[key] = now
        over = [k for k, seen in self._drift.items() if k[0] == view.name and now - seen >= self.timing.drift_quiet]
        for key in over:
            del self._drift[key]

    def _drafting(self, name: str, picture: FleetPicture, now: float) -> Iterator[Alert]:
        """A backend that does not draft proves nothing: an alert stays, a trouble not yet alerted starts over."""
        share = picture.acceptance.get(name)
        last = self._drafts.get(name)
        if share is not None and share < picture.acceptance_least:
            last = self._drafts.setdefault(name, _LastAlert())
            since = _differs_since(last, now)
            if not last.kind and now - since >= self.timing.rejected_for:
                last.kind, last.began = "rejected", since
                text = f"{name} accepts only {share:.0%} of its draft tokens, for {duration_text(now - since)}: its"
                yield Alert("draft_acceptance", name, f"{text} speculative decoding may cost more than it gives", now)
        elif last is not None and (share is not None or not last.kind):
            del self._drafts[name]
            if last.kind:
                text = f"{name} accepts {share:.0%} of its draft tokens again, after {duration_text(now - last.began)}"
                yield Alert("draft_acceptance_back", name, text, now, good=True)

    # -- aliases --------------------------------------------------------------------------------------------------

    def _alias(self, last: _LastAlert, view: AliasView, now: float) -> Iterator[Alert]:
        course = _trouble(view.course)
        if course == last.kind:
            last.differs_since = None
            again = {"cloud": self.timing.cloud_again, "nothing": self.timing.nothing_again}.get(course)
            if again is not None and now - last.at >= again:
                last.at = now
                yield Alert(_OF_COURSE[course], view.name, _words(view, duration_text(now - last.began)), now)
            return
        since = _differs_since(last, now)
        if now - since < self.timing.settle:
            return
        before, began = last.kind, last.began if last.kind else since
        _record(last, course, began, now)
        if course:
            yield Alert(_OF_COURSE[course], view.name, _words(view), now)
        elif before:
            by = f"{' or '.join(view.serving)} serves it" if view.serving else "what it needs is parked"
            text = f"alias {view.name} is back: {by}, after {duration_text(now - began)}"
            yield Alert("alias_back", view.name, text, now, good=True)

    # -- the rest -------------------------------------------------------------------------------------------------

    def _budget(self, picture: FleetPicture, now: float) -> Iterator[Alert]:
        for name, share in picture.budgets.items():
            reached = next((threshold for threshold in THRESHOLDS if share >= threshold), 0.0)
            if reached > self._budgets.get(name, 0.0):
                rest = "; nothing more is spent until the next period" if reached >= 1 else ""
                yield Alert("budget", name, f"{name} has used {reached:.0%} of its budget{rest}", now)
            self._budgets[name] = reached  # less than before: a new period has begun

    def _edit(self, problem: str | None, now: float) -> Iterator[Alert]:
        if problem == self._refused:
            return
        before, self._refused = self._refused, problem
        if problem is not None:
            text = f"routes.yaml was edited and is not valid; what was before stays in force: {problem}"
            yield Alert("invalid_edit", "routes.yaml", text, now)
        elif before is not None:
            yield Alert("valid_edit", "routes.yaml", "routes.yaml is valid again, and in force", now, good=True)

    def _failures(self, picture: FleetPicture, now: float) -> Iterator[Alert]:
        for part, count in picture.failed.items():
            before, at = self._failed.get(part, (0, float("-inf")))
            if count > before and now - at >= self.timing.failed_again:
                self._failed[part] = count, now
                times = "" if count - before == 1 else f" {count - before} times"
                text = f"a part of the gateway itself has failed{times} ({part}); it goes on, its log says why"
                yield Alert("internal_failure", part, text, now)

    def _shortages(self, picture: FleetPicture, now: float) -> Iterator[Alert]:
        for kind in picture.short:
            if kind not in self._short:
                text = f"the gateway itself is short of {WORDS[kind]}; requests fail because of it"
                yield Alert("shortage", kind, text, now)
        for kind in sorted(self._short.difference(picture.short)):
            yield Alert("shortage_over", kind, f"the gateway has enough {kind} again", now, good=True)
        self._short = set(picture.short)

    def _starts(self, picture: FleetPicture, now: float) -> Iterator[Alert]:
        for name, why in picture.unstarted.items():
            if name not in self._unstarted:
                text = f"{name} could not be started for a request: {why}"
                yield Alert("start_failed", name, text, now)
        for name in sorted(self._unstarted.difference(picture.unstarted).intersection(self._backends)):
            yield Alert("start_works", name, f"{name} can be started for requests again", now, good=True)
        self._unstarted = set(picture.unstarted)


def _differs_since(last: _LastAlert, now: float) -> float:
    if last.differs_since is None:
        last.differs_since = now
    return last.differs_since


def _record(last: _LastAlert, kind: str, began: float, now: float) -> None:
    if not last.kind:
        last.began = began
    last.kind, last.at, last.differs_since = kind, now, None


def _trouble(course: Course) -> str:
    return "" if course in ("home", "parked") else course


def _words(view: AliasView, for_so_long: str = "") -> str:
    still = "still " if for_so_long else ""
    after = f" (for {for_so_long})" if for_so_long else ""
    if view.course == "nothing":
        return f"alias {view.name} {still}has nothing left{after}: {view.why}"
    what = "a cloud, its prompts leave the LAN" if view.course == "cloud" else "a fallback"
    return f"alias {view.name} is {still}on {what}{after}: {' or '.join(view.serving)} serves it; {view.why}"


def duration_text(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
