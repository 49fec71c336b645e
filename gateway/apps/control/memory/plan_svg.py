"""The memory plan as a picture: one stacked bar per node, of weights, cache, overhead and what stays free.

Plain SVG with text, no script and nothing fetched. Text has the colour of what is around it, which the picture's own
style sets by `prefers-color-scheme`; the picture is whole without that style, too, where a page allows none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from textwrap import wrap
from typing import Literal
from xml.sax.saxutils import escape

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
_FILLS: dict[Kind, str] = {
    "weights": 'fill="#3568b5"',
    "cache": 'fill="#2a806d"',
    "held": 'fill="#6a5a9c"',
    "overhead": 'fill="#8a6d3b"',
    "free": 'fill="currentColor" fill-opacity="0.1" stroke="currentColor" stroke-opacity="0.4"',
}
_STYLE = """
.plan-svg{color:#1c2430}.plan-no{fill:#b3261e}.plan-barely{fill:#8a5a00}.plan-yes{fill:#1f6f43}
@media (prefers-color-scheme:dark){.plan-svg{color:#e6ebf2}
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


def plan_svg(fleet: FleetPlan, *, style: bool = True) -> str:
    """The picture as the text of an SVG document. `style` False: the page around it has the colours."""
    kinds = {part.kind for node in fleet.nodes.values() for part in segments(node)}
    body, top = [_legend(kinds, _MARGIN)], _MARGIN + 2 * _LINE
    for node in fleet.nodes.values():
        drawn, top = _node(node, top)
        body += drawn
    mode = f"mode {fleet.mode}" if fleet.mode is not None else "what always runs"
    title = _text(f"Memory of the fleet: {mode}")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}" '
    head += 'class="plan-svg" role="img" fill="currentColor" font-family="system-ui, sans-serif" font-size="13">'
    styles = [f"<style>{_STYLE}</style>"] if style else []
    return "\n".join([head, f"<title>{title}</title>", *styles, *body, "</svg>", ""])


def _legend(kinds: Collection[Kind], top: int) -> str:
    parts, left = [], _MARGIN
    for kind in (kind for kind in _SHOWN if kind in kinds):
        parts.append(f'<rect {_FILLS[kind]} x="{left}" y="{top}" width="12" height="12"/>')
        parts.append(f'<text x="{left + 18}" y="{top + 11}">{_SHOWN[kind]}</text>')
        left += 18 + 7 * len(_SHOWN[kind]) + 24
    return "\n".join(parts)


def _node(node: NodePlan, top: int) -> tuple[list[str], int]:
    """(elements, where the next node starts)."""
    size = f"{node.memory:.2f} GiB" if node.memory is not None else "memory not known"
    head = f'<tspan font-weight="600">{_text(node.name)}</tspan> {size}'
    head += f' <tspan class="plan-{node.fits}">{_SIGNS[node.fits]}</tspan>'
    drawn = [f'<text x="{_MARGIN}" y="{top + 13}">{head}</text>']
    top += _LINE + 4
    if node.memory is not None:
        drawn += _bar(node, node.memory, top)
        top += _BAR + 4
    lines = wrap(visible(node.reason), _LETTERS)
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], f"{lines[_MOST_LINES - 1]} ..."]
    for line in lines:
        drawn.append(f'<text font-size="12" x="{_MARGIN}" y="{top + 12}">{_text(line)}</text>')
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
    rect = f"<rect {_FILLS[part.kind]} {box}><title>{_text(name)}: {part.gib:.1f} GiB</title></rect>"
    label = next((text for text in _labels(part) if len(text) * _LETTER < width), None)
    if label is None:
        return rect
    colour = "" if part.kind == "free" else ' fill="#ffffff"'
    middle = f'x="{left + width / 2:.1f}" y="{top + _BAR // 2 + 5}" text-anchor="middle"'
    return f'{rect}\n<text{colour} font-size="12" pointer-events="none" {middle}>{_text(label)}</text>'


def _labels(part: Segment) -> tuple[str, ...]:
    """From long to short: the first that is narrower than the segment is written."""
    gib = f"{part.gib:.1f}"
    return (f"{part.backend} {_SHOWN[part.kind]} {gib} GiB".strip(), f"{part.backend} {gib}".strip(), gib)


def _text(text: str) -> str:
    return escape(visible(text))
