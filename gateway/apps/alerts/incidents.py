"""Backends and aliases in trouble, told once for each cause: backends that fall together, on one host or at one time,
are told together with the aliases that they take with them, and their return when the last of them is back.

A state machine, with time passed in and no effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.apps.alerts.alert import Alert, FleetPicture, Kind, Timing, course_words, duration_text, home_words
from gateway.domain.health_state import WELL, State
from gateway.routing.alias_status import AliasView, BackendView

_KINDS: Mapping[str, Kind] = {
    "down": "backend_down",
    "misconfigured": "backend_misconfigured",
    "fallback": "alias_fallback",
    "cloud": "alias_cloud",
    "nothing": "alias_nothing",
}
_BETTER = {("nothing", "fallback"), ("cloud", "fallback")}  # an alias that changes so is on its way back


@dataclass(slots=True, eq=False)
class Incident:
    """What has one cause. `name`: a host, backend or alias."""

    name: str


@dataclass(slots=True, eq=False)
class AlertSubject:
    """A backend or alias, and what was alerted of it last. `trouble` "" = none, or that it was over."""

    name: str
    trouble: str = ""
    at: float = 0.0  # when it was alerted
    began: float = 0.0  # when that trouble began
    differs_since: float | None = None  # since when the state differs from the alert
    out_since: float | None = None  # of a backend: since when it is down, or on its way back
    coming: bool = False  # of a backend: it is on its way back
    incident: Incident | None = None
    served: dict[str, None] = field(default_factory=dict)  # of an alias: who has served it since
    usd: float = 0.0  # of an alias: what that has cost


class Change(NamedTuple):
    """`trouble` is what is to be alerted next; "" = that it is over. `since`, `due`: when it began, and has lasted."""

    subject: AlertSubject
    view: BackendView | AliasView
    trouble: str
    since: float
    due: float

    @property
    def good(self) -> bool:
        return not self.trouble or (self.subject.trouble, self.trouble) in _BETTER


class Incidents:
    """The incidents of one gateway so far."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self._backends: dict[str, AlertSubject] = {}
        self._aliases: dict[str, AlertSubject] = {}

    def step(self, now: float, picture: FleetPicture) -> list[Alert]:
        """The alerts that are due at `now`."""
        self._backends = {one.name: self._backends.get(one.name) or AlertSubject(one.name) for one in picture.backends}
        self._aliases = {one.name: self._aliases.get(one.name) or AlertSubject(one.name) for one in picture.aliases}
        backends = [change for view in picture.backends if (change := self._of_backend(view, now)) is not None]
        aliases = [change for view in picture.aliases if (change := self._of_alias(view, picture, now)) is not None]
        fallen = self._fallen(backends, aliases, picture, now)
        over = self._over([*backends, *aliases], now)
        texts = _Texts(picture, now)
        return [*self._record_falls(fallen, texts), *self._record_ends(over, texts), *self._again(picture, texts)]

    # -- what has changed -----------------------------------------------------------------------------------------

    def _of_backend(self, view: BackendView, now: float) -> Change | None:
        last, state, settle = self._backends[view.name], view.state, self.timing.settle
        last.coming = state is State.WARMING or view.trial
        out = state is State.DOWN or last.coming
        last.out_since = (now if last.out_since is None else last.out_since) if out else None
        if view.on_demand or state is State.PARKED:
            last.trouble = ""
        elif state is State.DOWN and last.trouble != "down":
            # Counted from the first failure: a backend that fails again while it starts has been down all the time.
            last.differs_since, since = None, last.out_since or 0.0
            return Change(last, view, "down", since, since + self.timing.down_for)
        elif state is State.MISCONFIGURED and last.trouble != "misconfigured":
            since = _differs_since(last, now)
            return Change(last, view, "misconfigured", since, since + settle)
        elif state in WELL and last.trouble:
            since = _differs_since(last, now)
            return Change(last, view, "", since, since)
        last.differs_since = None
        return None

    def _of_alias(self, view: AliasView, picture: FleetPicture, now: float) -> Change | None:
        last = self._aliases[view.name]
        trouble = "" if view.course in ("home", "parked") else view.course
        if trouble:
            last.served.update(dict.fromkeys(view.serving))
            last.usd = picture.usd.get(view.name, last.usd)
        elif not last.trouble:
            last.served, last.usd = {}, 0.0
        if trouble == last.trouble:
            last.differs_since = None
            return None
        since = _differs_since(last, now)
        return Change(last, view, trouble, since, since + self.timing.settle)

    # -- what is told of it ---------------------------------------------------------------------------------------

    def _fallen(
        self, backends: Sequence[Change], aliases: Sequence[Change], picture: FleetPicture, now: float
    ) -> list[Change]:
        """What is due, with all else that has the same cause. A backend that fell just now is waited with a little:
        others may follow it."""
        fallen = [change for change in backends if not change.good]
        troubled = [change for change in aliases if not change.good]
        due = [change for change in (*fallen, *troubled) if change.due <= now]
        if not due:
            return []
        settle, newest = self.timing.settle, max((change.since for change in fallen), default=float("-inf"))
        if now - newest < settle and now - min(change.due for change in due) < 2 * settle:
            return []
        blamed = {name for change in due if change in troubled for name in picture.before.get(change.view.name, ())}
        first = [change for change in fallen if change in due or change.view.name in blamed]
        hosts = {host for change in first if (host := picture.hosts.get(change.view.name))}
        together = [
            change
            for change in fallen
            if change in first
            or picture.hosts.get(change.view.name) in hosts
            or any(abs(change.since - other.since) <= 3 * settle for other in first)
        ]
        names = {change.view.name for change in together}
        taken = [c for c in troubled if c in due or not names.isdisjoint(picture.before.get(c.view.name, ()))]
        self._join(together, taken, picture)
        return [*together, *taken]

    def _join(self, backends: Sequence[Change], aliases: Sequence[Change], picture: FleetPicture) -> None:
        """Give what is told now its incident: one that is open on the same host, or a new one."""
        names = [change.view.name for change in backends]
        hosts = {picture.hosts.get(name) for name in names} - {None}
        if names:
            mates = (s for name, s in self._backends.items() if s.trouble and picture.hosts.get(name) in hosts)
            one = next((s.incident for s in mates), None)
            host = picture.hosts.get(names[0], "")
            one = one or Incident(host if len(names) > 1 and host else names[0])
            for change in backends:
                change.subject.incident = one
        for change in aliases:
            blamed = [
                self._backends[name] for name in picture.before.get(change.view.name, ()) if name in self._backends
            ]
            now = [subject for subject in blamed if subject.name in names]
            cause = next((s for s in (*now, *blamed) if s.incident is not None and (s in now or s.trouble)), None)
            change.subject.incident = cause.incident if cause is not None else Incident(change.view.name)

    def _over(self, changes: Iterable[Change], now: float) -> list[Change]:
        """The troubles whose end is told now: of an incident all together, or, while something of it stays out, those
        that have ended. What is on its way back is waited for."""
        ended: dict[Incident | None, list[Change]] = {}
        for change in changes:
            if change.good and change.due <= now:
                ended.setdefault(change.subject.incident, []).append(change)
        found: list[Change] = []
        for incident, parts in ended.items():
            rest = self._rest(incident, parts)
            newest = max(change.since for change in parts)
            if not rest or (now - newest >= self.timing.down_for and not any(subject.coming for subject in rest)):
                found += parts
        return found

    def _rest(self, incident: Incident | None, ended: Sequence[Change]) -> list[AlertSubject]:
        over = [change.subject for change in ended]
        everything = (*self._backends.values(), *self._aliases.values())
        return [s for s in everything if s.trouble and s.incident is incident and s not in over]

    def _record_falls(self, changes: Sequence[Change], texts: _Texts) -> Iterator[Alert]:
        for change in changes:
            last = change.subject
            if not last.trouble:
                last.began = change.since
            last.trouble, last.at, last.differs_since = change.trouble, texts.now, None
            yield texts.of_trouble(change.view, last)

    def _record_ends(self, changes: Sequence[Change], texts: _Texts) -> Iterator[Alert]:
        rests = [self._rest(change.subject.incident, changes) for change in changes]
        for change, rest in zip(changes, rests, strict=True):
            last = change.subject
            last.trouble, last.at, last.differs_since = change.trouble, texts.now, None
            if change.trouble:
                yield texts.of_trouble(change.view, last)
            else:
                out = tuple(subject.name for subject in rest if subject.name in self._backends)
                yield texts.of_end(change, out)

    def _again(self, picture: FleetPicture, texts: _Texts) -> Iterator[Alert]:
        every = {"cloud": self.timing.cloud_again, "nothing": self.timing.nothing_again}
        for view in picture.aliases:
            last = self._aliases[view.name]
            if last.trouble == view.course in every and texts.now - last.at >= every[view.course]:
                last.at = texts.now
                yield texts.of_trouble(view, last, texts.now - last.began)


class _Texts:
    """The alerts of one step."""

    def __init__(self, picture: FleetPicture, now: float) -> None:
        self.now, self._picture = now, picture
        self._wanted = [v for v in picture.backends if not v.on_demand and v.state is not State.PARKED]

    def of_trouble(self, view: BackendView | AliasView, subject: AlertSubject, took: float | None = None) -> Alert:
        kind, cause = _KINDS[subject.trouble], subject.incident.name if subject.incident is not None else ""
        if isinstance(view, AliasView):
            do = f"gateway explain {view.name}" if cause == view.name else ""
            usd = subject.usd if view.course == "cloud" else 0.0
            text = course_words([view.name], view, took, usd)
            return Alert(kind, view.name, text, self.now, do=do, cause=cause, view=view, took=took, usd=usd)
        likely, do = self._picture.mends.get(view.name, ("", ""))
        text = f"{view.name} is {subject.trouble}: {view.reason}" + (f". Likely: {likely}" if likely else "")
        host = self._picture.hosts.get(view.name, "")
        mates = [other for other in self._wanted if self._picture.hosts.get(other.name) == host]
        if not do and len(mates) > 1 and all(mate.state is State.DOWN for mate in mates):
            do = f"ping {address}" if (address := self._picture.addresses.get(host)) else ""
        do = do or ("gateway check --live" if subject.trouble == "misconfigured" else f"gateway probe {view.name}")
        return Alert(kind, view.name, text, self.now, do=do, cause=cause, view=view, host=(host, len(mates)))

    def of_end(self, change: Change, still_out: tuple[str, ...]) -> Alert:
        last, view, took = change.subject, change.view, change.since - change.subject.began
        kind: Kind = "alias_back" if isinstance(view, AliasView) else "backend_back"
        served = f"{' and '.join(last.served)} served" if last.served else "nobody did"
        served += f", for {last.usd:.2f} USD" if last.usd else ""
        text = f"{view.name} is back, after {duration_text(took)}"
        text = home_words([view.name], view, took, served) if isinstance(view, AliasView) else text
        cause = last.incident.name if last.incident is not None else ""
        return Alert(kind, view.name, text, self.now, True, "", cause, view, ("", 0), took, served, 0.0, still_out)


def _differs_since(last: AlertSubject, now: float) -> float:
    if last.differs_since is None:
        last.differs_since = now
    return last.differs_since
