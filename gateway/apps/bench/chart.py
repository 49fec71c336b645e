"""The results as a picture. matplotlib is optional and slow to import, so it is imported only for a chart."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gateway.apps.bench.results import DIRECT, Results, decode_rate, ttft
from gateway.apps.bench.stats import Spread

SUFFIXES = (".png", ".svg")
MISSING = "--chart needs matplotlib, which is not installed: pip install 'spark-gateway[charts]'"

_FRONT: dict[str, Any] = {"color": "#2f6fdb", "linewidth": 1.6, "markersize": 4, "zorder": 3}
# Wider, so that it is seen where both lines are the same.
_BACK: dict[str, Any] = {"color": "#c3c8d0", "linewidth": 5, "markersize": 8, "zorder": 2}

Points = list[tuple[float, Spread]]


def problem_with(path: Path) -> str | None:
    """Why no chart can be written there; None if it can."""
    if path.suffix.lower() not in SUFFIXES:
        return f"--chart {path}: the name ends in {' or '.join(SUFFIXES)}"
    if not path.absolute().parent.is_dir():
        return f"--chart {path}: there is no directory {path.absolute().parent}"
    return None if find_spec("matplotlib") is not None else MISSING


def draw(path: Path, title: str, results: Results) -> None:
    """Time to the first token and decode rate over the prompt, output over concurrency; bars from the smallest to the
    largest value. Panels without a figure are left out. Raises OSError."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state
    from matplotlib.ticker import MaxNLocator

    panels = [panel for panel in _panels(results) if any(panel[3].values())]
    figure = Figure(figsize=(5.2 * max(1, len(panels)), 4.2), layout="constrained")
    figure.suptitle(title, fontsize=10)
    for place, (name, x_label, y_label, lines) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), place)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        for target, points in lines.items():
            if points:
                spreads = [found for _, found in points]
                below, above = [s.median - s.low for s in spreads], [s.high - s.median for s in spreads]
                style = _BACK if target == DIRECT else _FRONT
                xs, ys = [x for x, _ in points], [s.median for s in spreads]
                axes.errorbar(xs, ys, yerr=[below, above], label=target, marker="o", capsize=3, **style)
        axes.set_ylim(0, 1.1 * max(found.high for points in lines.values() for _, found in points))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if len(lines) > 1:
            axes.legend(frameon=False, loc="lower right")
    metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
    figure.savefig(path, dpi=150, metadata=metadata)


def _panels(results: Results) -> list[tuple[str, str, str, dict[str, Points]]]:
    """(title, label of x, label of y, target -> points) of each panel."""
    first: dict[str, Points] = {}
    decode: dict[str, Points] = {}
    for row in results.singles():
        if results.expected is not None and row.backend != results.expected:
            continue
        prompt = row.of(lambda sample: sample.prompt)
        length = prompt.median if prompt else float(row.asked)
        for lines, found in ((first, row.of(ttft)), (decode, row.of(decode_rate))):
            points = lines.setdefault(row.via, [])
            if found is not None:
                points.append((length, found))
    output: dict[str, Points] = {}
    for level in results.levels():
        points = output.setdefault(level.via, [])
        if level.output_rate is not None:
            points.append((float(level.concurrency), level.output_rate))
    return [
        ("Time to first token", "prompt tokens", "seconds", first),
        ("Decode, one stream", "prompt tokens", "tokens per second", decode),
        ("Output, all streams", "requests at a time", "tokens per second", output),
    ]
