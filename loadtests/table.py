"""The table at the end of `make loadtest`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from loadtests.k6 import Result

HEADS = (
    "script",
    "answers",
    "whole",
    "interrupted",
    "refused",
    "wrong",
    "first token p50 / p95",
    "added p50 / p95",
    "tokens/s",
    "limits",
)


def _share(result: Result, metric: str) -> str:
    value = result.value(metric, "rate")
    return "" if value is None else f"{value:.1%}" if 0 < value < 1 else f"{value:.0%}"


def _times(result: Result, metric: str) -> str:
    """Median and 95th percentile in milliseconds; empty where nothing was measured."""
    middle, high = result.value(metric, "med"), result.value(metric, "p(95)")
    return "" if middle is None or high is None else f"{_ms(middle)} / {_ms(high)}"


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if abs(value) >= 10 else f"{value:.1f} ms"


def cells(result: Result) -> list[str]:
    """One row, in the order of HEADS."""
    tokens = result.value("answer_tokens", "rate")
    return [
        result.script,
        f"{result.answers:,}",
        *(_share(result, f"answers_{kind}") for kind in ("whole", "interrupted", "refused", "wrong")),
        _times(result, "first_token"),
        _times(result, "added_latency"),
        "" if tokens is None else f"{tokens:,.0f}",
        "kept" if result.passed else "NOT KEPT",
    ]


def table(results: Sequence[Result]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for head in HEADS:
        shown.add_column(head, justify="left" if head in ("script", "limits") else "right")
    for result in results:
        shown.add_row(*cells(result), style="" if result.passed else "red")
    return shown


def complaints(result: Result) -> list[str]:
    """The problems of a result, one line each; empty when it passed."""
    if result.passed:
        return []
    lines = [f"{result.script}: {line}" for line in (*result.crossed, *result.failed, *result.errors)]
    if not result.answers:
        lines.append(f"{result.script}: nothing was answered")
    return lines or [f"{result.script}: k6 ended with {result.code}"]
