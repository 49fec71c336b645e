"""The status of each backend and of each alias: what alerts, `/status`, the page and a gauge show.

The status of an alias is about ordinary requests, without special needs: which step serves them, and is an earlier
step out of order? The planner decides which backend serves (serving.py); this module describes the result.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.config.snapshot import Alias, Snapshot
from gateway.domain.backend import BackendState
from gateway.domain.drift import drift
from gateway.domain.health_state import SERVING, State
from gateway.domain.reason import kind_of
from gateway.routing.plan import KINDS
from gateway.routing.serving import NOT_ENTERED, UNHEALTHY, ChainMember, members_now, reason_of

Course = Literal["home", "fallback", "cloud", "nothing", "parked"]
Load = Literal["loaded", "loading", "unloaded"]

AWAY: frozenset[Course] = frozenset({"fallback", "cloud"})
REASON_MOST = 300  # characters of a reason that are shown

# A backend's own error text may repeat a prompt: only the log and admins get it. Reasons keep it apart
# (domain/reason.py); this pattern is for texts that were composed elsewhere.
_ITS_WORDS = re.compile(
    r"(answered \d{3}(?: with an error)?|failure|model): (?!ended with|answered with|answered 200).*", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class BackendView:
    """The status of one backend. `trial`: one request at a time tests whether it is well again. `drift`: its
    differences from routes.yaml."""

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
    """Which backends serve the ordinary requests of an alias. `course`:

    - home: the first required step serves. A step is not required if all its backends are parked (by the mode in force,
      or with `run: on_demand`), or can serve no request of this alias.
    - fallback: a later step serves.
    - cloud: a cloud serves although an earlier step is in the LAN, even if that step is parked.
    - nothing: no backend serves.
    - parked: no backend serves, and none is required.

    `step` counts from 0; None if none serves. `why`: why the backends before `serving`, or all, do not serve."""

    name: str
    course: Course
    step: int | None = None
    serving: tuple[str, ...] = ()
    why: str = ""


def load_of(alias: Alias, states: Mapping[str, BackendState]) -> Load:
    """Whether a model of the alias is in memory, in the words of llama-server's router."""
    members = [states[name] for step in alias.steps for name in step]
    if any(member.health.state in SERVING and member.reported.loaded is not False for member in members):
        return "loaded"
    loads = any(member.health.state is State.WARMING or member.load is not None for member in members)
    return "loading" if loads else "unloaded"


def public_reason(reason: str) -> str:
    """A reason that every client may read: one line, without a backend's own error text."""
    return shown_to_admin(_ITS_WORDS.sub(r"\1", kind_of(reason)))


def shown_to_admin(reason: str) -> str:
    """A reason on one line, with a backend's own error text; without control characters, cut to REASON_MOST of them."""
    text = " ".join(reason.split())
    text = text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= REASON_MOST else text[: REASON_MOST - 3] + "..."


def view_backend(state: BackendState, now: float) -> BackendView:
    health = state.health
    differs = () if health.set_aside else tuple(public_reason(line) for line in drift(state, now))
    differs = (state.absent, *differs) if state.absent else differs
    on_demand = state.backend.run != "always"
    return BackendView(state.name, health.state, public_reason(health.reason), on_demand, health.half_open, differs)


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
    parked = all(map(_is_not_required, _without_shut_clouds(members))) and any(map(_parked, members))
    return AliasView(alias.name, "parked" if parked else "nothing", why="; ".join(out))


def _without_shut_clouds(members: Sequence[ChainMember]) -> Sequence[ChainMember]:
    """If all local backends are outside the mode in force, the mode keeps the clouds behind them shut: they do not
    count, as the local ones do not."""
    if not all(member.state.health.outside for member in members if not member.state.backend.cloud):
        return members
    return [member for member in members if member.why is None or member.why.kind != NOT_ENTERED]


def _course(before: Sequence[ChainMember], serving: Sequence[ChainMember]) -> Course:
    """`before`: the members of the steps before the one that serves."""
    all_cloud = all(member.state.backend.cloud for member in serving)
    if all_cloud and not all(member.state.backend.cloud for member in before):
        return "cloud"
    return "home" if all(map(_is_not_required, before)) else "fallback"


def _is_not_required(member: ChainMember) -> bool:
    """True for a backend that is not required to serve: it is parked, or can serve no request of this alias."""
    return _parked(member) or (member.why is not None and KINDS.get(member.why.kind) in ("incapable", "too_long"))


def _parked(member: ChainMember) -> bool:
    health = member.state.health
    return health.set_aside or health.leaving or (member.state.backend.run != "always" and _is_unhealthy(member))


def _is_unhealthy(member: ChainMember) -> bool:
    """True if the health of the backend is why it gets no ordinary request."""
    return not member.steady if member.why is None else member.why.kind in UNHEALTHY


def _why(member: ChainMember, now: float) -> str:
    """Why the backend does not serve: the reason of its health where that is the cause, else the planner's."""
    health, why = member.state.health, member.why
    if why is not None and not _is_unhealthy(member):
        return f"{member.state.name} {public_reason(reason_of(why, member.state, now))}"
    reason = "" if _parked(member) and not health.set_aside else public_reason(health.reason)
    return f"{member.state.name} is {health.state.value}" + (f" ({reason})" if reason else "")


def view_fleet(
    snapshot: Snapshot, states: Mapping[str, BackendState], now: float
) -> tuple[dict[str, BackendView], dict[str, AliasView]]:
    """The views of all backends, and of all aliases whose backends are in the fleet already."""
    backends = {name: view_backend(state, now) for name, state in states.items()}
    known = [a for a in snapshot.aliases.values() if a.steps and all(n in states for step in a.steps for n in step)]
    return backends, {alias.name: view_alias(alias, states, now) for alias in known}


class AliasStatusTracker:
    """The latest views of all backends and aliases, and since when each alias has failed over."""

    def __init__(self, snapshot: Callable[[], Snapshot], states: Callable[[], Mapping[str, BackendState]]) -> None:
        self._snapshot = snapshot
        self._states = states
        self.backends: Mapping[str, BackendView] = {}
        self.aliases: Mapping[str, AliasView] = {}
        self.since: dict[str, float] = {}  # alias -> Unix seconds
        self.away: dict[tuple[str, Course], float] = {}  # (alias, course of AWAY) -> total seconds
        self._looked = time.monotonic()
        self._cost: dict[str, float] = {}  # alias -> USD since it failed over
        self.stale = False  # a backend's state has changed since the latest look
        # (alias, USD) spent meanwhile, perhaps by the first answer of a failover
        self._unplaced: list[tuple[str, float]] = []

    def look(self) -> None:
        """Update the views now: every alias is planned anew. Called soon after a change of state, every few seconds,
        and before the status is shown."""
        now = time.monotonic()
        self._count_away(now)
        self.backends, self.aliases = view_fleet(self._snapshot(), self._states(), now)
        away = [view.name for view in self.aliases.values() if view.course not in ("home", "parked")]
        now = time.time()
        self.since = {name: self.since.get(name, now) for name in away}
        self._cost = {name: self._cost.get(name, 0.0) for name in away}
        self.stale = False
        unplaced, self._unplaced = self._unplaced, []
        for alias, usd in unplaced:
            self.spent(alias, usd)

    def _count_away(self, now: float) -> None:
        """Count the time since the latest look, in which each alias had the course seen then."""
        lasted, self._looked = now - self._looked, now
        for view in self.aliases.values():
            if view.course in AWAY:
                key = view.name, view.course
                self.away[key] = self.away.get(key, 0.0) + lasted

    def spent(self, alias: str, usd: float) -> None:
        """Add the cost of a request of this alias."""
        if alias in self._cost:
            self._cost[alias] += usd
        elif self.stale:
            self._unplaced.append((alias, usd))

    def cost(self, alias: str) -> float | None:
        """USD since failing over; None while the first step serves, or is parked."""
        return self._cost.get(alias)
