"""The table: medians, ratios to nginx and to vllm-router, and how they stand against the levels that the project sets
itself."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench import routers
from bench.runner import Plan, Samples, Table
from bench.scenarios import BY_NAME

YARDSTICK = "nginx"
ROUTER = routers.YARDSTICK.name
JUDGED = "gateway"


@dataclass(frozen=True)
class Row:
    """A line of the table. `safe` is a multiple of nginx' figure and `target` one of vllm-router's, or both are
    absolute in `unit` (`ratio` False)."""

    figure: str
    title: str
    unit: str
    safe: float | None
    target: float | None
    ratio: bool = True


def _row(name: str, safe: float | None, target: float, *, unit: str = "µs/req") -> Row:
    return Row(name, BY_NAME[name].title, unit, safe, target)


ROWS = (
    _row("turn", None, 1.0),
    _row("small", 14, 1.4),
    _row("agentic", 6, 0.45),
    _row("stream", 7, 1.4),
    _row("paced", 4.5, 1.3, unit="µs/chunk"),
    Row("alone", BY_NAME["alone"].title, "µs/chunk", None, None),
    _row("mending", 5, 1.5, unit="µs/chunk"),
    _row("burst", None, 0.9, unit="µs/chunk"),
    _row("agentic_message", None, 1.2),
    Row("paced_message", BY_NAME["paced_message"].title, "µs/chunk", None, None),
    _row("traced", None, 2.5),
    Row("small:rate", "small, answers per second", "1/s", None, None),
    Row("added:p50", "added latency at 50/s, p50", "ms", 0.8, 0.6, ratio=False),
    Row("added:p95", "added latency at 50/s, p95", "ms", None, None, ratio=False),
    Row("idle", "memory, idle", "MB", 90, 65, ratio=False),
    Row("open", "memory, {open} open streams", "MB", 120, 80, ratio=False),
    Row("start", "start to first answer", "ms", 1500, 600, ratio=False),
)
CPU_FIGURES = tuple(name for name, scenario in BY_NAME.items() if scenario.mode in ("closed", "paced"))


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def ratio(samples: dict[str, Samples], name: str, base: str = YARDSTICK) -> float | None:
    """A target's median over another's of the same run."""
    mine, other = (samples[who].median if who in samples else None for who in (name, base))
    return mine / other if mine is not None and other else None


def _cell(row: Row, samples: dict[str, Samples], name: str) -> str:
    if name not in samples:
        return "n/a"
    cell = samples[name]
    if cell.errors:
        return "FAILED"
    if cell.median is None:
        return "n/a"
    times = ratio(samples, name) if row.ratio and name != YARDSTICK else None
    return _number(cell.median) + (f" ({times:.1f}x)" if times is not None else "")


def _of_router(samples: dict[str, Samples]) -> str:
    """The gateway's figure in multiples of the router's."""
    times = ratio(samples, JUDGED, ROUTER)
    return "" if times is None or _wrong(samples, ROUTER) or _wrong(samples, JUDGED) else f"{times:.2f}x"


def _wrong(samples: dict[str, Samples], name: str) -> bool:
    return name in samples and bool(samples[name].errors)


def _mark(row: Row, level: float | None, samples: dict[str, Samples], base: str) -> str:
    """The level and whether the gateway keeps it; only the level when there is nothing to compare."""
    if level is None:
        return ""
    text = f"{level:g}x" if row.ratio else f"{level:g} {row.unit}"
    if JUDGED not in samples or _wrong(samples, JUDGED) or (row.ratio and _wrong(samples, base)):
        return text
    value = ratio(samples, JUDGED, base) if row.ratio else samples[JUDGED].median
    return text if value is None else f"{text} {'ok' if value <= level else 'MISS'}"


def table_lines(table: Table, targets: Sequence[str], plan: Plan) -> list[str]:
    """The table as text, one line per figure that was measured."""
    head = ["", "unit", *targets, f"of {ROUTER}", "safe", "target"]
    body = []
    for row in ROWS:
        samples = table.get(row.figure)
        if samples is None:
            continue
        body.append(
            [
                row.title.format(open=plan.connections_open),
                row.unit,
                *(_cell(row, samples, name) for name in targets),
                "" if row.figure.startswith("added") else _of_router(samples),
                _mark(row, row.safe, samples, YARDSTICK),
                _mark(row, row.target, samples, ROUTER),
            ]
        )
    widths = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]
    return [
        "  ".join(
            text.rjust(width) if 2 <= column < 3 + len(targets) else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, ["-" * width for width in widths], *body)
    ]


def noise_line(table: Table, repeats: int) -> str:
    """How far the repeats of a yardstick lie apart: differences below that mean nothing."""
    for name, figures in ((YARDSTICK, CPU_FIGURES), (ROUTER, CPU_FIGURES), ("direct", ("small:rate", "latency:p50"))):
        spreads = [
            f"{figure} {samples[name].noise:.0%}"
            for figure, samples in table.items()
            if figure in figures and name in samples and len(samples[name].values) > 1
        ]
        if spreads:
            return f"noise: (max - min) / median of {name} over {repeats} repeats: {', '.join(spreads)}"
    return "noise: unknown, nothing was measured twice"


def failures(table: Table) -> list[str]:
    """What was wrong with the answers, per figure and target."""
    return [
        f"FAILED {figure} on {name}: {count} x {error}"
        for figure, targets in table.items()
        for name, samples in targets.items()
        for error, count in samples.errors.items()
    ]


def render(table: Table, targets: Sequence[str], plan: Plan) -> str:
    """Everything that is printed."""
    lines = [*table_lines(table, targets, plan), "", noise_line(table, plan.repeats)]
    lines.append(f"{plan.repeats} repeat(s) in alternating order, medians, windows of {plan.seconds:g} s.")
    lines.append(
        "Times (CPU of the whole process tree) depend on the machine: quote the ratios. (Nx) and safe: N times nginx "
        f"here; of {ROUTER} and target: the gateway's in multiples of {ROUTER}'s."
    )
    if len(os.sched_getaffinity(0)) == 1:
        lines.append(
            "one core only: proxy, upstream and load shared it, so rates and latencies say little; CPU figures hold."
        )
    for base, levels in ((YARDSTICK, "safe"), (ROUTER, "target")):
        if base not in targets:
            lines.append(
                f"{base} is not in this run: no ratios to it, so {levels} levels in Nx are shown but not judged."
            )
    return "\n".join([*lines, *failures(table)])


def document(table: Table, targets: Sequence[str], plan: Plan) -> dict[str, Any]:
    """The same for `--json`: per figure and target the median, all values, the ratios and the errors."""
    figures = {
        figure: {
            name: {
                "median": cell.median,
                "values": cell.values,
                "ratio": None if figure.startswith(("added", "latency")) else ratio(samples, name),
                "of_router": None if figure.startswith(("added", "latency")) else ratio(samples, name, ROUTER),
                "errors": cell.errors,
            }
            for name, cell in samples.items()
        }
        for figure, samples in table.items()
    }
    levels = {
        row.figure: {"unit": row.unit, "safe": row.safe, "target": row.target, "relative": row.ratio} for row in ROWS
    }
    return {
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "kernel": platform.release(),
        },
        "targets": list(targets),
        "repeats": plan.repeats,
        "seconds": plan.seconds,
        "levels": levels,
        "figures": figures,
    }


def write_json(path: str, table: Table, targets: Sequence[str], plan: Plan) -> None:
    """Write `document` to a file."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document(table, targets, plan), file, indent=2)
        file.write("\n")
