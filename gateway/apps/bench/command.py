"""`gateway bench`: how fast an alias or a server is, and what the gateway adds."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gateway.cli.options import (
    complete_alias,
    config_option,
    examples,
    is_there,
    json_option,
    key_option,
    load_or_exit,
    server_url,
)
from gateway.printable import visible

if TYPE_CHECKING:
    from gateway.apps.bench.benchmark import Benchmark, OnStep
    from gateway.config.snapshot import Snapshot


def _numbers(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    """`1,2,4` as whole numbers."""
    try:
        numbers = {int(part) for part in text.split(",") if part.strip()}
    except ValueError:
        numbers = set()
    if any(number < 1 for number in numbers) or (not numbers and text != "none"):
        raise click.BadParameter(f"'{text}': write whole numbers of at least 1, as in 1,4,16, or none")
    return tuple(sorted(numbers))


@examples(
    "gateway bench spark-qwen36",
    "gateway bench spark-qwen36 --prompt-tokens 512,32768 --concurrency 1,8 --chart qwen36.svg",
    "gateway bench reviewer --no-direct --repeats 5 --json",
    "gateway bench http://192.168.1.11:8001 --tokens 256",
)
@click.command()
@click.argument("target", metavar="ALIAS|URL", shell_complete=complete_alias)
@config_option
@click.option(
    "--prompt-tokens",
    "lengths",
    metavar="N,N,...",
    callback=_numbers,
    default="1024,4096,16384",
    show_default=True,
    help="Lengths of the prompts; the sweep takes the shortest.",
)
@click.option("--tokens", type=click.IntRange(2), default=128, show_default=True, help="Length of each answer.")
@click.option(
    "--concurrency",
    metavar="N,N,...",
    callback=_numbers,
    default="1,2,4,8",
    show_default=True,
    help="How many at a time; none: no sweep.",
)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="How often each is measured.")
@click.option(
    "--requests", type=click.IntRange(1), default=2, show_default=True, help="Requests of each stream of the sweep."
)
@click.option("--duration", help="Instead of --requests: how long each block of the sweep begins new ones (30s).")
@click.option("--thinking", type=click.Choice(["on", "off"]), help="Have the model think, or not.")
@click.option("--timeout", default="15m", show_default=True, help="How long one request may take.")
@click.option("--model", help="With a URL: the model to ask; default the first that it lists.")
@click.option("--gateway", "at", metavar="URL", help="Where the gateway is; default `server.listen`.")
@click.option("--direct/--no-direct", default=True, help="Measure the backend behind the alias directly, too.")
@click.option("--cloud", is_flag=True, help="Let an alias be measured whose first step is a cloud: that costs money.")
@key_option("Key of a client, or of the server at the URL")
@click.option("--chart", type=click.Path(dir_okay=False, path_type=Path), help="Write a chart: FILE.png or FILE.svg.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    target: str,
    config: Path,
    duration: str | None,
    thinking: str | None,
    timeout: str,
    model: str | None,
    at: str | None,
    direct: bool,
    cloud: bool,
    key: str | None,
    chart: Path | None,
    as_json: bool,
    **measured: Any,
) -> None:
    """Measure time to first token, prefill and decode of one stream, and what several at a time get.

    ALIAS is asked through the running gateway and, turn by turn, straight at the backend that answers for it; URL is
    any OpenAI-compatible server. docs/benchmarking.md says what the figures mean.

    Exit code 0: all was measured; 1: something failed; 2: wrong usage.
    """
    from gateway.apps.bench import report
    from gateway.apps.bench.benchmark import Benchmark, BenchSubject, Settings, UnsuitableOptions

    if not measured["lengths"]:
        raise click.UsageError("--prompt-tokens: name at least one length")
    settings = Settings(
        **measured,
        duration=None if duration is None else _seconds("--duration", duration),
        limit=_seconds("--timeout", timeout),
        thinking=None if thinking is None else thinking == "on",
    )
    is_url = "://" in target
    snapshot = None if is_url else _snapshot(config, at, as_json)
    if chart is not None and (problem := report.problem_with(chart)) is not None:
        raise click.UsageError(problem)
    by_default = context.get_parameter_source("lengths") is ParameterSource.DEFAULT
    url = server_url(target) if is_url else server_url(_gateway_url(at, snapshot))
    subject = BenchSubject(url, None if is_url else target, model, key, direct, cloud, trim=by_default)
    try:
        benchmark = Benchmark(subject, settings, snapshot)
        _measure(benchmark, as_json=as_json)
    except UnsuitableOptions as error:
        raise click.UsageError(str(error)) from None
    _report(benchmark, chart, as_json=as_json)
    sys.exit(0 if benchmark.results.ok else 1)


def _seconds(option: str, text: str) -> float:
    from gateway.config.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError:
        raise click.UsageError(f"{option} {text}: write a number and its unit, as in 30s or 5m") from None


def _snapshot(config: Path, at: str | None, as_json: bool) -> Snapshot | None:
    """The snapshot of the file, with the addresses of the gateway and the backends. None: there is no file, and
    `--at` names the gateway."""
    return None if at is not None and not is_there(config) else load_or_exit(config, as_json=as_json).snapshot


def _gateway_url(at: str | None, snapshot: Snapshot | None) -> str:
    from gateway.cli.running import address

    return at or (address(snapshot.server) if snapshot is not None else "")


def _measure(benchmark: Benchmark, *, as_json: bool) -> None:
    """Until everything is measured, or Ctrl-C: then the results so far are reported. Exits where nothing can be
    measured. Raises UnsuitableOptions."""
    import uvloop

    from gateway.apps.bench.targets import UnmeasurableTarget

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, _progress(quiet=as_json) as on_step:
            runner.run(benchmark.run(on_step))
    except UnmeasurableTarget as problem:
        click.echo(f"Nothing was measured: {visible(str(problem))}", err=True)
        if as_json:
            click.echo(json.dumps({"ok": False, "error": str(problem)}, indent=2))
        sys.exit(1)
    except KeyboardInterrupt:
        benchmark.results.stopped = True


def _report(benchmark: Benchmark, chart: Path | None, *, as_json: bool) -> None:
    """The results to stdout, and the chart to its file. Exits where that cannot be written."""
    from rich.console import Console

    from gateway.apps.bench import report

    results = benchmark.results
    if as_json:
        click.echo(json.dumps(report.as_json(benchmark.title, benchmark.settings, results), indent=2))
    else:
        report.show(Console(highlight=False), benchmark.title, results)
    if chart is None or not any(sample.ok for _, sample in results.samples):
        return
    try:
        report.draw(chart, benchmark.title, results)
    except OSError as error:
        click.echo(f"The chart cannot be written: {error}", err=True)
        sys.exit(1)
    click.echo(f"chart: {chart}", err=True)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[OnStep]:
    """A bar on a terminal's stderr, nothing elsewhere."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    task = bar.add_task("warm-up", total=None)

    def step(what: str, total: int) -> None:
        """The previous step is done, unless that was the warm-up, and the next one of `total` begins."""
        known = bar.tasks[0].total is not None
        bar.update(task, description=visible(what), total=total, advance=1 if known else 0)

    with bar:
        yield step
