"""What is wrong, from the answer of `/status`, grouped by cause as on the status page. Pure.

Any field may be missing, as in `top_view`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.apps.console.status_fields import Fields, ago, count, mapping, mapping_of, number, one_line, strings

ALARM, WARNING = "bold white on red", "bold black on yellow"
SPENT = 0.8  # share of a budget from which on it is shown
OUT = ("down", "misconfigured", "suspect", "warming")
TOGETHER = 30.0  # seconds within which backends of one node fall by one cause


@dataclass
class Outage:
    """Backends that are out for one reason. `last`: when the latest of them fell, Unix seconds. `aliases`: those that
    they take along, by what these are on: "" = nobody serves them, else the names of who does."""

    state: str
    node: str
    names: list[str]
    since: float
    last: float
    aliases: dict[str, list[str]] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        return self.state in ("down", "misconfigured") or "" in self.aliases

    def headline(self, status: Fields) -> str:
        """`qwen36 is down for 12 min: NOTHING serves coder; writer is on a FALLBACK: qwen8b answers`"""
        now = status.get("now")
        lasting = f" for {ago(now - self.since)}" if number(now) and self.since else ""
        taken = [
            f"{names(found)} {is_or_are(found)} on a FALLBACK: {by} answers" if by else f"NOTHING serves {names(found)}"
            for by, found in sorted(self.aliases.items())
        ]
        return f"{self._who(status)}{lasting}" + (f": {'; '.join(taken)}" if taken else "")

    def _who(self, status: Fields) -> str:
        if self.state == "down" and _is_down(status, self.node):
            return f"node {self.node} is down, and with it {names(self.names)}"
        return f"{names(self.names)} {is_or_are(self.names)} {self.state}"

    def advice(self, status: Fields) -> str:
        """`What to do: gateway fleet logs qwen36. /health: Connection refused. Likely: no memory is left`"""
        known = [mapping(status.get("backends")).get(name, {}) for name in self.names]
        told = [mapping_of(one, "trouble") for one in known]
        text = "; ".join(dict.fromkeys(one_line(one.get("reason") or "") for one in known))
        if len(self.names) == 1 and (likely := told[0].get("cause")):
            text += f". Likely: {one_line(likely)}"
        mends = list(dict.fromkeys(one_line(one["mend"]) for one in told if one.get("mend")))[:2]
        if not mends and self.state == "warming":
            return text
        look = "gateway fleet status"
        if len(self.names) == 1:
            steered = known[0].get("nodes") and known[0].get("engine") == "vllm" and self.state == "down"
            look = f"gateway {'fleet logs' if steered else 'probe'} {self.names[0]}"
        if _is_down(status, self.node):
            look = "see whether the machine runs, and its network"
        return f"What to do: {'; '.join(mends) or look}. {text}"


def causes_of(status: Fields) -> list[Outage]:
    """The causes, the worst first. Those of one node that fell together have one."""
    found: list[Outage] = []
    out = [(name, one) for name, one in mapping(status.get("backends")).items() if one.get("state") in OUT]
    for name, one in sorted(out, key=lambda item: count(item[1].get("since"))):
        state, since, nodes = str(one["state"]), count(one.get("since")), strings(one.get("nodes"))
        node = nodes[0] if nodes else ""
        same = next((c for c in found if node and state == "down" and _with(c, node, since, status)), None)
        if same is None:
            found.append(Outage(state, node, [name], since, since))
        else:
            same.names.append(name)
            same.last = since
    return found


def _with(cause: Outage, node: str, since: float, status: Fields) -> bool:
    return (cause.state, cause.node) == ("down", node) and (_is_down(status, node) or since - cause.last <= TOGETHER)


def _is_down(status: Fields, node: str) -> bool:
    return mapping(status.get("nodes")).get(node, {}).get("state") == "down"


def cause_of(causes: Iterable[Outage], alias: Mapping[str, Any]) -> Outage | None:
    """The first backend of the chain before the one that serves it, which is out; None where none is."""
    steps, step = alias.get("steps"), alias.get("step")
    before = steps[: int(step) - 1] if isinstance(steps, list) and number(step) else steps
    ranked = [name for rank in before if isinstance(rank, list) for name in rank] if isinstance(before, list) else []
    return next((cause for name in ranked for cause in causes if name in cause.names), None)


def names(found: Iterable[str]) -> str:
    return ", ".join(one_line(name) for name in found)


def is_or_are(found: list[str]) -> str:
    return "is" if len(found) == 1 else "are"


# -- all that is wrong ----------------------------------------------------------------------------------------------


def troubles(status: Fields, gone: str | None, age: float) -> Iterable[tuple[str, str]]:
    """(text, style) of each problem. `gone`: why there is no newer status, which is `age` seconds old."""
    if gone is not None:
        seen = f"; what follows is {ago(age)} old" if status else ""
        yield f"the gateway {gone}; trying again{seen}", ALARM
    if status.get("stopping"):
        yield "the gateway is stopping: it takes no new requests", WARNING
    if mapping_of(status, "shared").get("joined") is False:
        yield alone(status["shared"], status.get("now")), WARNING
    if error := mapping_of(status, "config").get("error"):
        yield "routes.yaml was edited and is refused; what was in force still is:", ALARM
        yield f"  {one_line(error)}", "none"
    yield from causes_and_aliases(status)
    for name, share in mapping_of(status, "budgets").items():
        if number(share) and share >= SPENT:
            yield f"the budget of {name} is {share:.0%} spent", ALARM if share >= 1 else WARNING


def causes_and_aliases(status: Fields) -> Iterable[tuple[str, str]]:
    """What is out, with the aliases that it takes along and what to do; then the aliases that are away for another
    reason."""
    causes, others = causes_of(status), list[tuple[str, str]]()
    named = {name: alias for name, alias in mapping(status.get("aliases")).items() if not alias.get("implicit")}
    for course, style in (("nothing", ALARM), ("cloud", ALARM), ("fallback", WARNING)):
        for name, alias in named.items():
            if alias.get("course") == course:
                if course != "cloud" and (cause := cause_of(causes, alias)) is not None:
                    cause.aliases.setdefault(", ".join(strings(alias.get("serving"))), []).append(name)
                else:
                    others.append((away(name, alias, status.get("now")), style))
    for cause in sorted(causes, key=lambda one: not one.bad):
        if cause.bad or cause.aliases:
            yield cause.headline(status), ALARM if cause.bad else WARNING
            yield f"  {cause.advice(status)}", "none"
    yield from others


def alone(shared: Fields, now: Any) -> str:
    """`Redis is away for 12 min: this gateway goes on alone, with its share of the slots (1 of 3 gateways)`"""
    since, gateways = shared.get("since"), shared.get("gateways")
    lasting = f" for {ago(now - since)}" if number(since) and number(now) else ""
    share = f" (1 of {gateways} gateways)" if number(gateways) else ""
    return f"Redis is away{lasting}: this gateway goes on alone, with its share of the slots{share}"


def away(name: str, alias: Fields, now: Any) -> str:
    """`writer is on a FALLBACK for 12 min: qwen8b answers. gemma4 is down (...)`"""
    since = alias.get("since")
    lasting = f" for {ago(now - since)}" if number(since) and number(now) else ""
    why = one_line(alias.get("why") or "")
    who = ", ".join(strings(alias.get("serving")))
    course = alias.get("course")
    if course == "nothing":
        return f"NOTHING serves {name}{lasting}: {why}"
    usd = alias.get("usd")
    cost = f", {usd:,.2f} USD so far" if number(usd) and usd else ""
    where = "the CLOUD" if course == "cloud" else "a FALLBACK"
    return f"{name} is on {where}{lasting}{cost}: {who} answers. {why}"
