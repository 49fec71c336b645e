"""An alert, and what alerts follow: plain data; and the alerts of one check as a text for people, a line for each thing
that happened, not for each that it happened to, and the commands that help."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gateway.routing.alias_status import AliasView, BackendView
from gateway.shortage import Kind as Shortage

Kind = Literal[
    "backend_down", "backend_misconfigured", "backend_back", "alias_fallback", "alias_cloud", "alias_nothing",
    "alias_back", "drift", "draft_acceptance", "draft_acceptance_back", "budget", "invalid_edit", "valid_edit",
    "start_failed", "start_works", "engine_restarted", "internal_failure", "shortage", "shortage_over", "test",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Alert:
    """`name`: the backend, alias, budget, part of the gateway, resource or file. `good`: trouble is over. `at`:
    seconds of the caller's clock. `do`: the command that helps; "" = none is known. `cause`: what the alerts of one
    cause have in common, a host or backend; "" = none. `view`: the backend or alias as it was then. `host`: the
    backend's, and how many backends should run there. `took`: seconds that the trouble has lasted; None = it is
    new. `served`: who served an alias meanwhile, and for how much, in words. `usd`: what an alias that is on a
    cloud has cost so far. `still_out`: backends of the same cause that are not back."""

    kind: Kind
    name: str
    text: str
    at: float
    good: bool = False
    do: str = ""
    cause: str = ""
    view: BackendView | AliasView | None = None
    host: tuple[str, int] = ("", 0)
    took: float | None = None
    served: str = ""
    usd: float = 0.0
    still_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetPicture:
    """Everything that alerts follow. `budgets`: name -> share that is spent, 1 = all of it. `refused_edit`: the
    mistakes of the present routes.yaml; None if it is in force. `failed`: part of the gateway -> number of
    failures. `short`: resources that the gateway process has lately lacked. `acceptance`: backend -> share of its
    draft tokens that were accepted lately, only of those that draft; `acceptance_least`: the share below which that
    is trouble. `unstarted`: backend that could not be started for a request -> why. `recovered`: backend that hangs
    -> its last restart by the gateway, in words."""

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
    hosts: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mends: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    usd: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `down_for`: how long a backend must be out to be alerted as down. `settle`: how long any other
    trouble must last; also how long a cause is waited with while more backends fall. `cloud_again`,
    `nothing_again`: until an alias is alerted again. `drift_quiet`: a difference that was not seen for so long is
    alerted when it comes back. `rejected_for`: how long a backend's drafts must be rejected. `failed_again`:
    between two alerts of a part that keeps failing."""

    down_for: float = 60.0
    settle: float = 10.0
    cloud_again: float = 3600.0
    nothing_again: float = 900.0
    drift_quiet: float = 6 * 3600.0
    rejected_for: float = 600.0
    failed_again: float = 3600.0


def duration_text(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


# -- the alerts of one check as a text for people ---------------------------------------------------------------------


NAMED = 8  # names in one line
COMMANDS = 3
_ADDRESS = re.compile(r"\[Errno -?\d+\] | \('[^']*', \d+\)")
_STATES = {"backend_down": "down", "backend_misconfigured": "misconfigured"}
_COURSES = ("alias_nothing", "alias_fallback", "alias_cloud")
_HELP: Mapping[str, str] = {  # kind -> what helps, where the alert itself names nothing
    "drift": "gateway check --live",
    "budget": "gateway usage",
    "invalid_edit": "gateway check",
    "start_failed": "gateway fleet logs {name}",
}


def told(alerts: Sequence[Alert]) -> str:
    """Backends first, then the aliases that they take with them, then the rest; at the end what to do."""
    fallen = [alert for alert in alerts if alert.kind in _STATES]
    aliases = [alert for alert in alerts if alert.kind in _COURSES]
    back = [alert for alert in alerts if alert.kind == "backend_back"]
    home = [alert for alert in alerts if alert.kind == "alias_back"]
    rest = [alert.text for alert in alerts if alert not in (*fallen, *aliases, *back, *home)]
    lines = [*_fallen(fallen), *_aliases(aliases, fallen), *_back(back), *_home(home), *rest]
    return "\n".join([*lines, *_commands(alerts, fallen)])


def _fallen(alerts: Sequence[Alert]) -> Iterable[str]:
    for group in _grouped(alerts, lambda alert: (alert.kind, alert.host)):
        if len(group) == 1 or not group[0].host[0]:
            yield from (alert.text for alert in group)
            continue
        (host, of), state, count = group[0].host, _STATES[group[0].kind], len(group)
        line = f"all {count}" if count == of else f"{count} of {of}"
        line += f" backends on {host} are {state}"
        said = [f"{_names(alike)}: {_reason(alike[0])}" for alike in _grouped(group, _reason)[:NAMED]]
        yield f"{line}. {'; '.join(said)}"


def _reason(alert: Alert) -> str:
    """Without the address, which the host says already and the port makes different for each."""
    return _ADDRESS.sub("", alert.text.partition(f" is {_STATES[alert.kind]}: ")[2])


def _aliases(alerts: Sequence[Alert], fallen: Sequence[Alert]) -> Iterable[str]:
    """Why an alias is not served is left out where a backend of the same cause is named above."""
    causes = {alert.cause for alert in fallen}
    for alert, *others in _grouped(alerts, lambda alert: (alert.kind, alert.took is None, _course(alert, causes))):
        if isinstance(alert.view, AliasView):
            names = [alert.name, *(other.name for other in others)]
            usd = alert.usd + sum(other.usd for other in others)
            yield course_words(names, alert.view, alert.took, usd, why=alert.cause not in causes)


def _course(alert: Alert, causes: Collection[str]) -> Hashable:
    view = alert.view
    return isinstance(view, AliasView) and (view.course, view.serving, alert.cause in causes or view.why)


def course_words(names: Sequence[str], view: AliasView, took: float | None, usd: float, *, why: bool = True) -> str:
    """How these aliases are served. `took`: for how long, where it was told before. `usd`: for how much."""
    one, still = len(names) == 1, "" if took is None else "still "
    after = "" if took is None else f" (for {duration_text(took)})"
    reason = f"; {view.why}" if why else ""
    if view.course == "nothing":
        has = "has" if one else "have"
        return f"{_who(names)} {still}{has} nothing left{after}" + (f": {view.why}" if why else "")
    its, them = ("its", "it") if one else ("their", "them")
    what = f"a cloud, {its} prompts leave the LAN" if view.course == "cloud" else "a fallback"
    verb = "is" if one else "are"
    cost = f", {usd:.2f} USD so far" if usd else ""
    return f"{_who(names)} {verb} {still}on {what}{after}: {' or '.join(view.serving)} serves {them}{cost}{reason}"


def _who(names: Sequence[str]) -> str:
    return f"alias {names[0]}" if len(names) == 1 else f"aliases {_listed(names)}"


def _back(alerts: Sequence[Alert]) -> Iterable[str]:
    for group in _grouped(alerts, lambda alert: (alert.cause, alert.still_out)):
        verb = "is" if len(group) == 1 else "are"
        still = f"; still out: {_listed(group[0].still_out)}" if group[0].still_out else ""
        yield f"{_names(group)} {verb} back, after {_longest(group)}{still}"


def _home(alerts: Sequence[Alert]) -> Iterable[str]:
    for group in _grouped(alerts, lambda alert: (alert.view and _course(alert, ()), alert.served)):
        if len(group) == 1 or not isinstance(group[0].view, AliasView):
            yield from (alert.text for alert in group)
        else:
            names = [alert.name for alert in group]
            yield home_words(names, group[0].view, max(alert.took or 0.0 for alert in group), group[0].served)


def home_words(names: Sequence[str], view: AliasView, took: float, served: str) -> str:
    """That the first step serves these aliases again. `served`: who did meanwhile."""
    verb, them = ("is", "it") if len(names) == 1 else ("are", "them")
    by = f"{' or '.join(view.serving)} serves {them}" if view.serving else f"what {them} needs is parked"
    return f"{_who(names)} {verb} back: {by}, after {duration_text(took)}; meanwhile {served}"


def _longest(alerts: Sequence[Alert]) -> str:
    return duration_text(max(alert.took or 0.0 for alert in alerts))


def _commands(alerts: Sequence[Alert], fallen: Sequence[Alert]) -> Iterable[str]:
    found = [alert.do or _HELP.get(alert.kind, "").format(name=alert.name) for alert in alerts if not alert.good]
    known = list(dict.fromkeys(filter(None, found)))
    if len(known) > COMMANDS and len(fallen) > COMMANDS:
        known = ["gateway fleet status   # the state of each, and its last words"]
    more = f"   (and {len(known) - COMMANDS} more)" if len(known) > COMMANDS else ""
    shown = known[:COMMANDS]
    return [f"What to do: {command}{more if command == shown[-1] else ''}" for command in shown]


def _names(alerts: Sequence[Alert]) -> str:
    return _listed([alert.name for alert in alerts])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _grouped(alerts: Iterable[Alert], key: Callable[[Alert], Hashable]) -> list[list[Alert]]:
    groups: dict[Hashable, list[Alert]] = {}
    for alert in alerts:
        groups.setdefault(key(alert), []).append(alert)
    return list(groups.values())
