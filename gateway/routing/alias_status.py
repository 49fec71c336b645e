"""The status of each backend and of each alias: what alerts, `/status`, the page and a gauge show.

Of an alias only ordinary requests count here, not what single ones need: which step serves them, and is that because a
step before it is not well? The planner says who serves (serving.py); this module puts it into words.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from gateway.config.snapshot import Alerts, Alias, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.drift import drift
from gateway.domain.health_state import SERVING, State
from gateway.domain.reason import kind_of
from gateway.routing.plan import KINDS
from gateway.routing.serving import UNHEALTHY, Member, members_now, reason_of
from gateway.shortage import Kind

Course = Literal["home", "fallback", "cloud", "nothing", "parked"]

AWAY: frozenset[Course] = frozenset({"fallback", "cloud"})
REASON_MOST = 300  # characters of a reason that are shown

# A backend's own words may repeat what it was asked: they are for the log and for admins. Reasons keep them apart
# (domain/reason.py); this is for texts that were put together elsewhere.
_ITS_WORDS = re.compile(
    r"(answered \d{3}(?: with an error)?|failure|model): (?!ended with|answered with|answered 200).*", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class BackendView:
    """`trial`: one request at a time finds out whether it is back. `drift`: where it differs from routes.yaml."""

    name: str
    state: State
    reason: str = ""
    on_demand: bool = False
    trial: bool = False
    drift: tuple[str, ...] = ()

    @property
    def serves(self) -> bool:
        return self.state in SERVING and not self.trial


@dataclass(frozen=True, slots=True)
class AliasView:
    """Who serves an alias' ordinary requests. `course`:

    - home: the first step that has to serve does. Steps do not have to where all is parked (`run: on_demand`), or can
      serve no request of this alias.
    - fallback: a later step does.
    - cloud: a cloud does, though something in the LAN comes before it, even if that is parked.
    - nothing: nobody does.
    - parked: nobody does, and nobody has to.

    `step` counts from 0; None = none serves. `why`: what keeps the backends before `serving`, or all, from serving."""

    name: str
    course: Course
    step: int | None = None
    serving: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that alerts follow. `budgets`: name -> share that is spent, 1 = all of it. `refused_edit`: what is
    wrong with routes.yaml as it is now; None = it is in force. `failed`: part of the gateway -> how often it failed.
    `short`: what the gateway itself has lately lacked. `acceptance`: backend -> share of its draft tokens that were
    accepted lately, only of those that draft; `acceptance_least`: the share below which that is trouble."""

    backends: tuple[BackendView, ...] = ()
    aliases: tuple[AliasView, ...] = ()
    budgets: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    refused_edit: str | None = None
    failed: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    short: tuple[Kind, ...] = ()
    acceptance: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    acceptance_least: float = 0.0


def shown(reason: str) -> str:
    """A reason as anybody may read it: one line, without a backend's own words."""
    return _line(_ITS_WORDS.sub(r"\1", kind_of(reason)))


def shown_to_admin(reason: str) -> str:
    """The same with a backend's own words."""
    return _line(reason)


def _line(text: str) -> str:
    """On one line, without what would move a terminal's cursor, and cut."""
    text = " ".join(text.split())
    text = text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= REASON_MOST else text[: REASON_MOST - 3] + "..."


def view_backend(state: BackendState, now: float) -> BackendView:
    health = state.health
    differs = tuple(shown(line) for line in drift(state, now))
    on_demand = state.backend.run == "on_demand"
    return BackendView(state.name, health.state, shown(health.reason), on_demand, health.half_open, differs)


def view_alias(alias: Alias, states: Mapping[str, BackendState], now: float) -> AliasView:
    """Formats `members_now`: the first step with a steady member is the one that serves."""
    members = members_now(alias, states, now)
    out: list[str] = []
    for step in range(len(alias.steps)):
        here = [member for member in members if member.step == step]
        serving = [member for member in here if member.why is None and member.steady]
        out += [_why(member, now) for member in here if member not in serving]
        if serving:
            course = _course([member for member in members if member.step < step], serving)
            return AliasView(alias.name, course, step, tuple(m.state.name for m in serving), "; ".join(out))
    parked = all(map(_excused, members)) and any(map(_parked, members))
    return AliasView(alias.name, "parked" if parked else "nothing", why="; ".join(out))


def _course(before: Sequence[Member], serving: Sequence[Member]) -> Course:
    """`before`: the members of the steps before the one that serves."""
    all_cloud = all(member.state.backend.cloud for member in serving)
    if all_cloud and not all(member.state.backend.cloud for member in before):
        return "cloud"
    return "home" if all(map(_excused, before)) else "fallback"


def _excused(member: Member) -> bool:
    """Does it not have to serve? Parked as it is meant to be, or unable to serve any request of this alias."""
    return _parked(member) or (member.why is not None and KINDS.get(member.why.kind) in ("incapable", "too_long"))


def _parked(member: Member) -> bool:
    return member.state.backend.run == "on_demand" and _unwell(member)


def _unwell(member: Member) -> bool:
    """Is health what keeps it from serving everybody?"""
    return not member.steady if member.why is None else member.why.kind in UNHEALTHY


def _why(member: Member, now: float) -> str:
    """In the words of its health where that is the reason, else in the planner's."""
    health, why = member.state.health, member.why
    if why is not None and not _unwell(member):
        return f"{member.state.name} {shown(reason_of(why, member.state, now))}"
    reason = "" if _parked(member) else shown(health.reason)
    return f"{member.state.name} is {health.state.value}" + (f" ({reason})" if reason else "")


def view_fleet(
    snapshot: Snapshot, states: Mapping[str, BackendState], now: float
) -> tuple[dict[str, BackendView], dict[str, AliasView]]:
    """The views of all backends and of all aliases that have steps (whose backends the fleet has already)."""
    backends = {name: view_backend(state, now) for name, state in states.items()}
    known = [a for a in snapshot.aliases.values() if a.steps and all(n in states for step in a.steps for n in step)]
    return backends, {alias.name: view_alias(alias, states, now) for alias in known}


class AliasStatusTracker:
    """The latest look at all backends and aliases, and since when each alias has not been served as it should be."""

    def __init__(self, snapshot: Callable[[], Snapshot], states: Callable[[], Mapping[str, BackendState]]) -> None:
        self._snapshot = snapshot
        self._states = states
        self.backends: Mapping[str, BackendView] = {}
        self.aliases: Mapping[str, AliasView] = {}
        self.since: dict[str, float] = {}  # alias -> Unix seconds
        self.away: dict[tuple[str, Course], float] = {}  # (alias, course of AWAY) -> seconds in all
        self._looked = time.monotonic()
        self._cost: dict[str, float] = {}  # alias -> USD since then

    @property
    def alerts(self) -> Alerts:
        """Whom to tell, by the snapshot in force."""
        return self._snapshot().alerts

    def look(self) -> None:
        """Look now. Cheap: called at every change of state, every few seconds, and by whoever wants to show it."""
        now = time.monotonic()
        self._count_away(now)
        self.backends, self.aliases = view_fleet(self._snapshot(), self._states(), now)
        away = [view.name for view in self.aliases.values() if view.course not in ("home", "parked")]
        now = time.time()
        self.since = {name: self.since.get(name, now) for name in away}
        self._cost = {name: self._cost.get(name, 0.0) for name in away}

    def _count_away(self, now: float) -> None:
        """Until now all was as at the latest look."""
        lasted, self._looked = now - self._looked, now
        for view in self.aliases.values():
            if view.course in AWAY:
                key = view.name, view.course
                self.away[key] = self.away.get(key, 0.0) + lasted

    def spent(self, alias: str, usd: float) -> None:
        """Add what a request of this alias has cost."""
        if alias in self._cost:
            self._cost[alias] += usd

    def cost(self, alias: str) -> float | None:
        """USD since failing over; None while the first step serves, or is parked."""
        return self._cost.get(alias)

    def picture(
        self,
        budgets: Mapping[str, float],
        refused_edit: str | None,
        failed: Mapping[str, int] | None = None,
        short: tuple[Kind, ...] = (),
        acceptance: Mapping[str, float] | None = None,
    ) -> Picture:
        """The latest look. Backends that are offered under their own name are in it as backends alone: the same news
        twice is noise."""
        named = self._snapshot().aliases
        aliases = [view for name, view in self.aliases.items() if name in named and not named[name].implicit]
        return Picture(
            tuple(self.backends.values()), tuple(aliases), budgets, refused_edit, failed or {}, short,
            acceptance or {}, self.alerts.draft_acceptance,
        )  # fmt: skip
