"""Where the fleet stands: how each backend is, and who serves each alias. What alerts, `/status` and a gauge show.

Of an alias only health counts here, not single requests: which step would an ordinary one be served by?
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from gateway.config.snapshot import Alerts, Alias, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.drift import drift
from gateway.domain.health_state import SERVING, State
from gateway.domain.reason import kind_of
from gateway.shortage import Kind

Course = Literal["home", "fallback", "cloud", "nothing", "parked"]

AWAY: frozenset[Course] = frozenset({"fallback", "cloud"})
REASON_MOST = 300  # characters of a reason that are shown

# A backend's own words may repeat what it was asked: they are for the log and for admins. Reasons tell them apart
# (health/reason.py); this is for texts that were put together elsewhere.
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

    @property
    def excused(self) -> bool:
        """Away as it is meant to be (`run: on_demand`): its absence is no failure."""
        return self.on_demand and not self.serves


@dataclass(frozen=True, slots=True)
class AliasView:
    """`course`: home (its first step serves; steps of which all is parked do not count), fallback, cloud (one serves,
    though something in the LAN comes before it, even if that is parked), nothing (nobody serves it), parked (nobody,
    and nobody has to). `step` counts from 0; None = none serves. `why`: what keeps those before, or all."""

    name: str
    course: Course
    step: int | None = None
    serving: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that alerts follow. `budgets`: name -> share that is spent, 1 = all of it. `refused_edit`: what is
    wrong with routes.yaml as it is now; None = it is in force. `failed`: part of the gateway -> how often it failed.
    `short`: what the gateway itself has lately lacked."""

    backends: tuple[BackendView, ...] = ()
    aliases: tuple[AliasView, ...] = ()
    budgets: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    refused_edit: str | None = None
    failed: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    short: tuple[Kind, ...] = ()


def shown(reason: str) -> str:
    """A reason as it may be told to others: one line, without a backend's own words."""
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


def view_alias(alias: Alias, views: Mapping[str, BackendView], clouds: frozenset[str]) -> AliasView:
    """Which step serves it. A cloud is entered only when what stands before it is out, and the alias allows that."""
    kept: list[str] = []  # why those before do not serve
    local_before = False
    home = True  # no step so far had to serve
    for index, step in enumerate(alias.steps):
        serving = []
        for name in step:
            cloud = name in clouds
            if cloud and local_before and "down" not in alias.cloud_when:
                kept.append(f"{name} may not be entered (cloud_when)")
            elif views[name].serves:
                serving.append(name)
            else:
                kept.append(_why(views[name]))
        if serving:
            abroad = local_before and clouds.issuperset(serving)
            course: Course = "cloud" if abroad else "home" if home else "fallback"
            return AliasView(alias.name, course, index, tuple(serving), "; ".join(kept))
        local_before = local_before or not clouds.issuperset(step)
        home = home and all(views[name].excused for name in step)
    return AliasView(alias.name, "parked" if home else "nothing", why="; ".join(kept))


def _why(view: BackendView) -> str:
    return f"{view.name} is {view.state.value}" + (f" ({view.reason})" if view.reason and not view.excused else "")


def look(
    snapshot: Snapshot, states: Mapping[str, BackendState], now: float
) -> tuple[dict[str, BackendView], list[AliasView]]:
    """The views of all backends and of all aliases that have steps (whose backends the fleet has already)."""
    views = {name: view_backend(state, now) for name, state in states.items()}
    clouds = frozenset(name for name, backend in snapshot.backends.items() if backend.cloud)
    known = [a for a in snapshot.aliases.values() if a.steps and all(n in views for step in a.steps for n in step)]
    return views, [view_alias(alias, views, clouds) for alias in known]


class Standing:
    """The latest look, and since when each alias has not been served by its first step."""

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
        self._count_away(time.monotonic())
        self.backends, aliases = look(self._snapshot(), self._states(), time.monotonic())
        self.aliases = {view.name: view for view in aliases}
        now = time.time()
        away = [view.name for view in aliases if view.course not in ("home", "parked")]
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
        """A request of this alias has cost so much."""
        if alias in self._cost:
            self._cost[alias] += usd

    def cost(self, alias: str) -> float | None:
        """USD since its first step ceased to serve it; None = it does, or need not."""
        return self._cost.get(alias)

    def picture(
        self,
        budgets: Mapping[str, float],
        refused_edit: str | None,
        failed: Mapping[str, int] | None = None,
        short: tuple[Kind, ...] = (),
    ) -> Picture:
        """The latest look. Backends that are offered under their own name are in it as backends alone: the same news
        twice is noise."""
        named = self._snapshot().aliases
        aliases = [view for name, view in self.aliases.items() if name in named and not named[name].implicit]
        return Picture(tuple(self.backends.values()), tuple(aliases), budgets, refused_edit, failed or {}, short)
