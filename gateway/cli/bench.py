"""`gateway bench`: how fast an alias or a server is, and what the gateway adds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gateway.cli.options import complete_alias, config_option, examples, json_option, load_or_exit

if TYPE_CHECKING:
    from gateway.config.snapshot import Snapshot


class Numbers(click.ParamType[tuple[int, ...]]):
    """`1,2,4` as whole numbers."""

    name = "N,N,..."

    def __init__(self, least: int) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).split(",") if part.strip())
        except ValueError:
            numbers = ()
        if any(number < self._least for number in numbers) or (not numbers and str(value) != "none"):
            self.fail(f"'{value}': write whole numbers of at least {self._least}, as in 1,4,16, or none", param, ctx)
        return tuple(sorted(set(numbers)))


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
    type=Numbers(1),
    default="1024,4096,16384",
    show_default=True,
    help="Lengths of the prompts; the sweep takes the shortest.",
)
@click.option("--tokens", type=click.IntRange(2), default=128, show_default=True, help="Length of each answer.")
@click.option(
    "--concurrency", type=Numbers(1), default="1,2,4,8", show_default=True, help="How many at a time; none: no sweep."
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
@click.option("--key", envvar="GATEWAY_KEY", help="Key of a client, or of the server at the URL; default GATEWAY_KEY.")
@click.option("--chart", type=click.Path(dir_okay=False, path_type=Path), help="Write a chart: FILE.png or FILE.svg.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    target: str,
    config: Path,
    lengths: tuple[int, ...],
    tokens: int,
    concurrency: tuple[int, ...],
    repeats: int,
    requests: int,
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
) -> None:
    """Measure time to first token, prefill and decode of one stream, and what several at a time get.

    ALIAS is asked through the running gateway and, turn by turn, straight at the backend that answers for it; URL is
    any OpenAI-compatible server. docs/benchmarking.md says what the figures mean.

    Exit code 0: all was measured; 1: something failed; 2: wrong usage.
    """
    from gateway.benching.session import Settings
    from gateway.cli.benching import Bench, Wanted

    if not lengths:
        raise click.UsageError("--prompt-tokens: name at least one length")
    settings = Settings(
        lengths,
        tokens,
        concurrency,
        repeats,
        requests,
        None if duration is None else _seconds("--duration", duration),
        _seconds("--timeout", timeout),
        None if thinking is None else thinking == "on",
    )
    by_default = context.get_parameter_source("lengths") is ParameterSource.DEFAULT
    wanted = Wanted(target, model, at, key, direct, cloud, by_default, chart, as_json)
    bench = Bench(wanted, settings, None if "://" in target else _snapshot(config, at, as_json))
    bench.measure()
    bench.report()
    sys.exit(0 if bench.results.ok else 1)


def _seconds(option: str, text: str) -> float:
    from gateway.config.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError:
        raise click.UsageError(f"{option} {text}: write a number and its unit, as in 30s or 5m") from None


def _snapshot(config: Path, at: str | None, as_json: bool) -> Snapshot | None:
    """The file, which tells where the gateway and the backend are. None: there is none, and the gateway is named."""
    return None if at is not None and not config.is_file() else load_or_exit(config, as_json=as_json).snapshot
