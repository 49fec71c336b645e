"""Reports the results: tables for a terminal, JSON for scripts, a chart, and remarks on how far the figures can be
trusted. matplotlib is optional and slow to import, so it is imported only for a chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.apps.bench.benchmark import Settings
from gateway.apps.bench.results import DIRECT, Level, Results, SingleRequests, decode_rate, ttft
from gateway.apps.bench.sample import RequestSample
from gateway.apps.bench.stats import CLEAR_FROM, Spread
from gateway.printable import visible

FEW_TOKENS = 64  # an answer of fewer says little about the decode rate
WIDE_SPREAD, WIDE_FROM = 0.25, 3  # half a spread as a share of its median, of so many values
WHOLE_FROM = 0.8  # of the length that was asked for: a prompt of which less was counted was not read whole

Format = Callable[[float], str]

# -- for a terminal ---------------------------------------------------------------------------------------------------


def show(console: Console, title: str, results: Results) -> None:
    """The figures first, then errors and remarks."""
    console.print(Text(visible(title), style="bold"))
    if results.single:
        console.print(_single_table(results))
        for target, line in results.fits().items():
            start = f"{seconds(line.overhead)} + " if line.overhead > 0 else ""
            text = f"{target}: time to first token = {start}prompt ÷ {rate(line.rate)} tok/s, over all lengths"
            console.print(Text(visible(text)), soft_wrap=True)
    if results.sweep:
        console.print(_sweep_table(results))
    for text in _added_lines(results):
        console.print(Text(visible(text)), soft_wrap=True)
    for (target, error), count in results.errors().items():
        console.print(Text(visible(f"{count} x failed, {target}: {error}"), style="red"), soft_wrap=True)
    for remark in remarks(results):
        console.print(Text(visible(f"note: {remark}"), style="yellow"), soft_wrap=True)
    if results.stopped:
        console.print(Text("stopped before all was measured", style="red"))


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name == "via" else "right", no_wrap=True)
    return table


def _single_table(results: Results) -> Table:
    table = _table("prompt", "via", "first token", "prefill tok/s", "decode tok/s", "runs")
    rows = results.singles()
    backends = {row.backend for row in rows if row.backend is not None}
    for row in rows:
        prompt = row.of(lambda sample: sample.prompt)
        via = row.via if len(backends) < 2 or row.backend is None or row.via == DIRECT else f"{row.via}: {row.backend}"
        table.add_row(
            f"{prompt.median:,.0f}" if prompt else f"~{row.asked:,}",
            Text(visible(via)),
            spread(row.of(ttft), seconds),
            spread(row.of(lambda sample: sample.prefill_rate), rate),
            spread(row.of(decode_rate), rate),
            _count(row),
        )
    return table


def _count(row: SingleRequests) -> Text:
    if not row.failed:
        return Text(str(len(row.samples)))
    return Text(f"{len(row.good)} of {len(row.samples)}", style="red")


def _sweep_table(results: Results) -> Table:
    """The column `failed` is only there when a request failed."""
    levels = results.levels()
    failed = any(level.failed for level in levels)
    table = _table("streams", "via", "tok/s, all", "each", "first token", "p95", "queued", *["failed"] * failed)
    for level in levels:
        cells: list[str | Text] = [
            str(level.concurrency),
            Text(visible(level.via)),
            spread(level.output_rate, rate),
            _known(level.at(decode_rate, 0.5), rate),
            _known(level.at(ttft, 0.5), seconds),
            _known(level.at(ttft, 0.95), seconds),
            _known(level.at(lambda sample: sample.queued, 0.5), seconds),
        ]
        table.add_row(*cells, *([_failures(level)] if failed else []))
    return table


def _failures(level: Level) -> Text:
    """Failed requests, and the blocks that give no figure because of them."""
    text = f"{level.failed}, {level.blocks_failed}/{len(level.blocks)} blocks"
    return Text(text, style="red") if level.failed else Text("0")


def _added_lines(results: Results) -> list[str]:
    lines = []
    for asked, first, decode in results.added():
        if first is not None:
            more = f"; decode {share(decode)}" if decode is not None else ""
            lines.append(f"the gateway adds at {asked:,} tokens: first token {added(first)}{more}")
    for level, found in results.added_sweep():
        if found is not None:
            lines.append(f"through the gateway, {level} at a time: {share(found)} of the direct output rate")
    return lines


# -- figures as text --------------------------------------------------------------------------------------------------


def seconds(value: float) -> str:
    """With three digits: 4.1 ms, 967 ms, 2.35 s, 133 s."""
    size = abs(value)
    if size >= 0.9995:
        return f"{value:.2f} s" if size < 9.995 else f"{value:.1f} s" if size < 99.95 else f"{value:,.0f} s"
    value *= 1000
    return f"{value:.1f} ms" if abs(value) < 99.95 else f"{value:.0f} ms"


def rate(value: float) -> str:
    return f"{value:.1f}" if value < 999.95 else f"{value:,.0f}"


def spread(found: Spread | None, text: Format) -> str:
    """The median; with several values also half the way from the smallest to the largest, in percent of the median."""
    if found is None:
        return "-"
    return text(found.median) if found.n == 1 else f"{text(found.median)} ±{found.relative / 2:.1%}"


def added(found: Spread) -> str:
    """A difference of seconds, and whether it is more than noise."""
    middle = f"{'+' if found.median >= 0 else ''}{seconds(found.median)}"
    if found.n == 1:
        return f"{middle} (one pair: may be noise)"
    doubt = _doubt(found.n, clear=found.clear)
    return f"{middle} ({seconds(found.low)} to {seconds(found.high)} in {found.n} pairs{doubt})"


def share(found: Spread) -> str:
    """One rate over the other, and whether they differ by more than noise."""
    text = f"{found.median:.1%}"
    if found.n == 1:
        return text
    return f"{text} ({found.low:.1%}-{found.high:.1%}{_doubt(found.n, clear=found.low > 1 or found.high < 1)})"


def _doubt(n: int, *, clear: bool) -> str:
    return ": too few to tell" if n < CLEAR_FROM else "" if clear else ": within the noise"


def _known(value: float | None, text: Format) -> str:
    return "-" if value is None else text(value)


# -- remarks ----------------------------------------------------------------------------------------------------------


def remarks(results: Results) -> list[str]:
    """The reader's cautions: the notes, and signs in the samples themselves that the figures mislead."""
    good = [sample for _, sample in results.samples if sample.ok]
    return [
        *results.notes,
        *_on_answers(good, results.tokens),
        *_on_spreads(results),
        *_on_streams(good),
        *_on_prompts(results),
    ]


def _on_answers(good: list[RequestSample], tokens: int) -> Iterator[str]:
    counts = [sample.completion for sample in good if sample.completion is not None]
    if good and not counts:
        yield "the server reports no usage, so no rate is claimed: tokens are not guessed from chunks"
    if short := sum(count < tokens for count in counts):
        yield (
            f"{short} of {len(counts)} answers have fewer than {tokens} tokens (the shortest {min(counts)}): "
            "nothing made this engine go on"
        )
    if longer := sum(count > tokens for count in counts):
        yield f"{longer} of {len(counts)} answers have more tokens than the {tokens} asked for"
    if counts and min(counts) < FEW_TOKENS:
        yield f"answers of fewer than {FEW_TOKENS} tokens say little about decode: --tokens 256"


def _on_spreads(results: Results) -> Iterator[str]:
    found = [row.of(value) for row in results.singles() for value in (ttft, decode_rate)]
    found += [level.output_rate for level in results.levels()]
    if any(each is not None and each.n >= WIDE_FROM and each.relative / 2 > WIDE_SPREAD for each in found):
        yield (
            f"some figures vary by more than ±{WIDE_SPREAD:.0%}: something else was at work there, or here; read the "
            "medians with care, and measure again when it is quiet"
        )


def _on_streams(good: list[RequestSample]) -> Iterator[str]:
    if heaps := sum(not sample.is_steady for sample in good if sample.completion):
        yield (
            f"in {heaps} of {len(good)} answers the text came in heaps (a parser that holds thoughts back?): their "
            "decode rate is not claimed; --thinking off, or more --tokens"
        )
    if cached := sum(not sample.is_fresh for sample in good):
        yield f"{cached} prompts came partly out of the prefix cache: their prefill rate is not claimed"
    if thoughts := sum((sample.reasoning or 0) > 0 for sample in good):
        yield f"{thoughts} of {len(good)} answers hold thoughts, which count as tokens like any other"


def _on_prompts(results: Results) -> Iterator[str]:
    counted = [(length, s.prompt) for (_, length), samples in results.single.items() for s in samples if s.ok]
    cut = [(length, count) for length, count in counted if count is not None and count < WHOLE_FROM * length]
    if cut:
        length, count = cut[-1]
        yield (
            f"of a prompt of about {length:,} tokens the server counted {count:,}: it may have cut it without a "
            "word, as Ollama's /v1 does beyond the window that the model was loaded with"
        )


# -- JSON -------------------------------------------------------------------------------------------------------------


def as_json(title: str, settings: Settings, results: Results) -> dict[str, Any]:
    """Everything: the figures, the samples they come from, notes and errors. Times are seconds; rates tokens per
    second, of requests per second."""
    return {
        "ok": results.ok,
        "target": title,
        "backend": results.expected,
        "settings": _settings(settings),
        "stopped": results.stopped,
        "notes": remarks(results),
        "errors": [{"via": via, "error": error, "count": count} for (via, error), count in results.errors().items()],
        "single": [_single(row) for row in results.singles()],
        "prefill": {target: asdict(line) for target, line in results.fits().items()},
        "sweep": [_level(level) for level in results.levels()],
        "added": {
            "single": [
                {
                    "prompt_tokens": asked,
                    "ttft": first and {**asdict(first), "clear": first.clear},
                    "decode_ratio": _fields(decode),
                }
                for asked, first, decode in results.added()
            ],
            "sweep": [{"concurrency": level, "output_ratio": _fields(found)} for level, found in results.added_sweep()],
        },
        "warm_up": [_sample(target, sample) for target, sample in results.warm_up],
        "runs": [_sample(target, sample) for target, sample in results.samples],
    }


def _settings(settings: Settings) -> dict[str, Any]:
    given = {name: getattr(settings, name) for name in ("tokens", "repeats", "duration", "thinking")}
    lists = {"prompt_tokens": list(settings.lengths), "concurrency": list(settings.concurrency)}
    return {**lists, **given, "requests": settings.requests if settings.duration is None else None}


def _fields(found: Spread | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _single(row: SingleRequests) -> dict[str, Any]:
    return {
        "via": row.via,
        "backend": row.backend,
        "asked": row.asked,
        "runs": len(row.samples),
        "failed": row.failed,
        "prompt_tokens": _fields(row.of(lambda sample: sample.prompt)),
        "completion_tokens": _fields(row.of(lambda sample: sample.completion)),
        "ttft": _fields(row.of(ttft)),
        "prefill_rate": _fields(row.of(lambda sample: sample.prefill_rate)),
        "decode_rate": _fields(row.of(decode_rate)),
    }


def _level(level: Level) -> dict[str, Any]:
    return {
        "via": level.via,
        "concurrency": level.concurrency,
        "blocks": len(level.blocks),
        "blocks_failed": level.blocks_failed,
        "failed": level.failed,
        "backends": dict(Counter(sample.backend for sample in level.samples if sample.backend is not None)),
        "output_rate": _fields(level.output_rate),
        "request_rate": _fields(level.request_rate),
        "ttft_p50": level.at(ttft, 0.5),
        "ttft_p95": level.at(ttft, 0.95),
        "decode_p50": level.at(decode_rate, 0.5),
        "queued_p50": level.at(lambda sample: sample.queued, 0.5),
    }


def _sample(target: str, sample: RequestSample) -> dict[str, Any]:
    rates = {name: getattr(sample, name) for name in ("ttft", "prefill_rate", "decode_rate")}
    return {"via": target, **asdict(sample), **rates}


# -- a picture --------------------------------------------------------------------------------------------------------


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
