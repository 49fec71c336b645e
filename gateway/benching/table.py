"""The results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.benching.figures import CLEAR_FROM, Gap, Level, Single, Spread
from gateway.benching.results import DIRECT, Results
from gateway.printable import visible

Show = Callable[[float], str]


def show(console: Console, title: str, results: Results) -> None:
    """What was measured, then what has to be said of it."""
    console.print(Text(visible(title), style="bold"))
    if results.single:
        console.print(_singles(results))
        for way, line in results.fits().items():
            start = f"{seconds(line.overhead)} + " if line.overhead > 0 else ""
            text = f"{way}: time to first token = {start}prompt ÷ {rate(line.rate)} tok/s, over all lengths"
            console.print(Text(visible(text)), soft_wrap=True)
    if results.sweep:
        console.print(_sweep(results))
    for text in _added(results):
        console.print(Text(visible(text)), soft_wrap=True)
    for (way, what), count in results.errors().items():
        console.print(Text(visible(f"{count} x failed, {way}: {what}"), style="red"), soft_wrap=True)
    for remark in results.remarks():
        console.print(Text(visible(f"note: {remark}"), style="yellow"), soft_wrap=True)
    if results.stopped:
        console.print(Text("stopped before all was measured", style="red"))


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name == "via" else "right", no_wrap=True)
    return table


def _singles(results: Results) -> Table:
    table = _table("prompt", "via", "first token", "prefill tok/s", "decode tok/s", "runs")
    rows = results.singles()
    names = {backend for _, backend in rows if backend is not None}
    for row, backend in rows:
        prompt = row.of(lambda run: run.prompt)
        via = row.via if len(names) < 2 or backend is None or row.via == DIRECT else f"{row.via}: {backend}"
        table.add_row(
            f"{prompt.median:,.0f}" if prompt else f"~{row.asked:,}",
            Text(visible(via)),
            spread(row.of(lambda run: run.ttft), seconds),
            spread(row.of(lambda run: run.prefill_rate), rate),
            spread(row.of(lambda run: run.decode_rate), rate),
            _count(row),
        )
    return table


def _count(row: Single) -> Text:
    if not row.failed:
        return Text(str(len(row.runs)))
    return Text(f"{len(row.good)} of {len(row.runs)}", style="red")


def _sweep(results: Results) -> Table:
    """`failed` is only there when something did."""
    levels = results.levels()
    failed = any(level.failed for level in levels)
    table = _table("streams", "via", "tok/s, all", "each", "first token", "p95", "queued", *["failed"] * failed)
    for level in levels:
        cells: list[str | Text] = [
            str(level.concurrency),
            Text(visible(level.via)),
            spread(level.output_rate, rate),
            _at(level.at(lambda run: run.decode_rate, 0.5), rate),
            _at(level.at(lambda run: run.ttft, 0.5), seconds),
            _at(level.at(lambda run: run.ttft, 0.95), seconds),
            _at(level.at(lambda run: run.queued, 0.5), seconds),
        ]
        table.add_row(*cells, *([_failures(level)] if failed else []))
    return table


def _failures(level: Level) -> Text:
    """Requests, and the blocks that do not count for them."""
    bad = sum(not block.ok for block in level.blocks)
    return Text(f"{level.failed}, {bad}/{len(level.blocks)} blocks", style="red") if level.failed else Text("0")


def _added(results: Results) -> list[str]:
    lines = []
    for row in results.added():
        if row.ttft is not None:
            decode = f"; decode {share(row.decode)}" if row.decode is not None else ""
            lines.append(f"the gateway adds at {row.asked:,} tokens: first token {added(row.ttft)}{decode}")
    for level, found in results.added_sweep():
        if found is not None:
            lines.append(f"through the gateway, {level} at a time: {share(found)} of the direct output rate")
    return lines


# -- figures in words -------------------------------------------------------------------------------------------------


def seconds(value: float) -> str:
    """With three digits: 4.1 ms, 967 ms, 2.35 s, 133 s."""
    size = abs(value)
    if size >= 0.9995:
        return f"{value:.2f} s" if size < 9.995 else f"{value:.1f} s" if size < 99.95 else f"{value:,.0f} s"
    value *= 1000
    return f"{value:.1f} ms" if abs(value) < 99.95 else f"{value:.0f} ms"


def rate(value: float) -> str:
    return f"{value:.1f}" if value < 999.95 else f"{value:,.0f}"


def spread(found: Spread | None, shown: Show) -> str:
    """The median; with several values also half the way from the smallest to the largest, in percent of it."""
    if found is None:
        return "-"
    return shown(found.median) if found.n == 1 else f"{shown(found.median)} ±{found.share:.1%}"


def added(found: Gap) -> str:
    """A difference of seconds, and whether it is more than noise."""
    middle = f"{'+' if found.median >= 0 else ''}{seconds(found.median)}"
    if found.n == 1:
        return f"{middle} (one pair: may be noise)"
    doubt = _doubt(found.n, clear=found.clear)
    return f"{middle} ({seconds(found.low)} to {seconds(found.high)} in {found.n} pairs{doubt})"


def share(found: Spread) -> str:
    """One rate over the other."""
    text = f"{found.median:.1%}"
    if found.n == 1:
        return text
    return f"{text} ({found.low:.1%}-{found.high:.1%}{_doubt(found.n, clear=found.low > 1 or found.high < 1)})"


def _doubt(n: int, *, clear: bool) -> str:
    return ": too few to tell" if n < CLEAR_FROM else "" if clear else ": within the noise"


def _at(value: float | None, shown: Show) -> str:
    return "-" if value is None else shown(value)
