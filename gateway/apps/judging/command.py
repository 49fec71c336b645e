"""`gateway batch COMMAND`: many requests from a file, and what several judges make of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from gateway.apps.judging.comparison import JudgeComparison, by_path, by_pattern, distribution, render, usual_score
from gateway.apps.judging.comparison import compare as compare_all
from gateway.apps.judging.runs import ENDED, BatchClient, FolderError, OnLook, fetch, judges_in
from gateway.apps.judging.runs import run as run_all
from gateway.cli.options import complete_alias, end_with, examples, json_option
from gateway.cli.running import asks_gateway
from gateway.printable import visible

_asks_gateway = asks_gateway("Key of the client whose batches they are", BatchClient, FolderError, OSError)
_folder = click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))


@examples(
    "gateway batch run turns.jsonl --alias qwen32 --alias qwen235 --out judged",
    "gateway batch compare judged --html judged.html",
)
@click.group()
def command() -> None:
    """Run many requests from a file, and compare what several judges say."""


@examples("gateway batch run turns.jsonl --alias qwen32 --alias qwen235 --out judged")
@command.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--alias", "aliases", multiple=True, required=True, shell_complete=complete_alias, help="Who answers; repeatable."
)
@click.option(
    "--out", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of the results."
)
@click.option("--mode", help="Switch the fleet to this mode for it, and back; takes an admin's key.")
@click.option("--local-only", is_flag=True, help="Nothing of it leaves the LAN: no cloud answers a line.")
@click.option("--between", metavar="TIMES", help="Only between these times of the gateway's day: 01:00-06:00.")
@_asks_gateway
def run(
    file: Path,
    aliases: tuple[str, ...],
    folder: Path,
    mode: str | None,
    local_only: bool,
    between: str | None,
    as_json: bool,
    asking: BatchClient,
) -> None:
    """Ask every alias all lines of FILE, and write the answers into a folder. Run it again after an interruption: it
    goes on where it was. A line is one of OpenAI's batches, or `{"custom_id", "messages"}`."""
    when = {name: value for name, value in (("mode", mode), ("between", between)) if value}
    try:
        with _progress(quiet=as_json) as look:
            batches = run_all(asking, file, list(dict.fromkeys(aliases)), folder, look, when, local_only=local_only)
    except KeyboardInterrupt:
        click.echo("\nThe batches go on without you; run the same command again to fetch their results.", err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "batches": batches}, indent=2))
    else:
        for alias, batch in zip(dict.fromkeys(aliases), batches, strict=True):
            _print_batch(alias, batch)
        if len(batches) > 1:
            click.echo(f"\nCompare them: gateway batch compare {folder}")
    sys.exit(0 if all(batch["status"] == "completed" for batch in batches) else 1)


def _of_folder(what: str, help: str) -> None:
    """The command that does `what` with every batch of a folder, and exits 1 when one of them cannot be asked."""

    @examples(f"gateway batch {what} judged")
    @command.command(what, help=help)
    @_folder
    @_asks_gateway
    def each(folder: Path, as_json: bool, asking: BatchClient) -> None:
        shown = {}
        for state in judges_in(folder):
            if not state.batch:
                continue
            batch = asking.batch(state.batch)
            if what == "cancel" and batch["status"] not in ENDED:
                batch = asking.cancel(state.batch)
            elif what == "results" and batch["status"] in ENDED:
                fetch(asking, state, batch, folder)
            shown[state.alias] = batch
        if as_json:
            click.echo(json.dumps({"folder": str(folder), "batches": shown}, indent=2))
            return
        for alias, batch in shown.items():
            _print_batch(alias, batch)
        if not shown:
            click.echo(f"{folder} has no batches: `gateway batch run` begins them.")


_of_folder("status", "Show how far the batches of a folder are.")
_of_folder("cancel", "Cancel the batches of a folder. What is done stays: `gateway batch results` fetches it.")
_of_folder("results", "Fetch the results of the batches of a folder that have ended.")


@examples(
    "gateway batch compare judged",
    "gateway batch compare judged --score scores.overall --html judged.html --csv judged.csv",
    "gateway batch compare judged --pattern 'Verdict: (\\d)'",
)
@command.command()
@_folder
@click.option(
    "--score", "path", metavar="PATH", help="Where the score is in a JSON answer: scores.overall, criteria[0].score."
)
@click.option("--pattern", metavar="REGEX", help="The score is this expression's first group; its last match counts.")
@click.option("--most", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Lines to read first.")
@json_option
@click.option(
    "--csv", "csv_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the scores of all lines."
)
@click.option(
    "--html", "html_file", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with both answers."
)
def compare(
    folder: Path,
    path: str | None,
    pattern: str | None,
    most: int,
    as_json: bool,
    csv_file: Path | None,
    html_file: Path | None,
) -> None:
    """Show how far the judges of a folder agree, and what a human should read first. Without --score and --pattern the
    score is a JSON answer's `score`, `rating`, `grade` or `points`, a number behind one of these words, or the whole
    answer."""
    if path is not None and pattern is not None:
        raise click.UsageError("--score and --pattern exclude each other")
    try:
        find = by_path(path) if path is not None else by_pattern(pattern) if pattern is not None else usual_score
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        found = compare_all(folder, find)
        if csv_file is not None:
            found.write_csv(csv_file)
        if html_file is not None:
            html_file.write_text(render(found, found.shown(most)), encoding="utf-8", errors="replace")
    except (FolderError, OSError) as error:
        end_with(error, as_json=as_json)
    if as_json:
        click.echo(json.dumps(found.as_json(most), indent=2))
    else:
        _print_comparison(found, most)
    if not any(one.lines for one in found.agreements):
        click.echo("No line has a score of two judges: say where it is with --score or --pattern.", err=True)
        sys.exit(1)


def _print_batch(alias: str, batch: Mapping[str, Any]) -> None:
    done, failed, total = _counts(batch)
    rest = total - done - failed if batch["status"] == "cancelled" else 0
    text = f"{done} of {total} answered, {failed} failed" + (f", {rest} not run" if rest else "")
    click.echo(f"{visible(alias):24} {batch['status']:12} {text}")
    for reason in _reasons(batch):
        click.echo(f"  {reason}")


def _reasons(batch: Mapping[str, Any]) -> list[str]:
    """Why the whole batch has failed."""
    errors = batch.get("errors")
    found = errors.get("data") if isinstance(errors, dict) else None
    messages = [one.get("message") for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return [message for message in messages if isinstance(message, str)]


def _counts(batch: Mapping[str, Any]) -> list[int]:
    """The lines that are answered, that failed, and all of them; 0 where the batch does not say."""
    counts = batch.get("request_counts")
    found = [counts.get(name) if isinstance(counts, dict) else 0 for name in ("completed", "failed", "total")]
    return [count if isinstance(count, int) else 0 for count in found]


@contextmanager
def _progress(*, quiet: bool) -> Iterator[OnLook]:
    """One bar for each alias on a terminal; a line now and then elsewhere."""
    if quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        said: dict[str, str] = {}

        def tell(batches: Mapping[str, Mapping[str, Any]]) -> None:
            for alias, batch in batches.items():
                if said.get(alias) != batch["status"]:
                    said[alias] = batch["status"]
                    click.echo(f"{visible(alias)}: {batch['status']}", err=True)

        yield tell
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        tasks: dict[str, TaskID] = {}
        with Progress(*columns, console=Console(stderr=True)) as bars:

            def show(batches: Mapping[str, Mapping[str, Any]]) -> None:
                for alias, batch in batches.items():
                    done, failed, total = _counts(batch)
                    if alias not in tasks:
                        tasks[alias] = bars.add_task(visible(alias))
                    bars.update(tasks[alias], total=total or None, completed=done + failed)

            yield show


def _print_comparison(found: JudgeComparison, most: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    columns = "judges", "lines", "same score", "kappa", "weighted kappa", "mean difference"
    table = Table(*columns, box=None, pad_edge=False)
    for one in found.agreements:
        figures = [_figure(one.kappa), _figure(one.weighted_kappa), _figure(one.mean_difference)]
        same = "-" if one.same is None else f"{one.same:.1%}"
        table.add_row(visible(" / ".join(one.judges)), str(one.lines), same, *figures)
    console.print(table)
    for judge in found.judges:
        counts = distribution_line(judge.scores)
        without = f"; {len(judge.unscored)} without a score, {len(judge.failed)} failed"
        click.echo(f"{visible(judge.name)}: {counts}{without}")
    click.echo("\nRead first:")
    for line in found.lines[:most]:
        scores = ", ".join(f"{visible(name)} {_figure(score)}" for name, score in line.scores.items())
        click.echo(f"  {visible(line.custom_id)}: {scores}")


def distribution_line(scores: Mapping[str, float]) -> str:
    """`1: 20, 2: 35, ...`; wide ranges in one figure."""
    found = distribution(scores)
    if not found["lines"]:
        return "no scores"
    shown = ", ".join(f"{score:g}: {count}" for score, count in found["counts"][:12])
    more = ", ..." if len(found["counts"]) > 12 else ""
    return f"mean {_figure(found['mean'])} ({shown}{more})"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
