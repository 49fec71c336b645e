"""The memory plan as a picture: one stacked bar per node, of weights, cache, overhead and what stays free.

Plain SVG with text (plan.svg.j2), no script and nothing fetched. Text has the colour of what is around it, which the
picture's own style sets by `prefers-color-scheme`; the picture is whole without that style, too, where a page allows
none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Literal

from gateway.apps.control.memory.arithmetic import Demand, Verdict
from gateway.apps.control.memory.plan import FleetPlan, NodePlan
from gateway.printable import visible

Kind = Literal["weights", "cache", "held", "overhead", "free"]

_WIDTH, _MARGIN, _BAR, _LINE = 800, 16, 36, 18
_LETTERS = 118  # of the small text in a line
_LETTER = 7  # pixels of a letter inside the bar, at most
_MOST_LINES = 6  # of a reason
_SHOWN: dict[Kind, str] = {
    "weights": "weights",
    "cache": "KV cache",
    "held": "held, parts not known",
    "overhead": "overhead and system",
    "free": "free",
}
_SIGNS: dict[Verdict, str] = {"yes": "fits", "barely": "barely fits", "no": "does not fit", "unknown": "not known"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a node's bar. `backend` "" where it is of no single one."""

    kind: Kind
    backend: str
    gib: float


def segments(node: NodePlan) -> list[Segment]:
    """The bar of a node from left to right; together they are its memory. Empty where that is not known. Backends that
    cannot start there are left out."""
    if node.memory is None:
        return []
    parts: list[Segment] = []
    for demand in node.demands.values():
        if demand.backend not in node.failed:
            parts += _parts(demand)
    free = node.free or 0.0
    overhead = node.memory - free - sum(part.gib for part in parts)
    parts.append(Segment("overhead", "", max(overhead, 0.0)))
    return [part for part in [*parts, Segment("free", "", free)] if part.gib > 0]


def _parts(demand: Demand) -> list[Segment]:
    held = demand.resident or 0.0
    if demand.weights is None or demand.kv is None:
        return [Segment("held", demand.backend, held)]
    weights = min(demand.weights, held)
    cache = min(demand.kv, held - weights)
    return [Segment("weights", demand.backend, weights), Segment("cache", demand.backend, cache)]


# -- drawing ----------------------------------------------------------------------------------------------------------


def plan_svg(fleet: FleetPlan, *, style: bool = True) -> str:
    """The picture as the text of an SVG document. `style` False: the page around it has the colours."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    nodes, top = [], _MARGIN + 2 * _LINE
    for node in fleet.nodes.values():
        reason = wrap(visible(node.reason), _LETTERS)
        if len(reason) > _MOST_LINES:
            reason = [*reason[: _MOST_LINES - 1], f"{reason[_MOST_LINES - 1]} ..."]
        nodes.append((node, top, _placed(node), reason))
        top += 2 * _LINE + 4 + (_BAR + 4 if node.memory is not None else 0) + _LINE * len(reason)
    kinds = {part.kind for node in fleet.nodes.values() for part in segments(node)}
    loader = FileSystemLoader(Path(__file__).parent)
    templates = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    templates.filters["visible"] = visible
    given = {"fleet": fleet, "nodes": nodes, "kinds": kinds, "style": style, "shown": _SHOWN, "signs": _SIGNS}
    return templates.get_template("plan.svg.j2").render(given, width=_WIDTH, height=top, margin=_MARGIN, bar=_BAR)


def _placed(node: NodePlan) -> list[tuple[Segment, float, float, str]]:
    """Each segment with its left edge, its width and what is written in it: the longest text that fits."""
    parts, left, found = segments(node), float(_MARGIN), []
    scale = (_WIDTH - 2 * _MARGIN) / max(node.memory or 0.0, sum(part.gib for part in parts), 0.001)
    for part in parts:
        width, gib = part.gib * scale, f"{part.gib:.1f}"
        texts = f"{part.backend} {_SHOWN[part.kind]} {gib} GiB".strip(), f"{part.backend} {gib}".strip(), gib
        found.append((part, left, width, next((text for text in texts if len(text) * _LETTER < width), "")))
        left += width
    return found
