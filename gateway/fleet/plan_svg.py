"""The memory plan as a picture: one stacked bar per node, of weights, cache, overhead and what stays free.

Plain SVG with text, no script and nothing fetched. Its colours follow `prefers-color-scheme`, and every class starts
with `plan-`, so it can stand in a page as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap
from typing import Literal
from xml.sax.saxutils import escape

from gateway.fleet.demand import Demand, Verdict
from gateway.fleet.plan import FleetPlan, NodePlan
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
_STYLE = """
.plan-text{fill:#1c2430}.plan-soft{fill:#5a6472}.plan-in{fill:#ffffff}.plan-on{fill:#1c2430}
.plan-weights{fill:#2f5fa8}.plan-cache{fill:#2a7f6d}.plan-held{fill:#6a5a9c}.plan-overhead{fill:#8a6d3b}
.plan-free{fill:#e3e8ee;stroke:#a8b2be}.plan-no{fill:#b3261e}.plan-barely{fill:#8a5a00}
.plan-yes{fill:#1f6f43}.plan-unknown{fill:#5a6472}
@media (prefers-color-scheme:dark){.plan-text,.plan-on{fill:#e6ebf2}.plan-soft,.plan-unknown{fill:#a3adba}
.plan-weights{fill:#3f73c4}.plan-cache{fill:#2f8f7b}.plan-free{fill:#2a323d;stroke:#5a6472}
.plan-no{fill:#ff8a80}.plan-barely{fill:#ffca6b}.plan-yes{fill:#7fd6a4}}
"""


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


def plan_svg(fleet: FleetPlan) -> str:
    """The picture as the text of an SVG document."""
    body, top = [_legend(_MARGIN)], _MARGIN + 2 * _LINE
    for node in fleet.nodes.values():
        drawn, top = _node(node, top)
        body += drawn
    mode = f"mode {fleet.mode}" if fleet.mode is not None else "what always runs"
    title = _text(f"Memory of the fleet: {mode}")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}" '
    head += 'role="img" font-family="system-ui, sans-serif" font-size="13">'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{_STYLE}</style>", *body, "</svg>", ""])


def _legend(top: int) -> str:
    parts, left = [], _MARGIN
    for kind, name in _SHOWN.items():
        parts.append(f'<rect class="plan-{kind}" x="{left}" y="{top}" width="12" height="12"/>')
        parts.append(f'<text class="plan-soft" x="{left + 18}" y="{top + 11}">{name}</text>')
        left += 18 + 7 * len(name) + 24
    return "\n".join(parts)


def _node(node: NodePlan, top: int) -> tuple[list[str], int]:
    """(elements, where the next node starts)."""
    size = f"{node.memory:.2f} GiB" if node.memory is not None else "memory not known"
    head = f'<tspan font-weight="600">{_text(node.name)}</tspan> <tspan class="plan-soft">{size}</tspan>'
    head += f' <tspan class="plan-{node.fits}">{_SIGNS[node.fits]}</tspan>'
    drawn = [f'<text class="plan-text" x="{_MARGIN}" y="{top + 13}">{head}</text>']
    top += _LINE + 4
    if node.memory is not None:
        drawn += _bar(node, node.memory, top)
        top += _BAR + 4
    lines = wrap(visible(node.reason), _LETTERS)
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], f"{lines[_MOST_LINES - 1]} ..."]
    for line in lines:
        drawn.append(f'<text class="plan-soft" font-size="12" x="{_MARGIN}" y="{top + 12}">{_text(line)}</text>')
        top += _LINE
    return drawn, top + _LINE


def _bar(node: NodePlan, memory: float, top: int) -> list[str]:
    parts = segments(node)
    scale = (_WIDTH - 2 * _MARGIN) / max(memory, sum(part.gib for part in parts))
    drawn, left = [], float(_MARGIN)
    for part in parts:
        width = part.gib * scale
        drawn.append(_segment(part, left, top, width))
        left += width
    return drawn


def _segment(part: Segment, left: float, top: int, width: float) -> str:
    name = " ".join(filter(None, (part.backend, _SHOWN[part.kind])))
    box = f'x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}"'
    rect = f'<rect class="plan-{part.kind}" {box}><title>{_text(name)}: {part.gib:.1f} GiB</title></rect>'
    label = next((text for text in _labels(part) if len(text) * _LETTER < width), None)
    if label is None:
        return rect
    colour = "on" if part.kind == "free" else "in"
    middle = f'x="{left + width / 2:.1f}" y="{top + _BAR // 2 + 5}" text-anchor="middle"'
    return f'{rect}\n<text class="plan-{colour}" font-size="12" pointer-events="none" {middle}>{_text(label)}</text>'


def _labels(part: Segment) -> tuple[str, ...]:
    """From long to short: the first that is narrower than the segment is written."""
    gib = f"{part.gib:.1f}"
    return (f"{part.backend} {_SHOWN[part.kind]} {gib} GiB".strip(), f"{part.backend} {gib}".strip(), gib)


def _text(text: str) -> str:
    return escape(visible(text))
