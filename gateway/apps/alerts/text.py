"""The alerts of one check as a text for people: a line for each thing that happened, not for each that it happened to,
and the commands that help."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

from gateway.apps.alerts.alert import Alert, duration_text
from gateway.routing.alias_status import AliasView

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
