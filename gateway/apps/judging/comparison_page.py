"""The comparison as one HTML page that needs nothing else: agreement, distribution, and both answers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from gateway.apps.judging.agreement import distribution
from gateway.apps.judging.comparison import Judge, JudgeComparison, LineTexts

TEXT_MOST = 20_000  # characters of one text that are shown

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
td, th { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #8884; }
td:first-child, th:first-child { text-align: left; }
.bar { display: inline-block; height: .7em; background: #4a7dca; vertical-align: baseline; }
article { border: 1px solid #8886; border-radius: .5rem; padding: 1rem; margin: 1rem 0; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: inherit;
  margin: .3rem 0; max-height: 24rem; overflow: auto; }
h3 { margin: 0 0 .5rem; } .score { font-weight: 700; }
"""


def render(comparison: JudgeComparison, shown: Sequence[LineTexts]) -> str:
    """The whole page."""
    names = " and ".join(escape(judge.name) for judge in comparison.judges)
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>{names}</title><style>{_STYLE}</style>",
        f"<h1>{names}</h1>",
        _agreements(comparison),
        "<h2>Scores</h2>",
        *(_distribution(judge) for judge in comparison.judges),
        f"<h2>Read these {len(shown)} first</h2>",
        *(_article(one) for one in shown),
    ]
    return "\n".join(parts) + "\n"


def _agreements(comparison: JudgeComparison) -> str:
    head = "<tr><th>Judges<th>Lines<th>Same score<th>Kappa<th>Weighted kappa<th>Mean difference"
    rows = [
        f"<tr><td>{escape(one.first)} / {escape(one.second)}<td>{one.lines}<td>{_share(one.same)}"
        f"<td>{_figure(one.kappa)}<td>{_figure(one.weighted)}<td>{_figure(one.difference)}"
        for one in comparison.agreements
    ]
    note = "Kappa: 1 = always alike, 0 = as by chance. Weighted: a large difference counts more than a small one."
    return f"<h2>Agreement</h2><table>{head}{''.join(rows)}</table><p>{note}"


def _distribution(judge: Judge) -> str:
    found = distribution(judge.scores)
    most = max((count for _, count in found["counts"]), default=1)
    rows = "".join(
        f"<tr><td>{score:g}<td>{count}"
        f"<td style='text-align:left'><span class=bar style='width:{count / most * 20:.1f}rem'></span>"
        for score, count in found["counts"]
    )
    without = f", {len(judge.unscored)} without a score, {len(judge.failed)} failed"
    mean = _figure(found["mean"])
    return f"<h3>{escape(judge.name)}: mean {mean}, {found['lines']} lines{without}</h3><table>{rows}</table>"


def _article(one: LineTexts) -> str:
    sides = "".join(
        f"<section><div>{escape(name)}: <span class=score>{_figure(score)}</span></div>"
        f"<pre>{escape(one.answers.get(name, '')[:TEXT_MOST]) or '<i>no answer</i>'}</pre></section>"
        for name, score in one.line.scores.items()
    )
    asked = f"<details open><summary>Asked</summary><pre>{escape(one.question[:TEXT_MOST])}</pre></details>"
    head = f"<h3>{escape(one.line.custom_id)}</h3>{asked if one.question else ''}"
    return f"<article>{head}<div class=sides>{sides}</div></article>"


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
